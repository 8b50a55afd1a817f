"""Work that is given up because its sandbox ends."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from sandlot.core.lifecycle.supervisor import SandboxSupervisor, SupervisionEndedError
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB
from tests.support.node import MemoryNode, NodeState, open_node, settled

BASE = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB))


async def run_turns(count: int) -> None:
    """Let the event loop run so many turns."""
    for _ in range(count):
        await asyncio.sleep(0)


async def create(node: MemoryNode) -> Sandbox:
    sandbox: Sandbox = await node.sandboxes.create(OPERATOR, BASE)
    return sandbox


async def test_cancelled_work_has_ended_before_its_caller_continues(tmp_path: Path) -> None:
    cancelled, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
            await may_end.wait()

    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await create(node)
        assert sandbox.allocation is not None
        supervisor = SandboxSupervisor(sandbox, sandbox.allocation, node.internals.manager._lifecycle)  # noqa: SLF001 - no operation runs for so long
        caller = asyncio.create_task(supervisor.until_end(work()))
        await run_turns(10)

        sandbox.request_end(Exit(ExitReason.KILLED))
        await cancelled.wait()
        await run_turns(10)
        assert not caller.done()

        may_end.set()
        with pytest.raises(SupervisionEndedError):
            await caller


async def test_sandbox_that_is_killed_while_it_gets_a_start_slot_releases_it(tmp_path: Path) -> None:
    """The kill comes one turn of the event loop later each time, until it comes when the start has begun."""
    async with open_node(NodeState(tmp_path), max_creates=1) as node:
        for turns in itertools.count():
            node.driver.hold("boot")
            first = asyncio.create_task(create(node))
            await node.driver.faults.reach("boot")
            (starting,) = node.sandboxes.list(OPERATOR)
            second = asyncio.create_task(create(node))
            await settled(lambda: node.sandboxes.count == 2)
            (waiting,) = set(node.sandboxes.list(OPERATOR)) - {starting}
            await run_turns(50)  # the second one waits for the slot of the first one
            prepared = len(node.driver.prepared)

            node.driver.faults.release("boot")
            await run_turns(turns)
            has_begun = len(node.driver.prepared) > prepared
            waiting.request_end(Exit(ExitReason.KILLED))
            await asyncio.gather(first, second, return_exceptions=True)

            third = asyncio.create_task(create(node))
            await settled(third.done)
            for sandbox in node.sandboxes.list(OPERATOR):
                await node.sandboxes.kill(OPERATOR, sandbox.id)
            await settled(lambda: node.sandboxes.count == 0)
            if has_begun:
                break
