"""Events of sandboxes, snapshots and other objects of the service."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sandlot.model.faults import Fault


@dataclass(frozen=True, slots=True)
class EventInfo:
    """One event.

    Args:
        sequence: Number of the event; later events have larger ones.
        type: Type such as ``sandbox.created``. A newer service may have other types.
        at: Time of the event.
        sandbox: Id of the sandbox; None if the event is not about a sandbox.
        owner: Id of the API key that owns the object, or ``local``.
        data: Details.
        fault: Fault class if the event is a failure: ``code``, ``request``, ``limit``, ``capacity``, ``platform`` or ``lost``; otherwise None.
    """

    sequence: int
    type: str
    at: datetime
    sandbox: str | None = None
    owner: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    fault: Fault | str | None = None
