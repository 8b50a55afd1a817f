"""The plan of a change of limits: every intermediate state is safe, and every prefix can be undone."""

from __future__ import annotations

import itertools

import pytest

from sandlot.core.lifecycle.update import GuestStep, HostStep, Step, plan_limits
from sandlot.model.specs import GIB, Limits

NOW = Limits(pids=200, memory_bytes=2 * GIB, cpus=1.0)
TO = [
    Limits(pids=pids, memory_bytes=memory_bytes, cpus=cpus)
    for pids, memory_bytes, cpus in itertools.product((100, 200, 300), (GIB, 2 * GIB, 4 * GIB), (1.0, 2.0))
]
GUEST_PIDS = (100, 200)


def run(step: Step, host: Limits, guest_pids: int) -> tuple[Limits, int]:
    """Return the limits of the host and of the guest after a step, whose precondition must hold."""
    if isinstance(step, GuestStep):
        assert step.before == guest_pids
        guest_pids = step.pids
    else:
        assert (step.before, step.guest_pids) == (host, guest_pids)
        host = step.limits
    assert guest_pids <= host.pids
    return host, guest_pids


@pytest.mark.parametrize("to, guest_pids", [*itertools.product(TO, GUEST_PIDS)])
def test_plan_reaches_the_new_limits_and_every_prefix_can_be_undone(to: Limits, guest_pids: int) -> None:
    steps = plan_limits(NOW, guest_pids, to)
    states = [(NOW, guest_pids)]
    for step in steps:
        states.append(run(step, *states[-1]))
    assert states[-1] == (to, to.pids)

    for count in range(len(steps)):
        state = states[count + 1]
        for index in reversed(range(count + 1)):
            state = run(steps[index].undo, *state)
            assert state == states[index]


def test_equal_limits_need_no_step() -> None:
    assert plan_limits(NOW, NOW.pids, NOW) == []


@pytest.mark.parametrize("pids", [100, 300])
def test_memory_changes_after_the_guest_has_agreed(pids: int) -> None:
    *earlier, last = plan_limits(NOW, NOW.pids, Limits(pids=pids, memory_bytes=4 * GIB, cpus=1.0))
    assert isinstance(last, HostStep)
    assert last.limits.memory_bytes == 4 * GIB
    assert isinstance(earlier[-1], GuestStep)
    assert all(step.limits.memory_bytes == NOW.memory_bytes for step in earlier if isinstance(step, HostStep))
