"""The number of processors that guests are told to show to programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.model.access import OPERATOR
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange, UpdateSandboxParams
from sandlot.model.specs import GIB, Limits
from tests.support.node import MemoryNode, NodeState, open_node
from tests.unit.core.pools.test_manager import create, filled_pool

LIMITS = Limits(memory_bytes=GIB)
BASE = CreateSandboxParams(template="base", limits=LimitsChange.to(LIMITS))
ALL = frozenset(DriverCapability)


@pytest.mark.parametrize("cpus, processors", [(0.05, 1), (0.5, 1), (1.0, 1), (1.2, 2), (2.0, 2), (64.0, 64)])
async def test_guest_shows_the_limit_rounded_up(node: MemoryNode, cpus: float, processors: int) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange.to(replace(LIMITS, cpus=cpus))))

    assert node.guest(sandbox.id).processors == processors


async def test_update_changes_the_number(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, BASE)

    for cpus, processors in ((3.5, 4), (0.5, 1)):
        await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(cpus=cpus)))
        assert node.guest(sandbox.id).processors == processors


async def test_resumed_sandbox_keeps_the_number(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, BASE)
    await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(cpus=2.0)))

    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    await node.sandboxes.resume(OPERATOR, sandbox.id)

    assert node.guest(sandbox.id).processors == 2


async def test_kernel_of_a_warm_sandbox_is_prepared_with_the_number(tmp_path: Path) -> None:
    """A claim then changes no affinity."""
    async with open_node(NodeState(tmp_path, capabilities=ALL - {DriverCapability.SNAPSHOT})) as node:
        await filled_pool(node, warm=1)
        sandbox = await create(node)

        wakes = node.guest(sandbox.id).requests("guest.wake")
        assert [wake["processors"] for wake in wakes] == [1, 1]


async def test_number_is_not_sent_if_programs_see_the_host(tmp_path: Path) -> None:
    """In a container, the affinity decides on which processors a program runs."""
    async with open_node(NodeState(tmp_path, capabilities=ALL - {DriverCapability.SHOW_LIMITS})) as node:
        sandbox = await node.sandboxes.create(OPERATOR, BASE)
        await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(cpus=2.0)))

        assert node.guest(sandbox.id).processors is None
