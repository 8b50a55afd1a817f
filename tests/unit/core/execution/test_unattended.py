"""Executions that no client follows: their log entries, and what the next service does with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.execution import code, execution
from sandlot.core.execution.packages import start_install
from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, Quota
from sandlot.model.executions import NATIVE, ExecutionOptions
from sandlot.model.ids import new_process_id, new_sandbox_id
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.packages import InstallParams, Manager
from sandlot.model.records import ExecutionId, ExecutionRecord
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import CellSpec, ProcessSpec, User, shell_argv
from sandlot.server.composition import RunningService
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.node import NodeState, open_node, settled
from tests.support.service import BASE, Bench, serving
from tests.support.until import until

ENDLESS = CellSpec("import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)", timeout_s=None)
GATED = CellSpec("import os, time\nwhile not os.path.exists('/tmp/gate'): time.sleep(0.05)\nprint('end')", timeout_s=None)
OPEN = ProcessSpec(argv=("touch", "/tmp/gate"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "BACK_S", 0.5)
    monkeypatch.setattr(execution, "AWAY_S", 0.3)


async def found(service: RunningService, sandbox: Sandbox) -> Sandbox:
    again = service.internals.registry.find(sandbox.id, OPERATOR)
    await again.wait_reachable()
    return again


async def status(service: RunningService, id_: str) -> str:
    return (await service.node.history.execution(OPERATOR, id_)).status


async def begun(node: Node, sandbox: Sandbox, cell: CellSpec, options: ExecutionOptions = NATIVE) -> code.CodeExecution:
    """A cell in the foreground whose turn has come."""
    running = await node.code.start(sandbox, cell, options)
    await anext(aiter(running))
    return running


@pytest.mark.real_guest
async def test_inherited_cell_without_clients_is_interrupted(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(OPERATOR, BASE)
        left = await begun(first.node, sandbox, ENDLESS)
        kept = await first.node.code.launch(
            OPERATOR, sandbox.id, replace(GATED, context="bash", language="bash", code="until [ -e /tmp/gate ]; do sleep 0.05; done")
        )
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        await until(lambda: status_is(second, left.id, "killed"))
        assert (await second.node.code.read(OPERATOR, sandbox.id, left.id, wait_s=None)).outcome.status == "error"
        assert set(second.node.code.executions.table.of(sandbox).live) == {kept}
        assert (sandbox.activity.held, await status(second, kept)) == (1, "running"), (
            "the one in the background goes on, and it alone keeps the sandbox"
        )
        await second.node.processes.run(OPERATOR, sandbox.id, OPEN)
        await until(lambda: status_is(second, kept, "ok"))
        await until(lambda: sandbox.activity.held == 0)


async def status_is(service: RunningService, id_: str, wanted: str) -> bool:
    return await status(service, id_) == wanted


@pytest.mark.real_guest
async def test_inherited_cell_goes_on_until_its_client_leaves(tmp_path: Path, driver: MemoryDriver) -> None:
    joined, followed = new_process_id(), new_process_id()
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(OPERATOR, BASE)
        await begun(first.node, sandbox, GATED, ExecutionOptions(id=joined))
        await first.node.code.start(sandbox, replace(ENDLESS, code=ENDLESS.code), ExecutionOptions(id=followed))
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        waiting = asyncio.create_task(second.node.code.run(OPERATOR, sandbox.id, GATED, ExecutionOptions(id=joined)))
        follower = await second.node.code.follow(OPERATOR, sandbox.id, followed)
        await asyncio.sleep(1.0)  # longer than it is waited for somebody
        assert {await status(second, id_) for id_ in (joined, followed)} == {"running"}
        await second.node.processes.run(OPERATOR, sandbox.id, OPEN)
        done = await waiting
        assert (done.outcome.status, done.stdout.text()) == ("ok", "end\n")
        await follower.aclose()
        await until(lambda: status_is(second, followed, "killed"))
        await until(lambda: sandbox.activity.held == 0)
        assert await status(second, joined) == "ok"


@pytest.mark.real_guest
async def test_inherited_process_goes_on_and_keeps_no_sandbox_active(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(OPERATOR, BASE)
        left = await first.node.processes.start(
            sandbox, ProcessSpec(argv=shell_argv("until [ -e /tmp/gate ]; do sleep 0.05; done; echo end"), timeout_s=None)
        )
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        await asyncio.sleep(1.0)
        assert (await status(second, left.id), sandbox.activity.held) == ("running", 0)
        await second.node.processes.run(OPERATOR, sandbox.id, OPEN)
        await until(lambda: status_is(second, left.id, "exited"))


async def test_inherited_install_has_package_access_until_its_end(tmp_path: Path, driver: MemoryDriver) -> None:
    manager = "#!/bin/sh\nuntil [ -e /tmp/gate ]; do sleep 0.05; done\n"
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(OPERATOR, replace(BASE, network=NetworkPolicy(NetworkMode.NONE)))
        put = ProcessSpec(argv=shell_argv("cat > /usr/local/bin/uv; chmod 755 /usr/local/bin/uv"), user=User.ROOT, stdin=True)
        await first.node.processes.run(OPERATOR, sandbox.id, put, stdin=manager.encode())
        await start_install(first.node.processes, sandbox, InstallParams(Manager.PIP, ("a",)), Quota())
        await first.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(argv=shell_argv("sleep 1000"), timeout_s=None))
        assert first.node.processes.executions.access.is_open(sandbox)
    async with serving(tmp_path, driver, keep=True) as second:
        sandbox = await found(second, sandbox)
        assert second.node.processes.executions.access.is_open(sandbox)
        await second.node.processes.run(OPERATOR, sandbox.id, OPEN)
        await until(lambda: not second.node.processes.executions.access.is_open(sandbox))


async def wait_for_ever(_: object) -> None:
    """Run a cell or a program that does not end by itself."""
    await asyncio.Event().wait()


async def test_inherited_cell_counts_followers_before_its_sandbox_is_recovered(tmp_path: Path) -> None:
    state, id_ = NodeState(tmp_path), new_process_id()
    state.driver.scripts.cells["wait"] = wait_for_ever
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        await node.services.code.start(sandbox, CellSpec("wait", timeout_s=None), ExecutionOptions(id=id_))

    recovery = state.driver.hold("adopt")
    async with open_node(state) as node:
        again = node.sandboxes.find(sandbox.id, OPERATOR)
        running = node.services.code.executions.get(again, id_)
        assert running is not None

        recovery.set()
        follower = await node.services.code.follow(OPERATOR, again.id, id_)
        assert len(running.clients) >= 1
        await follower.aclose()


async def test_inherited_install_has_package_access_before_its_sandbox_is_recovered(tmp_path: Path) -> None:
    state, gate = NodeState(tmp_path), asyncio.Event()

    async def manager(_: object) -> None:
        await gate.wait()

    state.driver.scripts.programs["/bin/sh"] = manager
    async with open_node(state, keep_sandboxes=True) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base", network=NetworkPolicy(NetworkMode.NONE)))
        await start_install(node.services.processes, sandbox, InstallParams(Manager.PIP, ("a",)), Quota())

    recovery = state.driver.hold("adopt")
    async with open_node(state) as node:
        again = node.sandboxes.find(sandbox.id, OPERATOR)
        assert node.services.processes.executions.access.is_open(again)

        recovery.set()
        gate.set()
        await settled(lambda: not node.services.processes.executions.access.is_open(again))


def background(script: str) -> ProcessSpec:
    return ProcessSpec(argv=shell_argv(script), timeout_s=None)


async def ended(service: RunningService, id_: str) -> ExecutionRecord:
    """The line of a run, once it has ended."""
    found: list[ExecutionRecord] = []

    async def over() -> bool:
        found[:] = [await service.node.history.execution(OPERATOR, id_)]
        return found[0].status != "running"

    await until(over)
    return found[0]


@pytest.mark.real_guest
async def test_next_service_ends_the_entries_that_the_last_one_left_open(tmp_path: Path, driver: MemoryDriver) -> None:
    async with serving(tmp_path, driver, keep=True) as first:
        sandbox = await first.internals.manager.create(OPERATOR, BASE)
        gone = await first.internals.manager.create(OPERATOR, BASE)
        await first.node.processes.run(OPERATOR, sandbox.id, ProcessSpec(argv=("mkfifo", "/tmp/first", "/tmp/second", "/tmp/third")))
        short = (
            await first.node.processes.launch(OPERATOR, sandbox.id, background("echo short; read -r x < /tmp/first; echo $x >&2; exit 5"))
        ).process
        long = (await first.node.processes.launch(OPERATOR, sandbox.id, background("echo long; read -r x < /tmp/second; echo $x"))).process
        cell = await first.node.code.start(sandbox, CellSpec("print('cell', flush=True); print(open('/tmp/third').read(), end='')", timeout_s=None))
        events = aiter(cell)
        await anext(events)
        lost = (await first.node.processes.launch(OPERATOR, gone.id, background("sleep 1000"))).process
        # Writes to the processes and the cell while no service runs.
        helper = "sleep 0.2; echo one > /tmp/first; echo three > /tmp/third"
        await first.node.processes.launch(OPERATOR, sandbox.id, background(helper))
        unknown = ExecutionRecord(
            id=ExecutionId(new_process_id()),
            owner=sandbox.owner,
            sandbox=sandbox.id,
            kind="command",
            created_at=first.internals.clock.now(),
            status="running",
        )
        elsewhere = replace(unknown, id=ExecutionId(new_process_id()), sandbox=new_sandbox_id(first.node.id))
        await first.internals.execution_log.writer.flush()
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
        again = second.internals.registry.find(sandbox.id, OPERATOR)
        await second.node.processes.run(OPERATOR, again.id, ProcessSpec(argv=shell_argv("echo two > /tmp/second")))
        done = await ended(second, long)
        assert (done.status, done.stdout) == ("exited", "long\ntwo\n")
        assert done.duration_s is not None
        assert done.duration_s > 0.4
        await second.internals.manager.kill(OPERATOR, sandbox.id)


async def test_end_of_a_sandbox_ends_its_log_entries(at: Bench, sandbox: Sandbox) -> None:
    id_ = (await at.node.processes.launch(OPERATOR, sandbox.id, background("echo x; sleep 1000"))).process
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    assert (await ended(at.service, id_)).status == "killed"


async def test_waits_for_many_processes_leave_calls_of_the_link_free(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "MAX_WAITS", 2)
    monkeypatch.setattr(execution, "POLL_S", 0.05)
    ids = [(await at.node.processes.launch(OPERATOR, sandbox.id, background(f"sleep 0.2; echo {number}"))).process for number in range(8)]
    waits = at.node.processes.executions.waits
    await until(lambda: waits[sandbox.id] == 2)
    assert [(await ended(at.service, id_)).stdout for id_ in ids] == [f"{number}\n" for number in range(8)]
    assert not waits


async def test_sixteen_calls_of_a_sandbox_wait_for_process_ends_at_most(at: Bench, sandbox: Sandbox) -> None:
    guest = at.driver.guest(sandbox.ref)

    for _ in range(20):
        await at.node.processes.launch(OPERATOR, sandbox.id, background("sleep 1000"))
    await at.node.processes.list(OPERATOR, sandbox.id)  # after all requests that the launches caused

    assert len(guest.requests("process.wait")) == 16


async def test_background_process_does_not_count_as_activity(at: Bench, sandbox: Sandbox) -> None:
    guest = at.driver.guest(sandbox.ref)

    await at.node.processes.launch(OPERATOR, sandbox.id, background("sleep 1000"))
    await at.node.processes.list(OPERATOR, sandbox.id)

    assert len(guest.requests("process.wait")) == 1
    assert sandbox.activity.held == 0


async def test_end_of_a_sandbox_ends_the_entries_of_processes_without_a_waiting_call(
    at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "MAX_WAITS", 1)
    ids = [(await at.node.processes.launch(OPERATOR, sandbox.id, background("sleep 1000"))).process for _ in range(4)]
    await until(lambda: at.node.processes.executions.waits[sandbox.id] == 1)
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    assert [(await ended(at.service, id_)).status for id_ in ids] == ["killed"] * 4


async def test_wake_leaves_the_log_entries_of_ended_executions_alone(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))
        await node.services.processes.run(OPERATOR, sandbox.id, ProcessSpec(("true",)))
        guest = node.guest(sandbox)
        await node.sandboxes.hibernate(OPERATOR, sandbox.id)

        await node.sandboxes.resume(OPERATOR, sandbox.id)
        await settled(lambda: not sandbox.tasks)

        assert guest.requests("process.wait") == []
        assert node.guest(sandbox).requests("process.wait") == []
