"""Events of sandboxes, snapshots and other objects of the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class EventInfo:
    """Something that happened.

    Args:
        sequence: Larger than that of everything that happened before.
        type: What, such as ``sandbox.created``; a newer service may have others.
        at: When.
        sandbox: To which sandbox.
        owner: The id of the key whose it is, or ``local``.
        data: Details.
    """

    sequence: int
    type: str
    at: datetime
    sandbox: str | None = None
    owner: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(
            sequence=int(raw["sequence"]),
            type=str(raw["type"]),
            at=datetime.fromisoformat(raw["at"]),
            sandbox=raw.get("sandbox"),
            owner=str(raw.get("owner", "")),
            data=dict(raw.get("data", {})),
        )
