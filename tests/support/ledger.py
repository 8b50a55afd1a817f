"""Ledger of a schedule: what the answers to the clients' calls say about each sandbox.

Invariants:
- A register holds every change of one property. A confirmed change that began after the end of another change replaces the other change. Changes
  that overlap may have taken effect in any order.
- A refused call has changed nothing. A call whose client disconnected may still change the property.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.core.sandbox import Sandbox
from sandlot.model.ids import SandboxId
from sandlot.model.specs import GIB
from sandlot.model.states import LIFECYCLE, State

VOLUMES: Final = ("data", "logs")
"""Names of the volumes of a schedule."""


@dataclass(eq=False)
class Write:
    """One change of a property by one call.

    Args:
        begun: Moment at which the call began.
        allowed: Values that the property may have after the call.
        ended: Moment of the answer; None: the change may still take effect.
        is_certain: True once the change is confirmed.
    """

    begun: int
    allowed: frozenset[object]
    ended: int | None = None
    is_certain: bool = False


class Register:
    """Values that one property of a sandbox may have, given the calls that have changed the property."""

    def __init__(self, *values: object) -> None:
        self.writes = [Write(0, frozenset(values), 0, is_certain=True)]

    def allowed(self) -> frozenset[object]:
        """Return the possible values: those of all changes that no later change has certainly replaced. Empty: every value."""
        last = [
            write for write in self.writes if write.ended is None or not any(other.is_certain and other.begun > write.ended for other in self.writes)
        ]
        return frozenset() if any(not write.allowed for write in last) else frozenset().union(*(write.allowed for write in last))

    def is_busy(self) -> bool:
        return any(write.ended is None for write in self.writes)


@dataclass(eq=False)
class Entry:
    """What the clients know about one sandbox.

    Args:
        label: Name in the trace.
        registers: Property -> its possible values.
        ends_at_timeout: False if the sandbox is suspended when its timeout passes.
        may_end: True if the sandbox may end without a kill that was confirmed.
        is_killed: True once its end was confirmed.
        told_ended: Call that was answered that the sandbox has ended.
        is_mortal: True if a timeout may pass during the schedule, so that its state is not predictable.
    """

    id: SandboxId
    label: str
    registers: dict[str, Register]
    ends_at_timeout: bool
    may_end: bool = False
    is_killed: bool = False
    is_mortal: bool = False
    told_ended: str = ""


def view(sandbox: Sandbox) -> dict[str, object]:
    """Return the properties of a live sandbox as clients see them."""
    has = {mount.requested_as or mount.volume for mount in sandbox.spec.volumes if not mount.changing}
    return {
        "state": sandbox.state,
        "memory": sandbox.spec.limits.memory_bytes // GIB,
        "name": sandbox.name,
        "note": sandbox.metadata.get("note"),
        "timeout": sandbox.spec.timeout_s,
        **{volume: volume in has for volume in VOLUMES},
    }


def can_reach(before: State, after: State, *, through_running: bool) -> bool:
    """Return whether a path of the lifecycle leads from one state to another through states that have no event.

    Args:
        before: State after one event.
        after: State after the next event.
        through_running: True if the path may also lead through RUNNING: after a failure, a sandbox goes on without an event.
    """
    seen, waiting = set[State](), [before]
    while waiting:
        for state in LIFECYCLE[waiting.pop()].successors:
            if state is after:
                return True
            if state not in seen and (LIFECYCLE[state].transient or (through_running and state is State.RUNNING)):
                seen.add(state)
                waiting.append(state)
    return False
