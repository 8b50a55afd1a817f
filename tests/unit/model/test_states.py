"""The table of states."""

from __future__ import annotations

from sandlot.model.states import SETTLEMENT, TRANSITIONS, Settlement, State, is_half_done, is_terminal


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(State) == set(SETTLEMENT)


def test_every_life_ends_and_nothing_follows_the_end() -> None:
    assert {state for state in State if is_terminal(state)} == {State.STOPPED, State.FAILED}
    for state in State:
        seen, front = {state}, {state}
        while front:
            front = {after for before in front for after in TRANSITIONS[before]} - seen
            seen |= front
        assert any(is_terminal(reached) for reached in seen)


def test_what_is_half_done_says_so_and_leads_somewhere() -> None:
    half = {state for state in State if is_half_done(state)}
    assert half == {State.CREATING, State.PAUSING, State.SNAPSHOTTING, State.HIBERNATING, State.WAKING, State.STOPPING}
    for state in half:
        assert len(TRANSITIONS[state]) >= 2, "work can fail"
    for state in set(State) - half:
        assert State.STOPPING in TRANSITIONS[state] or is_terminal(state), "whatever lasts can be ended"


def test_a_start_removes_only_what_nobody_was_told_of_or_what_was_to_end() -> None:
    assert {state for state in State if SETTLEMENT[state] is Settlement.REMOVE} == {State.CREATING, State.STOPPING}
    assert {state for state in State if SETTLEMENT[state] is Settlement.NOTHING} == {state for state in State if is_terminal(state)}
