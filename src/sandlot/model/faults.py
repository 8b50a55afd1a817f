"""Fault classes: the cause of a failed request, run or sandbox, by which a client decides what to do.

The class of an error follows from its code (``model/errors.py``), that of a sandbox from the reason of its end (``model/ports.py``), that of a run
from its status (``model/executions.py``) and that of a program from its verdict (``core/programs/verdict.py``). The tables are total. Classes
are computed when a value is read and are not stored.
"""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """Cause of a failure. Nothing has failed if there is no class (None)."""

    CODE = "code"
    """The program in the sandbox failed: an exception, an exit code other than 0, a signal, or its own timeout."""
    REQUEST = "request"
    """The request is invalid, not allowed, or about something that does not exist or has ended as requested."""
    LIMIT = "limit"
    """A limit was reached that the owner of the sandbox or the operator can raise: memory, disk, processes, output or a quota."""
    CAPACITY = "capacity"
    """The node has no room now. The same request may succeed later or on another node."""
    PLATFORM = "platform"
    """Sandlot or its host failed."""
    LOST = "lost"
    """The sandbox or snapshot was lost by a failure, together with its state."""


def known_fault(value: object) -> Fault | None:
    """Return the fault class with this value; None if there is none, for example because a newer service sent the value."""
    return Fault(value) if isinstance(value, str) and value in Fault.__members__.values() else None
