"""The lifecycle of a sandbox: its states, the allowed transitions, and the recovery of each state when the service starts.

Invariants:
- In a transient state the service is working on the sandbox. Every other state lasts until a request, a timeout or the
  end of the sandbox changes it.
- A transient state is recorded before its work begins. There is one exception: the new state is not recorded if the
  recorded state has the same recovery. For example, ``pausing`` is not recorded after ``running``: both are adopted.
- Every state has one recovery, so a service that is killed at any moment leaves sandboxes that the next service can handle.
- Names of transient states end in ``-ing``. ``running`` is the only other state whose name ends in ``-ing``.

``Sandbox`` enforces :data:`LIFECYCLE`; ``scripts/reference.py`` draws ``docs/reference/sandbox-states.md`` from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """State of a sandbox."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    SNAPSHOTTING = "snapshotting"
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    WAKING = "waking"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Recovery(StrEnum):
    """Action of a starting service on a sandbox that an earlier service left behind."""

    ADOPT = "adopt"
    """Take over the live instance. If none is alive, record that the sandbox has ended."""
    ADOPT_ELSE_HIBERNATED = "adopt, else hibernated"
    """Take over the live instance. If none is alive, the sandbox is hibernated: its hibernation image is complete."""
    STAY_HIBERNATED = "stay hibernated"
    """Do nothing. The next request wakes the sandbox from its hibernation image."""
    REMOVE = "remove"
    """Remove everything that is left. Either no client has received the sandbox's id, or the sandbox was being stopped."""
    NOTHING = "nothing"
    """Do nothing, because the sandbox has ended."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of :data:`LIFECYCLE`.

    Args:
        successors: States that may follow directly; empty for the states of a sandbox that has ended.
        recovery: Action of a starting service.
        transient: True if the service is working on the sandbox in this state.
    """

    successors: tuple[State, ...]
    recovery: Recovery
    transient: bool = False


LIFECYCLE: Mapping[State, Rule] = MappingProxyType(
    {
        State.CREATING: Rule((State.RUNNING, State.STOPPING, State.FAILED), Recovery.REMOVE, transient=True),
        State.RUNNING: Rule((State.PAUSING, State.SNAPSHOTTING, State.HIBERNATING, State.STOPPING, State.FAILED), Recovery.ADOPT),
        State.PAUSING: Rule((State.RUNNING, State.PAUSED, State.STOPPING, State.FAILED), Recovery.ADOPT, transient=True),
        State.PAUSED: Rule((State.RUNNING, State.SNAPSHOTTING, State.HIBERNATING, State.STOPPING, State.FAILED), Recovery.ADOPT),
        State.SNAPSHOTTING: Rule((State.RUNNING, State.PAUSED, State.STOPPING, State.FAILED), Recovery.ADOPT, transient=True),
        State.HIBERNATING: Rule((State.RUNNING, State.HIBERNATED, State.STOPPING, State.FAILED), Recovery.ADOPT_ELSE_HIBERNATED, transient=True),
        State.HIBERNATED: Rule((State.WAKING, State.STOPPING, State.FAILED), Recovery.STAY_HIBERNATED),
        State.WAKING: Rule((State.RUNNING, State.HIBERNATED, State.STOPPING, State.FAILED), Recovery.ADOPT_ELSE_HIBERNATED, transient=True),
        State.STOPPING: Rule((State.STOPPED, State.FAILED), Recovery.REMOVE, transient=True),
        State.STOPPED: Rule((), Recovery.NOTHING),
        State.FAILED: Rule((), Recovery.NOTHING),
    }
)
"""State -> successors, recovery, transient. A test checks that the table has every state."""

SUSPENDED = frozenset({State.PAUSED, State.HIBERNATED})
"""States in which nothing inside the sandbox runs and its timeout is suspended."""


def can_follow(current: State, successor: State) -> bool:
    """Return whether a sandbox may go directly from one state to another."""
    return successor in LIFECYCLE[current].successors


def can_become(current: State, later: State) -> bool:
    """Return whether a sandbox can be in a later state: the same state, or one that it reaches directly or through other states."""
    reached, new = {current}, {current}
    while new:
        new = {successor for state in new for successor in LIFECYCLE[state].successors} - reached
        reached |= new
    return later in reached


def is_terminal(state: State) -> bool:
    """Return whether a sandbox in this state has ended."""
    return not LIFECYCLE[state].successors
