"""A sandbox that rests: paused by stopping its processes, without isolation. Hibernation is tried on the real driver (tests/service)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.node.idle import TICK_S
from sandlot.core.runs import processes
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import HostError
from sandlot.model.specs import OnTimeout, ProcessSpec
from sandlot.model.states import State
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.clock import ManualClock
from tests.support.service import BASE, Bench, serving
from tests.support.until import until

PATIENCE_S = 30


async def _words(box: Sandbox, command: str) -> str:
    async with asyncio.timeout(PATIENCE_S):
        return (await processes.run(box, ProcessSpec(("/bin/sh", "-c", command)))).stdout.text()


def _is(box: Sandbox, state: State) -> bool:
    """Asked anew each time: it changes behind the type checker's back."""
    return box.state is state


async def test_many_requests_at_once_resume_it_once(at: Bench, box: Sandbox) -> None:
    await at.sandboxes.pause(box.id, OPERATOR)
    assert await asyncio.gather(*(_words(box, f"echo {number}") for number in range(5))) == [f"{number}\n" for number in range(5)]


async def test_another_timeout_can_be_given_when_it_goes_on(at: Bench, clock: ManualClock) -> None:
    box = await at.sandboxes.create(replace(BASE, timeout_s=100), OPERATOR)
    await at.sandboxes.pause(box.id, OPERATOR)
    await at.sandboxes.resume(box.id, OPERATOR, timeout_s=7)
    assert box.deadline_monotonic_s == clock.monotonic_s() + 7
    await at.sandboxes.resume(box.id, OPERATOR, timeout_s=None)
    assert box.expires_at is None


async def test_what_cannot_be_hibernated_at_its_timeout_is_paused(at: Bench, clock: ManualClock) -> None:
    box = await at.sandboxes.create(replace(BASE, timeout_s=50, on_timeout=OnTimeout.HIBERNATE), OPERATOR)
    clock.advance(51)
    await until(lambda: box.state is State.PAUSED)


async def test_one_that_idles_may_rest_instead_of_ending(at: Bench, clock: ManualClock) -> None:
    box = await at.sandboxes.create(replace(BASE, idle_timeout_s=60, on_timeout=OnTimeout.PAUSE), OPERATOR)
    for _ in range(40):
        await at.pass_idly(clock, 2 * TICK_S)
        if box.state is State.PAUSED:
            break
    await until(lambda: box.state is State.PAUSED)


@pytest.mark.parametrize("step", ["pause", "resume"])
async def test_a_driver_that_fails_leaves_it_as_it_was(at: Bench, box: Sandbox, step: str) -> None:
    if step == "resume":
        await at.sandboxes.pause(box.id, OPERATOR)
    was = box.state
    at.driver.faults.raises[step] = [OSError("no")]
    with pytest.raises(HostError):
        await (at.sandboxes.pause if step == "pause" else at.sandboxes.resume)(box.id, OPERATOR)
    assert _is(box, was)
    assert await _words(box, "echo on") == "on\n"


async def test_a_paused_one_stays_so_over_a_restart_of_the_service(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as service:
        box = await service.sandboxes.create(BASE, OPERATOR)
        await _words(box, "echo kept > /tmp/kept")
        await service.sandboxes.pause(box.id, OPERATOR)
    async with serving(tmp_path, driver) as service:
        again = service.sandboxes.find(box.id, OPERATOR)
        await asyncio.wait_for(again.adopted.wait(), PATIENCE_S)
        assert _is(again, State.PAUSED)
        assert driver.booted[0].is_paused
        assert await _words(again, "cat /tmp/kept") == "kept\n"
        assert _is(again, State.RUNNING)
