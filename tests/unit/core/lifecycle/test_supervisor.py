"""Supervision of one sandbox: every kind of end, at every step, leaves nothing on the host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from sandlot.core.lifecycle.supervisor import state_after
from sandlot.core.resources.allocation import FIRST_PAUSE_S, LAST_PAUSE_S
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    HostError,
    InternalError,
    SandboxEndedError,
)
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.sandboxes import UpdateSandboxParams
from sandlot.model.specs import CellSpec, ProcessSpec
from sandlot.model.states import State
from tests.support.clock import ManualClock
from tests.support.service import Bench
from tests.support.until import until

PATIENCE_S = 30
"""Timeout of calls that would otherwise never return."""


async def test_timeout_of_a_sandbox_can_be_extended_and_shortened(at: Bench, sandbox: Sandbox, clock: ManualClock) -> None:
    clock.advance(200)
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(timeout_s=200))
    assert sandbox.deadline.expires_at is not None
    assert (sandbox.deadline.expires_at - clock.now()).total_seconds() == 200
    clock.advance(150)
    for _ in range(5):
        await asyncio.sleep(0)
    assert is_in(sandbox, State.RUNNING)
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(timeout_s=1))
    clock.advance(1)
    await sandbox.ended.wait()
    assert is_in(sandbox, State.STOPPED)


async def test_calls_to_a_sandbox_that_dies_fail_with_the_reason(at: Bench, sandbox: Sandbox) -> None:
    running = asyncio.create_task(at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("sleep", "100"))))
    executing = asyncio.create_task(at.node.code.run(OPERATOR, sandbox.id, CellSpec("import time; time.sleep(100)")))
    await asyncio.sleep(0.2)
    at.driver.booted[0].crash()
    for task in (running, executing):
        with pytest.raises(SandboxEndedError) as ended:
            await task
        assert ended.value.fields["reason"] == "crashed"
    await sandbox.ended.wait()
    assert sandbox.exit is not None
    assert sandbox.exit.detail.startswith("status")


async def test_guest_that_violates_the_link_protocol_loses_its_sandbox_and_affects_no_other(at: Bench, sandbox: Sandbox) -> None:
    other = await at.sandbox()
    running = asyncio.create_task(at.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(("sleep", "100"))))
    await asyncio.sleep(0.01)
    at.driver.booted[0].guest.send_garbage()
    with pytest.raises(SandboxEndedError, match="violated the link protocol"):
        await running
    await sandbox.ended.wait()
    assert is_in(sandbox, State.FAILED)
    assert sandbox.exit is not None
    assert sandbox.exit.reason is ExitReason.CRASHED
    assert "violated the link protocol" in sandbox.exit.detail
    assert (await at.node.processes.run(OPERATOR, other.id, ProcessSpec(("true",)))).outcome.exit_code == 0


async def test_sandbox_ends_when_its_guest_closes_the_link(at: Bench, sandbox: Sandbox) -> None:
    assert sandbox.link is not None
    await sandbox.link.shutdown()
    await sandbox.ended.wait()
    assert sandbox.exit is not None
    assert sandbox.exit.reason is ExitReason.EXITED
    assert is_in(sandbox, State.STOPPED)
    await _held(at, 0)


@pytest.mark.parametrize("step", ["prepare", "boot", "connect"])
async def test_failed_driver_step_fails_the_create_and_leaves_nothing(at: Bench, step: str) -> None:
    at.driver.faults.raises[step] = [HostError("no more loop devices.", code=ErrorCode.HOST_NOT_READY, hint="Free one.")]
    with pytest.raises(HostError, match="no more loop devices"):
        await at.sandbox()
    await _held(at, 0)
    assert at.driver.leftovers() == []
    assert (await at.sandbox()).state is State.RUNNING


@pytest.mark.parametrize("step", ["prepare", "boot", "connect"])
async def test_unexpected_exception_of_a_driver_is_not_disclosed(at: Bench, step: str) -> None:
    at.driver.faults.raises[step] = [KeyError("secret")]
    with pytest.raises(InternalError) as failed, capture_logs():  # which renders no traceback: that takes a second
        await at.sandbox()
    assert "secret" not in str(failed.value)
    await _held(at, 0)


async def test_error_of_the_kernel_names_the_step(at: Bench) -> None:
    at.driver.faults.raises["boot"] = [OSError(5, "Input/output error")]
    with pytest.raises(HostError, match="start the sandbox: Input/output error"):
        await at.sandbox()


async def test_create_reports_a_guest_that_ends_at_once(at: Bench) -> None:
    release = at.driver.hold("connect")
    creating = asyncio.create_task(at.sandbox())
    await at.driver.faults.reach("connect")
    at.driver.booted[0].crash()
    release.set()
    with pytest.raises(HostError, match="ended while it was starting") as failed:
        await creating
    assert failed.value.hint
    await _held(at, 0)


@pytest.mark.parametrize("step", ["prepare", "boot", "connect"])
async def test_sandbox_can_be_killed_while_it_is_created(at: Bench, step: str) -> None:
    release = at.driver.faults.hold(step)
    creating = asyncio.create_task(at.sandbox())
    await at.driver.faults.reach(step)
    (sandbox,) = at.sandboxes.list(OPERATOR)
    with pytest.raises(ConflictError, match="being created"):
        sandbox.require_link()
    killing = asyncio.create_task(at.sandboxes.kill(OPERATOR, sandbox.id))
    await asyncio.sleep(0)
    release.set()
    await killing
    with pytest.raises(SandboxEndedError):
        await creating
    assert is_in(sandbox, State.STOPPED)
    await _held(at, 0)
    await at.sandboxes.kill(OPERATOR, sandbox.id)


@pytest.mark.parametrize("step", ["prepare", "boot", "connect"])
async def test_create_whose_client_disconnects_leaves_nothing(at: Bench, step: str) -> None:
    release = at.driver.faults.hold(step)
    creating = asyncio.create_task(at.sandbox())
    await at.driver.faults.reach(step)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    release.set()
    await _held(at, 0)
    assert at.driver.leftovers() == []


async def test_create_whose_client_disconnects_while_it_waits_for_a_start_slot_leaves_nothing(at: Bench) -> None:
    release = at.driver.faults.hold("prepare")
    first = [asyncio.create_task(at.sandbox()) for _ in range(4)]
    await at.driver.faults.reach("prepare")
    waiting = asyncio.create_task(at.sandbox())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await _held(at, 4)
    release.set()
    await asyncio.gather(*first)


async def test_failed_removal_is_repeated(at: Bench, sandbox: Sandbox, clock: ManualClock) -> None:
    at.driver.faults.raises["clean"] = [OSError(16, "Device or resource busy")]
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    await until(lambda: not at.driver.faults.raises["clean"])
    assert at.sandboxes.held == 1
    clock.advance(FIRST_PAUSE_S)
    await _held(at, 0)
    assert at.driver.leftovers() == []


class Repair(asyncio.Event):
    """Set once resources can be destroyed; moves the clock past the pause before the next attempt."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def set(self) -> None:
        super().set()
        self._clock.advance(LAST_PAUSE_S)


