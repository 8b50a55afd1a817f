"""Creates with volumes that could claim a warm sandbox. The volumes have no file systems."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.pools.pool import Pool
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ErrorCode, NotFoundError
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, Limits, VolumeMount
from tests.support.node import MemoryNode, NodeState, open_node
from tests.unit.core.volumes.test_manager import Disks

LIMITS = Limits(memory_bytes=GIB)
WITH_DATA = CreateSandboxParams(template="base", limits=LimitsChange.to(LIMITS), volumes=(VolumeMount("data", "/data"),))
NO_SNAPSHOTS = set(DriverCapability) - {DriverCapability.SNAPSHOT}
"""So that warm sandboxes are booted."""


@pytest.fixture(autouse=True)
def disks(monkeypatch: pytest.MonkeyPatch) -> Disks:
    """The file systems of the node's volumes."""
    disks = Disks()
    monkeypatch.setattr("sandlot.server.composition.VolumeFiles", lambda *_: disks)
    return disks


async def prepared_pool(node: MemoryNode) -> Pool:
    """Create a volume and a pool of one warm sandbox."""
    await node.services.volumes.create(OPERATOR, name="data")
    pool = (await node.pools.create(OPERATOR, "base", "auto", LIMITS, PoolSizes(warm=1, max=1))).pool
    node.clock.advance(1.0)
    await node.pools.run_until_idle()
    assert len(pool.ready) == 1
    return pool


async def content() -> AsyncIterator[bytes]:
    yield b"content"


async def test_create_with_volumes_claims_a_warm_sandbox(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS)) as node:
        (warm,) = (await prepared_pool(node)).ready

        sandbox = await node.sandboxes.create(OPERATOR, WITH_DATA)

        assert sandbox.id == warm.id
        assert [volume.path for volume in node.instance(sandbox).volumes.values()] == ["/data"]


async def test_create_with_volumes_boots_if_the_driver_cannot_attach_them_to_a_warm_sandbox(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS - {DriverCapability.CONFIGURE_VOLUMES})) as node:
        pool = await prepared_pool(node)
        (warm,) = pool.ready

        sandbox = await node.sandboxes.create(OPERATOR, WITH_DATA)

        assert [volume.path for volume in node.instance(sandbox).volumes.values()] == ["/data"]
        assert list(pool.ready) == [warm]
        assert pool.claims == {}


async def test_create_refuses_a_volume_that_was_deleted_while_it_waited(tmp_path: Path) -> None:
    async with open_node(NodeState(tmp_path, capabilities=NO_SNAPSHOTS)) as node:
        pool = await prepared_pool(node)
        file = await node.services.file_store.upload(OPERATOR, content(), filename="file")
        lookup = node.state.database.faults.hold("files.get")

        creating = asyncio.create_task(node.sandboxes.create(OPERATOR, replace(WITH_DATA, file_ids=(file.id,))))
        await lookup.reached()
        await node.services.volumes.delete(OPERATOR, "data")
        lookup.release()

        with pytest.raises(NotFoundError) as error:
            await creating
        assert error.value.code is ErrorCode.VOLUME_NOT_FOUND
        assert len(pool.ready) == 1
