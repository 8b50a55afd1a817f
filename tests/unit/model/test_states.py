"""The table of states."""

from __future__ import annotations

from sandlot.model.states import TRANSITIONS, State, is_terminal, may_follow


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(State)


def test_every_life_ends_and_nothing_follows_the_end() -> None:
    assert {state for state in State if is_terminal(state)} == {State.STOPPED, State.FAILED}
    for state in State:
        seen, front = {state}, {state}
        while front:
            front = {after for before in front for after in TRANSITIONS[before]} - seen
            seen |= front
        assert any(is_terminal(reached) for reached in seen)


def test_no_state_is_skipped() -> None:
    assert not may_follow(State.CREATING, State.STOPPED)
    assert not may_follow(State.RUNNING, State.STOPPED)
    assert not may_follow(State.STOPPED, State.RUNNING)
    assert may_follow(State.CREATING, State.RUNNING)
