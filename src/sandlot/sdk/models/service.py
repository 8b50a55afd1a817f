"""The service itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class ServiceStopResult:
    """A service that is about to end.

    Args:
        pid: Its process id.
        sandboxes: How many sandboxes live on.
    """

    pid: int
    sandboxes: int

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Read it from the API's JSON."""
        return cls(pid=int(raw["pid"]), sandboxes=int(raw.get("sandboxes", 0)))
