"""The state table of executions: every pair of state and event."""

from __future__ import annotations

import itertools

import pytest

from sandlot.core.execution.state import Action, Event, Kind, State, holds_activity, step
from sandlot.model.errors import InternalError

END = [Action.END_ENTRY, Action.RELEASE]
KILLED = [Action.END_KILLED, Action.RELEASE]
GONE = [Action.END_GONE, Action.RELEASE]
LOST = [Action.END_LOST, Action.RELEASE]
LEAVE = [Action.LEAVE_ENTRY, Action.RELEASE]

EXPECTED: dict[State, dict[Event, tuple[State, list[Action]]]] = {
    State.STARTING: {
        Event.STARTED: (State.FOLLOWED, [Action.BEGIN_ENTRY]),
        Event.LAUNCHED: (State.UNATTENDED, [Action.BEGIN_ENTRY]),
        Event.NOT_STARTED: (State.ENDED, [Action.STOP, Action.RELEASE]),
        Event.CLIENT_FOLLOWS: (State.STARTING, []),
        Event.CLIENT_LEAVES: (State.STARTING, []),
        Event.GUEST_ENDS: (State.ENDED, END),
        Event.FORGOTTEN: (State.ENDED, LOST),
        Event.GONE: (State.ENDED, GONE),
        Event.SUSPENDED: (State.LEFT, [Action.BEGIN_ENTRY, *LEAVE]),
    },
    State.FOLLOWED: {
        Event.OWNER_LEAVES: (State.STOPPING, [Action.STOP]),
        Event.OWNER_AWAY: (State.LINGERING, [Action.WAIT_AWAY]),
        Event.OWNER_DETACHES: (State.UNATTENDED, []),
        Event.CLIENT_FOLLOWS: (State.FOLLOWED, []),
        Event.CLIENT_LEAVES: (State.FOLLOWED, []),
        Event.GUEST_ENDS: (State.ENDED, END),
        Event.FORGOTTEN: (State.ENDED, LOST),
        Event.GONE: (State.ENDED, GONE),
        Event.SUSPENDED: (State.LEFT, LEAVE),
    },
    State.LINGERING: {
        Event.CLIENT_FOLLOWS: (State.FOLLOWED, []),
        Event.TIMER_ENDS: (State.STOPPING, [Action.STOP]),
        Event.GUEST_ENDS: (State.ENDED, END),
        Event.FORGOTTEN: (State.ENDED, LOST),
        Event.GONE: (State.ENDED, GONE),
        Event.SUSPENDED: (State.LEFT, LEAVE),
    },
    State.UNATTENDED: {
        Event.CLIENT_FOLLOWS: (State.UNATTENDED, []),
        Event.CLIENT_LEAVES: (State.UNATTENDED, []),
        Event.GUEST_ENDS: (State.ENDED, END),
        Event.FORGOTTEN: (State.ENDED, LOST),
        Event.GONE: (State.ENDED, GONE),
        Event.SUSPENDED: (State.LEFT, LEAVE),
    },
    State.STOPPING: {
        Event.CLIENT_FOLLOWS: (State.STOPPING, []),
        Event.CLIENT_LEAVES: (State.STOPPING, []),
        Event.GUEST_ENDS: (State.ENDED, KILLED),
        Event.FORGOTTEN: (State.ENDED, LOST),
        Event.GONE: (State.ENDED, GONE),
        Event.SUSPENDED: (State.LEFT, LEAVE),
    },
    State.LEFT: {
        Event.FOUND_CELL: (State.LINGERING, [Action.WAIT_BACK]),
        Event.FOUND: (State.UNATTENDED, []),
        Event.CLIENT_FOLLOWS: (State.LEFT, []),
        Event.CLIENT_LEAVES: (State.LEFT, []),
        Event.FORGOTTEN: (State.ENDED, LOST),
        Event.GONE: (State.ENDED, GONE),
        Event.SUSPENDED: (State.LEFT, LEAVE),
    },
    State.ENDED: {Event.CLIENT_LEAVES: (State.ENDED, [])},
}


@pytest.mark.parametrize("state,event", list(itertools.product(State, Event)))
def test_each_pair_has_its_transition_or_is_refused(state: State, event: Event) -> None:
    expected = EXPECTED[state].get(event)
    if expected is None:
        with pytest.raises(InternalError):
            step(state, event)
    else:
        after, actions = step(state, event)
        assert (after, list(actions)) == expected


@pytest.mark.parametrize("state,kind", list(itertools.product(State, Kind)))
def test_activity_is_held_until_the_end_but_not_by_unattended_processes(state: State, kind: Kind) -> None:
    expected = state not in {State.LEFT, State.ENDED} and (state is not State.UNATTENDED or kind is Kind.CELL)
    assert holds_activity(state, kind) == expected
