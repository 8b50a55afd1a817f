"""Public ports and masked hosts of sandboxes: updates, copies, wakes, restarts, and claims of warm sandboxes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ForbiddenError, HostError, InvalidRequestError
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange, SandboxInfo, UpdateSandboxParams
from sandlot.model.specs import GIB, Limits
from tests.support.node import MemoryNode, NodeState, open_node

PUBLIC = CreateSandboxParams(template="base", public_ports=True, mask_request_host="${PORT}.example.com")
FIELDS = True, "${PORT}.example.com"
PRIVATE_FIELDS = False, None
ALICE = Principal(OwnerId("a11ce0a11ce0"), "alice")


def fields(sandbox: Sandbox | SandboxInfo) -> tuple[bool, str | None]:
    return sandbox.spec.public_ports, sandbox.spec.mask_request_host


async def test_sandbox_is_private_unless_the_request_makes_it_public(node: MemoryNode) -> None:
    assert fields(await node.sandboxes.create(ALICE, replace(PUBLIC, public_ports=False, mask_request_host=None))) == PRIVATE_FIELDS
    assert fields(await node.sandboxes.create(OPERATOR, PUBLIC)) == FIELDS


async def test_key_without_the_quota_gets_no_public_ports(node: MemoryNode) -> None:
    with pytest.raises(ForbiddenError):
        await node.sandboxes.create(ALICE, PUBLIC)
    assert node.sandboxes.list(OPERATOR) == []
    sandbox = await node.sandboxes.create(ALICE, replace(PUBLIC, public_ports=False))
    with pytest.raises(ForbiddenError):
        await node.sandboxes.update(ALICE, sandbox.id, UpdateSandboxParams(public_ports=True, name="other"))
    assert (fields(sandbox), sandbox.name) == ((False, FIELDS[1]), None)


async def test_ports_that_are_public_where_possible_follow_the_quota(node: MemoryNode) -> None:
    possible = replace(PUBLIC, public_ports=None)
    assert fields(await node.sandboxes.create(ALICE, possible)) == (False, FIELDS[1])
    assert fields(await node.sandboxes.create(replace(ALICE, quota=Quota(public_ports=True)), possible)) == FIELDS


async def test_create_request_that_is_repeated_after_a_change_of_the_quota_gets_its_sandbox(node: MemoryNode) -> None:
    possible = replace(PUBLIC, public_ports=None)
    first = await node.sandboxes.create(replace(ALICE, quota=Quota(public_ports=True)), possible, key="k")
    again = await node.sandboxes.create(ALICE, possible, key="k")
    assert (again.id, fields(again)) == (first.id, FIELDS)


async def test_quota_that_was_lowered_still_lets_ports_become_private(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(replace(ALICE, quota=Quota(public_ports=True)), PUBLIC)
    await node.sandboxes.update(ALICE, sandbox.id, UpdateSandboxParams(name="other"))
    assert fields(sandbox) == FIELDS
    await node.sandboxes.update(ALICE, sandbox.id, UpdateSandboxParams(public_ports=False))
    assert fields(sandbox) == (False, FIELDS[1])


async def test_update_changes_what_it_names_and_an_empty_host_removes_the_mask(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, PUBLIC)
    seen = []
    for change in (
        UpdateSandboxParams(public_ports=False),
        UpdateSandboxParams(mask_request_host="a:80"),
        UpdateSandboxParams(mask_request_host=""),
        UpdateSandboxParams(public_ports=True),
    ):
        await node.sandboxes.update(OPERATOR, sandbox.id, change)
        seen.append(fields(sandbox))
    assert seen == [(False, FIELDS[1]), (False, "a:80"), (False, None), (True, None)]
    events = [record.event.data for record in node.state.database.events if record.event.type == "sandbox.updated"]
    assert events == [{"changed": [name]} for name in ("public_ports", "mask_request_host", "mask_request_host", "public_ports")]
    with pytest.raises(InvalidRequestError):
        UpdateSandboxParams(mask_request_host="a b")


async def test_update_that_cannot_be_recorded_changes_nothing(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, PUBLIC)
    node.state.database.faults.fail_next("sandboxes.save", HostError("The disk is full."))
    with pytest.raises(HostError):
        await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(public_ports=False, mask_request_host=""))
    assert fields(sandbox) == FIELDS


async def test_forks_and_wakes_keep_the_fields_and_a_sandbox_from_a_snapshot_has_those_of_its_request(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(OPERATOR, PUBLIC)
    (child,) = await node.services.sandboxes.fork(OPERATOR, sandbox.id, ForkParams())
    assert fields(child) == FIELDS
    snapshot = await node.services.snapshots.create(OPERATOR, sandbox.id)
    assert fields(await node.sandboxes.create(OPERATOR, CreateSandboxParams(snapshot=snapshot.id))) == PRIVATE_FIELDS
    assert fields(await node.sandboxes.create(OPERATOR, replace(PUBLIC, template=None, snapshot=snapshot.id))) == FIELDS

    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(mask_request_host="a"))
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert fields(sandbox) == (True, "a")


async def test_fork_of_public_ports_is_checked_again(node: MemoryNode) -> None:
    sandbox = await node.sandboxes.create(replace(ALICE, quota=Quota(public_ports=True)), PUBLIC)
    with pytest.raises(ForbiddenError):
        await node.services.sandboxes.fork(ALICE, sandbox.id, ForkParams())
    assert [each.id for each in node.sandboxes.list(OPERATOR)] == [sandbox.id]


async def test_sandbox_keeps_the_fields_when_the_service_is_restarted(tmp_path: Path) -> None:
    state = NodeState(tmp_path)
    async with open_node(state, keep_sandboxes=True) as first:
        sandbox = await first.sandboxes.create(OPERATOR, PUBLIC)
    async with open_node(state) as second:
        assert [(found.id, fields(found)) for found in second.sandboxes.list(OPERATOR)] == [(sandbox.id, FIELDS)]


@pytest.mark.parametrize("public", [True, False])
async def test_warm_sandbox_is_claimed_with_either_value(tmp_path: Path, *, public: bool) -> None:
    limits = Limits(memory_bytes=GIB)
    state = NodeState(tmp_path, capabilities=set(DriverCapability) - {DriverCapability.SNAPSHOT})  # so that warm sandboxes are booted
    async with open_node(state) as node:
        pool = (await node.pools.create(OPERATOR, "base", "auto", limits, PoolSizes(warm=1, max=1))).pool
        node.clock.advance(1.0)
        await node.pools.run_until_idle()
        (warm,) = pool.ready

        sandbox = await node.sandboxes.create(OPERATOR, replace(PUBLIC, public_ports=public, limits=LimitsChange.to(limits)))

        assert (sandbox.id, fields(sandbox)) == (warm.id, (public, FIELDS[1]))
