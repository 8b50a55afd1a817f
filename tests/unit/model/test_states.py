"""The table of sandbox states."""

from __future__ import annotations

import pytest

from sandlot.model.states import LIFECYCLE, Recovery, State, can_become, can_follow, is_terminal


def test_every_state_has_a_row() -> None:
    assert set(LIFECYCLE) == set(State)


@pytest.mark.parametrize("state", State)
def test_every_state_can_reach_an_end(state: State) -> None:
    seen, latest = {state}, {state}
    while latest:
        latest = {successor for current in latest for successor in LIFECYCLE[current].successors} - seen
        seen |= latest
    assert any(is_terminal(each) for each in seen)


def test_stopped_and_failed_are_terminal() -> None:
    assert {state for state in State if is_terminal(state)} == {State.STOPPED, State.FAILED}


@pytest.mark.parametrize("state", State)
def test_names_of_transient_states_end_in_ing(state: State) -> None:
    assert LIFECYCLE[state].transient == (state.endswith("ing") and state is not State.RUNNING)


@pytest.mark.parametrize("state", [state for state in State if LIFECYCLE[state].transient])
def test_transient_state_has_a_successor_for_success_and_for_failure(state: State) -> None:
    assert len(LIFECYCLE[state].successors) >= 2


@pytest.mark.parametrize("state", [state for state in State if not LIFECYCLE[state].transient and not is_terminal(state)])
def test_lasting_state_can_be_stopped(state: State) -> None:
    assert can_follow(state, State.STOPPING)


def test_start_removes_only_sandboxes_that_were_being_created_or_stopped() -> None:
    assert {state for state in State if LIFECYCLE[state].recovery is Recovery.REMOVE} == {State.CREATING, State.STOPPING}


def test_start_does_nothing_with_ended_sandboxes() -> None:
    assert {state for state in State if LIFECYCLE[state].recovery is Recovery.NOTHING} == {state for state in State if is_terminal(state)}


@pytest.mark.parametrize(
    "current, later, expected",
    [
        (State.RUNNING, State.RUNNING, True),
        (State.RUNNING, State.PAUSED, True),
        (State.HIBERNATED, State.STOPPED, True),
        (State.RUNNING, State.CREATING, False),
        (State.STOPPING, State.RUNNING, False),
        (State.STOPPED, State.FAILED, False),
    ],
)
def test_later_state_is_reached_directly_or_through_others(current: State, later: State, expected: bool) -> None:  # noqa: FBT001
    assert can_become(current, later) is expected
