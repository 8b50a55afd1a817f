"""The table of context states: complete, and correct for every order of events."""

from __future__ import annotations

import pytest

from sandlot.guest.kernels import context_state as states
from sandlot.guest.kernels.context_state import REPORTED, TRANSITIONS, step
from sandlot.protocol.schema import KERNEL_STATES

STATES = list(TRANSITIONS)
EVENTS = sorted({event for row in TRANSITIONS.values() for event in row})
ENDING = [states.ENDING_START, states.ENDING_IDLE, states.ENDING_CELL, states.ENDING_REMOVED]
CELL_RUNS = [states.SENT, states.RUNNING, states.INTERRUPTING_SENT, states.INTERRUPTING]
HAS_PROCESS = [states.STARTING, states.IDLE, *CELL_RUNS]


def run(*events: str, start: str = states.STOPPED) -> tuple[str, list[str]]:
    """Return the state after some events, and all their actions."""
    state = start
    performed: list[str] = []
    for event in events:
        state, actions = step(state, event)
        performed.extend(actions)
    return state, performed


def reachable(start: str) -> set[str]:
    """Return the states that can follow a state."""
    found, pending = {start}, [start]
    while pending:
        for successor, _ in TRANSITIONS[pending.pop()].values():
            if successor not in found:
                found.add(successor)
                pending.append(successor)
    return found


def test_every_state_is_reachable_and_reported() -> None:
    assert reachable(states.STOPPED) == set(STATES)
    assert set(REPORTED) == set(STATES)
    assert set(REPORTED.values()) <= set(KERNEL_STATES)


@pytest.mark.parametrize("state", [state for state in STATES if state not in {states.REMOVED, states.ENDING_REMOVED}])
def test_every_state_leads_back_to_stopped(state: str) -> None:
    assert states.STOPPED in reachable(state)


def test_first_cell_starts_a_kernel_and_is_sent_when_the_kernel_is_ready() -> None:
    state, actions = run(states.CELL_QUEUED, states.KERNEL_CREATED, states.KERNEL_READY, states.CELL_QUEUED)

    assert state == states.SENT
    assert actions == [states.START_KERNEL, states.SERVE_KERNEL, states.SETTLE_START, states.SEND_CELL]


@pytest.mark.parametrize("state", [state for state in STATES if state not in {states.STOPPED, states.IDLE}])
def test_queued_cell_waits_in_every_state_but_stopped_and_idle(state: str) -> None:
    assert step(state, states.CELL_QUEUED) == (state, ())


@pytest.mark.parametrize("state", CELL_RUNS)
def test_cell_that_was_sent_ends_once(state: str) -> None:
    assert step(state, states.CELL_DONE) == (states.IDLE, (states.FINISH_CELL,))
    assert run(states.KERNEL_ENDING, states.KERNEL_GONE, start=state)[1].count(states.FAIL_CELL) == 1
    assert run(states.KERNEL_ENDING, states.CELL_DONE, states.KERNEL_GONE, start=state) == (
        states.STOPPED,
        [states.END_KERNEL, states.FINISH_CELL, states.RELEASE_KERNEL],
    )


def test_signal_is_sent_only_after_the_cell_has_started_or_a_delay() -> None:
    assert step(states.SENT, states.INTERRUPT) == (states.INTERRUPTING_SENT, (states.DEFER_SIGNAL,))
    assert step(states.INTERRUPTING_SENT, states.CELL_STARTED) == (states.INTERRUPTING, (states.SIGNAL,))
    assert step(states.RUNNING, states.INTERRUPT) == (states.INTERRUPTING, (states.SIGNAL,))


@pytest.mark.parametrize("event", [states.INTERRUPT, states.CELL_STARTED])
def test_repeated_event_does_not_repeat_the_signal(event: str) -> None:
    assert step(states.INTERRUPTING, event) == (states.INTERRUPTING, ())


@pytest.mark.parametrize("state", [state for state in STATES if state not in CELL_RUNS])
def test_interrupt_has_no_effect_without_a_running_cell(state: str) -> None:
    assert step(state, states.INTERRUPT) == (state, ())
    assert not states.has_interruptible_cell(state)


@pytest.mark.parametrize("state", HAS_PROCESS)
def test_kernel_is_ended_once_and_released_when_it_is_gone(state: str) -> None:
    after, actions = run(states.KERNEL_ENDING, states.KERNEL_ENDING, states.KERNEL_GONE, start=state)

    assert after == states.STOPPED
    assert actions[0] == states.END_KERNEL
    assert actions.count(states.END_KERNEL) == 1
    assert actions[-1] == states.RELEASE_KERNEL


@pytest.mark.parametrize("state", ENDING)
@pytest.mark.parametrize("event", EVENTS)
def test_ending_kernel_gets_neither_cells_nor_signals(state: str, event: str) -> None:
    _, actions = step(state, event)

    assert not {states.SEND_CELL, states.SIGNAL, states.DEFER_SIGNAL, states.START_KERNEL, states.END_KERNEL} & set(actions)


def test_kernel_that_ends_before_its_first_message_is_started_in_another_way() -> None:
    assert states.RETRY_START in run(states.KERNEL_ENDING, states.KERNEL_GONE, start=states.STARTING)[1]
    assert states.RETRY_START not in run(states.KERNEL_ENDING, states.KERNEL_READY, states.KERNEL_GONE, start=states.STARTING)[1]


@pytest.mark.parametrize("state", STATES)
def test_removed_context_never_starts_a_kernel_again(state: str) -> None:
    removed = step(state, states.REMOVE)[0]

    assert reachable(removed) <= {states.ENDING_REMOVED, states.REMOVED}
    assert all(states.START_KERNEL not in actions for after in reachable(removed) for _, actions in TRANSITIONS[after].values())


def test_kernel_that_comes_after_the_removal_is_discarded() -> None:
    assert run(states.CELL_QUEUED, states.REMOVE, states.KERNEL_CREATED) == (states.REMOVED, [states.START_KERNEL, states.DISCARD_KERNEL])
