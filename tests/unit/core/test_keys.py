"""API keys at the node boundary: who may change keys, pages, and the use of a quota."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from sandlot.core.keys import KeyService
from sandlot.model.access import LOCAL, OPERATOR, OwnerId, Principal
from sandlot.model.errors import ErrorCode, ForbiddenError
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import GIB, MIB
from sandlot.testing.stores.harness import execution
from tests.support.node import MemoryNode
from tests.support.service import pieces

ALICE = Principal(OwnerId("a" * 12), "alice")


@pytest.fixture
def keys(node: MemoryNode) -> KeyService:
    return node.services.keys


async def test_only_operators_create_list_and_revoke_keys(keys: KeyService) -> None:
    for refused in (keys.create(ALICE, "ci"), keys.list(ALICE), keys.revoke(ALICE, "ci")):
        with pytest.raises(ForbiddenError) as error:
            await refused
        assert error.value.code is ErrorCode.FORBIDDEN
    assert (await keys.list(OPERATOR)).items == []


async def test_pages_have_all_keys_oldest_first(node: MemoryNode, keys: KeyService) -> None:
    for name in ("one", "two", "three"):
        await keys.create(OPERATOR, name)
        node.clock.advance(1)
    first = await keys.list(OPERATOR, limit=2)
    last = first.items[-1]
    rest = await keys.list(OPERATOR, after=Position(last.created_at, last.id), limit=2)
    assert ([record.name for record in first.items], first.more) == (["one", "two"], True)
    assert ([record.name for record in rest.items], rest.more) == (["three"], False)


async def test_usage_counts_only_the_principals_own_resources(node: MemoryNode, keys: KeyService) -> None:
    record, secret = await keys.create(OPERATOR, "ci")
    principal = node.keys.verify(secret)
    assert principal is not None
    params = CreateSandboxParams(template="base", limits=LimitsChange(cpus=0.5, memory_bytes=GIB, disk_bytes=2 * GIB))
    await node.sandboxes.create(principal, params)
    await node.sandboxes.create(OPERATOR, params)
    await node.services.volumes.create(principal, name="data", size_bytes=64 * MIB)
    hibernated = await node.sandboxes.create(principal, params)
    await node.sandboxes.hibernate(principal, hibernated.id)
    await node.services.file_store.upload(principal, pieces(b"content"), filename="x")
    run = execution(owner=principal.owner, stdout="ä")
    await node.store.executions.save([run, execution(owner=LOCAL)])

    usage = await keys.usage(principal)

    assert record.id == principal.owner
    assert asdict(usage) == {
        "sandboxes": 1,
        "cpus": 0.5,
        "memory_bytes": GIB,
        "disk_bytes": 2 * GIB,
        "executions_per_month": 0,
        "stored_executions": 1,
        "stored_execution_bytes": run.size_bytes,
        "stored_files": 1,
        "stored_file_bytes": 7,
        "hibernated_sandboxes": 1,
        "snapshots": 0,
        "snapshot_bytes": 0,
        "volumes": 1,
        "volume_bytes": 64 * MIB,
        "templates": 0,
        "template_bytes": 0,
        "pools": 0,
    }