@pytest.fixture
def broken(at: Bench, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repair]:
    """Nothing can be destroyed until this is set."""
    repair = Repair(clock)

    async def fail_until(step: str) -> None:
        if step == "destroy" and not repair.is_set():
            raise OSError(5, "Input/output error")
        await at_step(step)

    at_step = at.driver.faults.at
    monkeypatch.setattr(at.driver.faults, "at", fail_until)
    yield repair
    repair.set()


async def test_failed_create_gets_its_response_while_its_removal_keeps_failing(at: Bench, broken: Repair) -> None:
    at.driver.faults.raises["boot"] = [HostError("no more loop devices.", code=ErrorCode.HOST_NOT_READY)]
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(HostError, match="no more loop devices"):
            await at.sandbox()
    assert at.sandboxes.held == 1
    assert (await at.sandboxes.capacity()).sandboxes == 1
    broken.set()
    await _held(at, 0)


async def test_kill_gets_its_response_if_the_driver_can_neither_report_the_exit_nor_remove_the_sandbox(
    at: Bench, sandbox: Sandbox, broken: Repair, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown() -> Exit:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(at.driver.booted[0], "wait", unknown)
    async with asyncio.timeout(PATIENCE_S):
        await at.sandboxes.kill(OPERATOR, sandbox.id)
    assert is_in(sandbox, State.STOPPED)
    assert at.sandboxes.held == 1
    broken.set()
    await _held(at, 0)


async def test_end_waits_for_a_removal_that_hangs_no_longer_than_for_one_driver_step(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandlot.core.lifecycle.supervisor.STEP_TIMEOUT_S", 0.5)
    release = at.driver.faults.hold("destroy")
    at.driver.faults.raises["boot"] = [HostError("no", code=ErrorCode.HOST_NOT_READY)]
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(HostError, match="no"):
            await at.sandbox()
    assert at.sandboxes.held == 1
    release.set()
    await _held(at, 0)


def test_sandbox_counts_as_failed_only_after_an_unrequested_end() -> None:
    assert {reason: state_after(Exit(reason)) for reason in ExitReason} == {
        ExitReason.EXITED: State.STOPPED,
        ExitReason.KILLED: State.STOPPED,
        ExitReason.OOM: State.FAILED,
        ExitReason.DISK: State.FAILED,
        ExitReason.CRASHED: State.FAILED,
    }


async def _held(at: Bench, count: int) -> None:
    await until(lambda: at.sandboxes.held == count)


def is_in(sandbox: Sandbox, state: State) -> bool:
    return sandbox.state is state
