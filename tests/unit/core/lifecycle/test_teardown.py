"""The end of a sandbox: what the response to a kill waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandlot.model.access import OPERATOR
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB
from sandlot.model.states import State
from tests.support.node import NodeState, open_node, settled

BASE = CreateSandboxParams(template="base", limits=LimitsChange(memory_bytes=GIB))


async def test_kill_is_answered_once_the_processes_are_dead_and_before_the_cleanup(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path)) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        instance = node.instance(sandbox)
        death, cleanup = node.driver.hold("destroy"), node.driver.hold("clean")

        killing = asyncio.create_task(node.sandboxes.kill(OPERATOR, sandbox.id))
        try:
            await node.driver.faults.reach("destroy")
            for _ in range(100):
                await asyncio.sleep(0)
            assert not killing.done()

            death.set()
            await settled(killing.done)
            assert instance.has_ended
            assert sandbox.state is State.STOPPED
            assert node.driver.leftovers() == [sandbox.ref]
            assert (await node.reservations.reserved()).memory_bytes == GIB
        finally:
            death.set()
            cleanup.set()
        await settled(lambda: node.driver.leftovers() == [])
