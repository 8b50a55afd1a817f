"""Runs that nobody follows: ended in the log when they end, also by the next service."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.execution import code, following, processes
from sandlot.core.execution.code import CellSpec
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.ids import new_process_id, new_sandbox_id
from sandlot.model.records import ExecutionId, ExecutionRecord
from sandlot.model.specs import ProcessSpec, shell_argv
from sandlot.server.compose import Service
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.service import BASE, Bench, serving
from tests.support.until import until


def background(script: str) -> ProcessSpec:
    return ProcessSpec(argv=shell_argv(script), timeout_s=None)


async def ended(service: Service, id_: str) -> ExecutionRecord:
    """The line of a run, once it has ended."""
    found: list[ExecutionRecord] = []

    async def over() -> bool:
        found[:] = [await service.core.executions.get(OPERATOR, id_)]
        return found[0].status != "running"

    await until(over)
    return found[0]


@pytest.mark.real_guest
async def test_the_next_service_ends_the_lines_that_the_one_before_left(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.sandboxes.create(BASE, OPERATOR)
        gone = await first.sandboxes.create(BASE, OPERATOR)
        await processes.run(sandbox, ProcessSpec(argv=("mkfifo", "/tmp/first", "/tmp/second", "/tmp/third")))
        short, _ = await processes.launch(sandbox, background("echo short; read -r x < /tmp/first; echo $x >&2; exit 5"))
        long, _ = await processes.launch(sandbox, background("echo long; read -r x < /tmp/second; echo $x"))
        cell = await code.start(sandbox, CellSpec("print('cell', flush=True); print(open('/tmp/third').read(), end='')", timeout_s=None))
        events = aiter(cell)
        await anext(events)
        lost, _ = await processes.launch(gone, background("sleep 1000"))
        # While nobody serves: this one writes to all that waits.
        helper = "sleep 0.2; echo one > /tmp/first; echo three > /tmp/third"
        await processes.launch(sandbox, replace(background(helper), hidden=True))
        unknown = ExecutionRecord(
            id=ExecutionId(new_process_id()),
            owner=sandbox.owner,
            sandbox=sandbox.id,
            kind="command",
            created_at=first.core.clock.now(),
            status="running",
        )
        elsewhere = replace(unknown, id=ExecutionId(new_process_id()), sandbox=new_sandbox_id(first.node))
        await first.core.executions.flush()
        await first.store.executions.save([unknown, elsewhere])
    for instance in driver.booted:
        if instance.ref == gone.id:
            await instance.destroy()
    await asyncio.sleep(0.4)
    async with serving(tmp_path, driver, keep=True) as second:
        done = await ended(second, short)
        assert (done.status, done.exit_code, done.stdout, done.stderr) == ("exited", 5, "short\n", "one\n")
        done = await ended(second, cell.id)
        assert (done.status, done.stdout) == ("ok", "cell\nthree\n")
        assert {(await ended(second, id_)).status for id_ in (unknown.id, elsewhere.id)} == {"lost"}
        assert (await ended(second, lost)).status in {"lost", "killed"}
        again = second.core.registry.find(sandbox.id, OPERATOR)
        await processes.run(again, ProcessSpec(argv=shell_argv("echo two > /tmp/second")))
        done = await ended(second, long)
        assert (done.status, done.stdout) == ("exited", "long\ntwo\n")
        assert done.duration_s is not None
        assert done.duration_s > 0.4
        await second.sandboxes.kill(sandbox.id, OPERATOR)


async def test_the_end_of_a_sandbox_ends_its_lines(at: Bench, sandbox: Sandbox) -> None:
    id_, _ = await processes.launch(sandbox, background("echo x; sleep 1000"))
    await at.sandboxes.kill(sandbox.id, OPERATOR)
    assert (await ended(at.service, id_)).status == "killed"


async def test_any_number_of_processes_leaves_calls_for_others(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "WAITS", 2)
    monkeypatch.setattr(following, "LOOK_S", 0.05)
    ids = [(await processes.launch(sandbox, background(f"sleep 0.2; echo {number}")))[0] for number in range(8)]
    waits = at.service.core.executions.waits
    await until(lambda: waits[sandbox.id] == 2)
    assert [(await ended(at.service, id_)).stdout for id_ in ids] == [f"{number}\n" for number in range(8)]
    assert not waits


async def test_sixteen_calls_of_a_sandbox_wait_for_process_ends_at_most(at: Bench, sandbox: Sandbox) -> None:
    guest = at.driver.guest(sandbox.ref)

    for _ in range(20):
        await processes.launch(sandbox, background("sleep 1000"))
    await processes.listing(sandbox)  # after all requests that the launches caused

    assert len(guest.requests("process.wait")) == 16


async def test_background_process_does_not_count_as_activity(at: Bench, sandbox: Sandbox) -> None:
    guest = at.driver.guest(sandbox.ref)

    await processes.launch(sandbox, background("sleep 1000"))
    await processes.listing(sandbox)

    assert len(guest.requests("process.wait")) == 1
    assert sandbox.activity.held == 0


async def test_the_end_of_a_sandbox_ends_the_lines_of_those_too_for_which_no_call_was_left(
    at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "WAITS", 1)
    ids = [(await processes.launch(sandbox, background("sleep 1000")))[0] for _ in range(4)]
    await until(lambda: at.service.core.executions.waits[sandbox.id] == 1)
    await at.sandboxes.kill(sandbox.id, OPERATOR)
    assert [(await ended(at.service, id_)).status for id_ in ids] == ["killed"] * 4
