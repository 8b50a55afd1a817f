"""The states of a sandbox and the only transitions between them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a sandbox is in its life."""

    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


#: state -> the states that may follow it.
TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.CREATING: frozenset({State.RUNNING, State.STOPPING, State.FAILED}),
        State.RUNNING: frozenset({State.STOPPING, State.FAILED}),
        State.STOPPING: frozenset({State.STOPPED, State.FAILED}),
        State.STOPPED: frozenset(),
        State.FAILED: frozenset(),
    }
)


def may_follow(now: State, then: State) -> bool:
    """Whether a sandbox may go from one state to the other."""
    return then in TRANSITIONS[now]


def is_terminal(state: State) -> bool:
    """Whether nothing follows."""
    return not TRANSITIONS[state]
