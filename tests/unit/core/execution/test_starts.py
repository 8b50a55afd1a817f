"""Starts that are cancelled or interrupted: no process and no cell remains that is not counted and logged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.core.execution import execution
from sandlot.core.execution.state import State
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import SandlotError
from sandlot.model.executions import NATIVE, ExecutionOptions
from sandlot.model.ids import new_process_id
from sandlot.model.packages import InstallParams, Manager
from sandlot.model.sandboxes import CreateSandboxParams
from sandlot.model.specs import CellSpec, ProcessSpec
from tests.support.node import MemoryNode, NodeState, open_node, run_pending, settled

Start = Callable[[MemoryNode, Sandbox, ExecutionOptions], Awaitable[object]]

CELL = CellSpec("wait", timeout_s=None)
SLEEP = ProcessSpec(("sleep", "1000"), timeout_s=None)

STARTS: dict[str, Start] = {
    "launched process": lambda node, sandbox, options: node.services.processes.launch(OPERATOR, sandbox.id, SLEEP, options=options),
    "launched process with input": lambda node, sandbox, options: node.services.processes.launch(
        OPERATOR, sandbox.id, SLEEP, stdin=b"x", options=options
    ),
    "foreground process": lambda node, sandbox, options: node.services.processes.run(OPERATOR, sandbox.id, SLEEP, options=options),
    "install": lambda node, sandbox, options: node.services.packages.install(OPERATOR, sandbox.id, InstallParams(Manager.PIP, ("a",)), options),
    "launched cell": lambda node, sandbox, options: node.services.code.launch(OPERATOR, sandbox.id, CELL, options),
    "foreground cell": lambda node, sandbox, options: node.services.code.run(OPERATOR, sandbox.id, CELL, options),
}
TURNS = 40
"""Turns of the event loop after which a start in memory has returned."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[MemoryNode, set[object]]]:
    """A node, and the cells and package managers that run on it."""
    state, running = NodeState(folder), set[object]()

    async def wait(_: object) -> None:
        token = object()
        running.add(token)
        try:
            await asyncio.Event().wait()
        finally:
            running.discard(token)

    state.driver.scripts.cells["wait"] = wait
    state.driver.scripts.programs["/bin/sh"] = wait
    async with open_node(state) as node:
        yield node, running


async def made(node: MemoryNode) -> Sandbox:
    return await node.sandboxes.create(OPERATOR, CreateSandboxParams(template="base"))


async def statuses(node: MemoryNode, sandbox: Sandbox) -> list[str]:
    """Return the statuses of the log entries of a sandbox."""
    return [record.status for record in (await node.services.history.executions(OPERATOR, sandbox=sandbox.id)).items]


def of_guest(node: MemoryNode, sandbox: Sandbox, running: set[object]) -> int:
    """Return the number of executions that run in a sandbox."""
    return len([process for process in node.guest(sandbox).processes.running if process.args["argv"][0] == "sleep"]) + len(running)


def is_settled(node: MemoryNode, sandbox: Sandbox, running: set[object]) -> bool:
    """Return True if no execution of a sandbox is being started or stopped, and the service knows all that run."""
    live = node.services.code.executions.table.of(sandbox).live.values()
    return all(each.state is State.UNATTENDED for each in live) and of_guest(node, sandbox, running) == len(live)


@pytest.mark.parametrize("chosen", [None, "id of the client"])
@pytest.mark.parametrize("name", STARTS)
async def test_cancelled_start_leaves_nothing_uncounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, chosen: str | None) -> None:
    monkeypatch.setattr(execution, "AWAY_S", 0.0)
    async with opened(tmp_path) as (node, running):
        for turns in range(TURNS):
            sandbox, used = await made(node), node.internals.execution_counter.used(OPERATOR.owner)
            starting = asyncio.ensure_future(STARTS[name](node, sandbox, ExecutionOptions(id=new_process_id()) if chosen else NATIVE))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait({starting})
            await run_pending()
            await settled(lambda sandbox=sandbox: is_settled(node, sandbox, running))  # type: ignore[misc]

            entries, ran = await statuses(node, sandbox), of_guest(node, sandbox, running)
            assert ran == entries.count("running"), f"cancelled after {turns} turns: {ran} executions run, and the log has {entries}"
            assert node.internals.execution_counter.used(OPERATOR.owner) - used == len(entries), f"cancelled after {turns} turns"
            await node.sandboxes.kill(OPERATOR, sandbox.id)
            running.clear()


@pytest.mark.parametrize("name", ["launched process", "launched process with input", "launched cell"])
async def test_launch_that_is_cancelled_before_its_answer_arrives_leaves_nothing(tmp_path: Path, name: str) -> None:
    async with opened(tmp_path) as (node, running):
        sandbox, answers = await made(node), list[bytes]()
        stream = node.guest(sandbox).stream
        assert stream is not None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stream, "put", answers.append)
            launching = asyncio.ensure_future(STARTS[name](node, sandbox, NATIVE))
            await run_pending()
            assert of_guest(node, sandbox, running) == 1
            launching.cancel()
            await asyncio.wait({launching})
        for answer in answers:
            stream.put(answer)

        await settled(lambda: of_guest(node, sandbox, running) == 0)
        assert await statuses(node, sandbox) == []
        assert node.internals.execution_counter.used(OPERATOR.owner) == 0


async def test_process_whose_start_a_hibernation_interrupts_is_counted_and_logged(tmp_path: Path) -> None:
    async with opened(tmp_path) as (node, _):
        sandbox = await made(node)
        start = node.guest(sandbox).hold("process.start")
        launching = asyncio.ensure_future(node.services.processes.launch(OPERATOR, sandbox.id, SLEEP))
        await start.reached.wait()

        await node.sandboxes.hibernate(OPERATOR, sandbox.id)
        with pytest.raises(SandlotError):
            await launching

        assert await statuses(node, sandbox) == ["running"]
        assert node.internals.execution_counter.used(OPERATOR.owner) == 1
        await node.sandboxes.resume(OPERATOR, sandbox.id)
        await settled(lambda: not sandbox.tasks)
        assert await statuses(node, sandbox) == ["lost"], "the guest had not started the process"


async def test_process_that_the_guest_refuses_is_neither_counted_nor_killed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (node, _):
        sandbox = await made(node)
        guest = node.guest(sandbox)
        guest.fail_next("process.start", "not_found")

        with pytest.raises(SandlotError):
            await node.services.processes.launch(OPERATOR, sandbox.id, SLEEP)
        await settled(lambda: not sandbox.tasks)

        assert guest.requests("process.signal") == []
        assert await statuses(node, sandbox) == []
        assert node.internals.execution_counter.used(OPERATOR.owner) == 0
