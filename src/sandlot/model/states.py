"""The states of a sandbox, the only transitions between them, and what a start of the service makes of each.

Laws:
- A state ending in ``-ing`` is half done, and the work is the service's; it is recorded before its work begins, unless a start would make the same
  of it as of the state before. All others last.
- Whatever a service was doing when it was killed, the next one finds the state, and :data:`SETTLEMENT` says how it goes on.
- ``docs/states.md`` is drawn from these tables by ``scripts/states.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a sandbox is in its life."""

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


#: state -> the states that may follow it.
TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.CREATING: frozenset({State.RUNNING, State.STOPPING, State.FAILED}),
        State.RUNNING: frozenset({State.PAUSING, State.SNAPSHOTTING, State.HIBERNATING, State.STOPPING, State.FAILED}),
        State.PAUSING: frozenset({State.PAUSED, State.RUNNING, State.STOPPING, State.FAILED}),
        State.PAUSED: frozenset({State.RUNNING, State.SNAPSHOTTING, State.HIBERNATING, State.STOPPING, State.FAILED}),
        State.SNAPSHOTTING: frozenset({State.RUNNING, State.PAUSED, State.STOPPING, State.FAILED}),
        State.HIBERNATING: frozenset({State.HIBERNATED, State.RUNNING, State.STOPPING, State.FAILED}),
        State.HIBERNATED: frozenset({State.WAKING, State.STOPPING, State.FAILED}),
        State.WAKING: frozenset({State.RUNNING, State.HIBERNATED, State.STOPPING, State.FAILED}),
        State.STOPPING: frozenset({State.STOPPED, State.FAILED}),
        State.STOPPED: frozenset(),
        State.FAILED: frozenset(),
    }
)

RESTING = frozenset({State.PAUSED, State.HIBERNATED})
"""Nothing in it runs, and nothing of its timeout passes."""


class Settlement(StrEnum):
    """What the start of a service makes of a sandbox that an earlier one left in some state."""

    ADOPT = "adopt"
    """Its instance is taken over; where there is none any more, it has ended."""
    ADOPT_OR_SLEEP = "adopt or sleep"
    """A live instance wins; without one it is what its image holds, so it sleeps."""
    SLEEP = "sleep"
    """Nothing of it lives, and nothing should: the next request wakes it."""
    REMOVE = "remove"
    """What there is of it is removed: nobody was told of it, or it was to end."""
    NOTHING = "nothing"
    """It has ended."""


#: state -> what a start makes of it.
SETTLEMENT: Mapping[State, Settlement] = MappingProxyType(
    {
        State.CREATING: Settlement.REMOVE,
        State.RUNNING: Settlement.ADOPT,
        State.PAUSING: Settlement.ADOPT,
        State.PAUSED: Settlement.ADOPT,
        State.SNAPSHOTTING: Settlement.ADOPT,
        State.HIBERNATING: Settlement.ADOPT_OR_SLEEP,
        State.HIBERNATED: Settlement.SLEEP,
        State.WAKING: Settlement.ADOPT_OR_SLEEP,
        State.STOPPING: Settlement.REMOVE,
        State.STOPPED: Settlement.NOTHING,
        State.FAILED: Settlement.NOTHING,
    }
)


def may_follow(now: State, then: State) -> bool:
    """Whether a sandbox may go from one state to the other."""
    return then in TRANSITIONS[now]


def is_terminal(state: State) -> bool:
    """Whether nothing follows."""
    return not TRANSITIONS[state]


def is_half_done(state: State) -> bool:
    """Whether the service is at work on it."""
    return state.endswith("ing") and state is not State.RUNNING
