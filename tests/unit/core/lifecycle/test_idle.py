"""Idle sandboxes end, busy ones do not; the clock is the test's, the processes are real."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandlot.core.lifecycle import idle
from sandlot.core.lifecycle.idle import BUSY_SHARE, TICK_S, WINDOW_S, Background, Sample, has_idled, wants_look
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.model.access import OPERATOR
from sandlot.model.errors import InvalidRequestError
from sandlot.model.sandboxes import GuestStatus, UpdateSandboxParams
from sandlot.model.specs import OnTimeout, ProcessSpec
from sandlot.model.states import State
from tests.support.clock import ManualClock
from tests.support.service import BASE, Bench
from tests.support.until import until

LIMIT_S = 30.0
IDLE = replace(BASE, timeout_s=None, idle_timeout_s=LIMIT_S)


async def test_idle_sandbox_ends_with_the_reason(at: Bench, clock: ManualClock) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, IDLE)
    await at.pass_idly(clock, LIMIT_S - TICK_S)
    assert not sandbox.end_requested.is_set()
    await at.pass_idly(clock, 4 * TICK_S)
    await sandbox.ended.wait()
    assert sandbox.exit is not None
    assert sandbox.exit.detail == "it was idle for 30 s"


@pytest.mark.parametrize("on_timeout", [OnTimeout.KILL, OnTimeout.PAUSE])
async def test_sandbox_that_is_paused_while_its_guest_is_asked_does_not_count_as_idle(
    at: Bench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, on_timeout: OnTimeout
) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, replace(IDLE, on_timeout=on_timeout))
    asked, release = asyncio.Event(), asyncio.Event()

    async def info(_link: Link) -> GuestStatus:
        asked.set()
        await release.wait()
        return GuestStatus(generation=1, identity=sandbox.id, uptime_s=1.0, processes=1, tasks=0, cpu_s=0.0, streams=0)

    monkeypatch.setattr(Link, "info", info)
    clock.advance(LIMIT_S)
    await asked.wait()
    await at.sandboxes.pause(OPERATOR, sandbox.id)
    release.set()
    for _ in range(100):
        await asyncio.sleep(0)

    assert sandbox.state is State.PAUSED
    assert not sandbox.end_requested.is_set()


async def test_work_for_a_client_keeps_a_sandbox_alive(at: Bench, clock: ManualClock) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, IDLE)
    foreground = asyncio.create_task(at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=("sleep", "1000"), timeout_s=None)))
    await at.pass_idly(clock, 10 * LIMIT_S)
    assert not sandbox.end_requested.is_set()
    foreground.cancel()
    await asyncio.wait({foreground})
    await at.pass_idly(clock, WINDOW_S + LIMIT_S + 4 * TICK_S)
    await sandbox.ended.wait()


async def test_follower_keeps_a_sandbox_alive_until_it_disconnects(at: Bench, clock: ManualClock) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, IDLE)
    process = (await at.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(argv=("sleep", "1000"), timeout_s=None))).process
    follower = await at.node.processes.follow_in(sandbox, process, stdout_from=0, stderr_from=0)
    await at.pass_idly(clock, 10 * LIMIT_S)
    assert not sandbox.end_requested.is_set()
    await follower.detach()
    await at.pass_idly(clock, LIMIT_S + 4 * TICK_S)
    await sandbox.ended.wait()


@pytest.mark.real_guest
async def test_busy_background_process_keeps_a_sandbox_alive_and_a_sleeping_one_does_not(at: Bench, clock: ManualClock) -> None:
    works, sleeps = await at.sandboxes.create(OPERATOR, IDLE), await at.sandboxes.create(OPERATOR, IDLE)
    busy = (await at.node.processes.launch(OPERATOR, works.id, ProcessSpec(argv=("sh", "-c", "while :; do :; done"), timeout_s=None))).process
    await at.node.processes.launch(OPERATOR, sleeps.id, ProcessSpec(argv=("sleep", "1000"), timeout_s=None))
    for _ in range(8):
        await takes(works, 2 * BUSY_SHARE * TICK_S)
        await clock.pass_s(TICK_S, TICK_S)
    assert not works.end_requested.is_set()
    assert sleeps.end_requested.is_set()
    await at.node.processes.signal(OPERATOR, works.id, busy, 9)
    await at.pass_idly(clock, LIMIT_S + 4 * TICK_S)
    await works.ended.wait()


async def takes(sandbox: Sandbox, cpu_s: float) -> None:
    """Return once what runs inside has taken so much more processor time; asked in a way that does not hold it."""
    link = sandbox.require_link()
    enough_s = (await link.info()).cpu_s + cpu_s

    async def has_taken() -> bool:
        return (await link.info()).cpu_s >= enough_s

    await until(has_taken)


async def test_idle_timeout_can_be_changed_and_removed(at: Bench, clock: ManualClock) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, replace(BASE, timeout_s=None))
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(idle_timeout_s=LIMIT_S))
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(idle_timeout_s=0))
    await at.pass_idly(clock, 4 * LIMIT_S)
    assert not sandbox.end_requested.is_set()
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(idle_timeout_s=LIMIT_S))
    await at.pass_idly(clock, LIMIT_S + 4 * TICK_S)
    await sandbox.ended.wait()
    with pytest.raises(InvalidRequestError):
        replace(BASE, idle_timeout_s=1.0)


async def test_calls_of_the_idle_monitor_do_not_count_as_activity(at: Bench, clock: ManualClock) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, IDLE)
    guest, quiet_since_s = at.driver.guest(sandbox.ref), sandbox.activity.quiet_since_s

    await at.pass_idly(clock, LIMIT_S - TICK_S)

    assert len(guest.requests("guest.info")) >= (LIMIT_S - TICK_S) / TICK_S
    assert sandbox.activity.quiet_since_s == quiet_since_s


async def test_idle_sandbox_with_a_silent_guest_is_ended_after_three_misses(at: Bench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await at.sandboxes.create(OPERATOR, IDLE)
    await at.pass_idly(clock, LIMIT_S - TICK_S)
    at.driver.guest(sandbox.ref).is_silent = True
    monkeypatch.setattr(idle, "ANSWER_TIMEOUT_S", 0.001)

    await at.pass_idly(clock, 2 * TICK_S)
    assert not sandbox.end_requested.is_set()
    await at.pass_idly(clock, TICK_S)
    assert sandbox.end_requested.is_set()


def test_processor_time_counts_only_within_the_window_after_the_last_activity() -> None:
    background = Background()
    assert not background.add(Sample(0, 10.0), 0.0)
    assert background.seen_s() == 0
    assert not background.add(Sample(50, 10.0 + 50 * BUSY_SHARE * 0.9), 0.0)
    assert background.add(Sample(55, 11.0), 0.0)
    for moment in range(60, 116, 5):
        background.add(Sample(moment, 11.0), 0.0)
    assert not background.add(Sample(116, 11.0), 0.0), "what was a minute ago is over"
    assert not background.add(Sample(117, 50.0), 117.0), "somebody was there meanwhile"
    assert background.seen_s() == 0


def test_idle_timeout_passes_after_quiet_seconds_without_busy_processes() -> None:
    assert has_idled(30, 30, 0, tasks=0)
    assert not has_idled(30, 29, 30, tasks=0)
    assert not has_idled(30, 30, 29, tasks=1)
    assert has_idled(30, 31, 30, tasks=1)
    assert not has_idled(600, 700, WINDOW_S - 1, tasks=1)
    assert has_idled(600, 700, WINDOW_S, tasks=1)
    assert wants_look(30, 0)
    assert not wants_look(600, 0)
    assert wants_look(600, 540)
