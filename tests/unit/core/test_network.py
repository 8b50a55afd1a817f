"""Network policies of live sandboxes: recorded before they are in force, kept by forks, hibernations and restarts, and extended by approvals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.link.services import GuestStream
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import ConflictError, ErrorCode, ForbiddenError, HostError, InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.network import MOST_OPEN, NetworkMode, NetworkPolicy, NetworkUpTo, network_entries
from sandlot.model.network_activity import NetworkActivity
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import CreateSandboxParams, ForkParams, LimitsChange, UpdateSandboxParams
from sandlot.model.specs import GIB, Limits
from sandlot.model.states import State
from sandlot.protocol import schema
from tests.support.gateway import RecordingGateway, refusal
from tests.support.node import MemoryNode, NodeState, open_node, settled

POLICY = NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(["api.example.com"], ["b.example.com"]), packages=False)
OTHER = NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(["example.org"]))
BASE = CreateSandboxParams(template="base", network=POLICY)
RESTRICTED = Principal(OwnerId("restricted"), "restricted", quota=Quota(network=NetworkMode.PACKAGES))


class Index:
    """Package index that tells a guest whether it may read the index."""

    async def serve(self, stream: GuestStream, *, sandbox: str, allowed: Callable[[], bool]) -> None:
        """Send one message."""
        del sandbox
        await stream.send({"allowed": allowed()})


@pytest.fixture
def gateway() -> RecordingGateway:
    return RecordingGateway()


@pytest.fixture
async def node(state: NodeState, gateway: RecordingGateway) -> AsyncIterator[MemoryNode]:
    async with open_node(state, gateway=gateway, packages=Index()) as node:
        yield node
    assert all(network.is_closed for network in gateway.networks)


@pytest.fixture
async def sandbox(node: MemoryNode) -> Sandbox:
    return await node.sandboxes.create(OPERATOR, BASE)


async def update(node: MemoryNode, sandbox: Sandbox, policy: NetworkPolicy | NetworkUpTo) -> Sandbox:
    updated: Sandbox = await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(network=policy))
    return updated


async def can_read_packages(node: MemoryNode, sandbox: Sandbox) -> bool:
    """Return whether the service lets programs of the sandbox read the package indexes now."""
    answer: dict[str, bool] = await node.guest(sandbox).open_service(schema.PACKAGES).read()
    return answer["allowed"]


# Updates --------------------------------------------------------------------------------------------------------------


async def test_new_sandbox_has_the_network_services_under_its_policy(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    assert gateway.of(sandbox.id).policies == [POLICY]
    assert not await can_read_packages(node, sandbox)
    for service in (schema.CONNECT, schema.DNS):
        stream = node.guest(sandbox).open_service(service)
        assert await stream.read() is None
        assert (stream.reset or {}).get("code") == "unsupported", "the service of the gateway"


async def test_update_replaces_the_whole_policy_at_once(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    assert (await update(node, sandbox, OTHER)).spec.network == replace(OTHER, generation=1)
    assert gateway.of(sandbox.id).policies == [POLICY, replace(OTHER, generation=1)]
    assert await can_read_packages(node, sandbox)
    assert (await update(node, sandbox, MOST_OPEN)).spec.network == NetworkPolicy(NetworkMode.INTERNET, generation=2)
    events = [record.event for record in node.state.database.events if record.event.type == "sandbox.updated"]
    assert [event.data for event in events] == [{"changed": ["network"]}] * 2


async def test_update_is_in_force_only_after_it_was_recorded(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    hold = node.state.database.faults.hold("sandboxes.save")

    updating = asyncio.create_task(update(node, sandbox, OTHER))
    await hold.reached()
    before = list(gateway.of(sandbox.id).policies), await can_read_packages(node, sandbox)
    hold.release()
    await updating

    assert before == ([POLICY], False)
    assert gateway.of(sandbox.id).policies == [POLICY, replace(OTHER, generation=1)]


async def test_failed_update_changes_nothing(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    private = NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(["10.0.0.1"]))
    with pytest.raises(InvalidRequestError):
        await node.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(network=private, name="other"))
    with pytest.raises(ForbiddenError):
        await node.sandboxes.update(replace(RESTRICTED, operator=True), sandbox.id, UpdateSandboxParams(network=OTHER, name="other"))
    node.state.database.faults.fail_next("sandboxes.save", HostError("The disk is full."))
    with pytest.raises(HostError):
        await update(node, sandbox, OTHER)

    assert (sandbox.spec.network, sandbox.name) == (POLICY, None)
    assert gateway.of(sandbox.id).policies == [POLICY]
    assert not await can_read_packages(node, sandbox)


async def test_last_of_concurrent_updates_wins(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    await asyncio.gather(*(update(node, sandbox, policy) for policy in (OTHER, NetworkPolicy(NetworkMode.NONE), OTHER, NetworkPolicy())))
    assert sandbox.spec.network == NetworkPolicy(generation=4)
    assert gateway.of(sandbox.id).policies[-1] == NetworkPolicy(generation=4)


async def test_suspended_sandbox_is_updated_without_a_resume(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    await node.sandboxes.pause(OPERATOR, sandbox.id)
    await update(node, sandbox, OTHER)
    assert (sandbox.state, gateway.of(sandbox.id).policies[-1]) == (State.PAUSED, replace(OTHER, generation=1))
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    await update(node, sandbox, POLICY)
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert gateway.of(sandbox.id).policies == [replace(POLICY, generation=2)]


async def test_guest_has_the_local_domains_of_the_policy_after_every_update_and_wake(node: MemoryNode, sandbox: Sandbox) -> None:
    def allowing(name: str) -> NetworkPolicy:
        return NetworkPolicy(NetworkMode.ALLOWLIST, network_entries([f"*.{name}"]))

    await update(node, sandbox, allowing("one.internal"))
    assert node.guest(sandbox).local_domains == ("one.internal",)
    (fork,) = await node.services.sandboxes.fork(OPERATOR, sandbox.id, ForkParams())
    assert node.guest(fork.id).local_domains == ("one.internal",)

    await node.sandboxes.pause(OPERATOR, sandbox.id)
    await update(node, sandbox, allowing("two.internal"))
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert node.guest(sandbox).local_domains == ("two.internal",)

    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    await update(node, sandbox, allowing("three.internal"))
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    assert node.guest(sandbox).local_domains == ("three.internal",)

    await update(node, sandbox, NetworkPolicy())
    assert node.guest(sandbox).local_domains == ()


async def test_update_of_an_ended_sandbox_is_refused(node: MemoryNode, sandbox: Sandbox) -> None:
    await node.sandboxes.kill(OPERATOR, sandbox.id)
    with pytest.raises(SandboxEndedError):
        await update(node, sandbox, OTHER)
    with pytest.raises(SandboxEndedError):
        await node.services.network.get(OPERATOR, sandbox.id)


# Lifecycle ------------------------------------------------------------------------------------------------------------


async def test_fork_and_wake_keep_the_policy(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    await update(node, sandbox, OTHER)
    (child,) = await node.services.sandboxes.fork(OPERATOR, sandbox.id, ForkParams())
    assert child.spec.network == OTHER
    assert gateway.of(child.id).policies == [OTHER]

    before = gateway.of(sandbox.id)
    before.recorded = NetworkActivity(sent_bytes=3, received_bytes=5)
    await node.sandboxes.hibernate(OPERATOR, sandbox.id)
    assert before.is_closed
    await node.sandboxes.resume(OPERATOR, sandbox.id)
    after = gateway.of(sandbox.id)
    assert (after is before, after.policies) == (False, [replace(OTHER, generation=1)])
    after.recorded = NetworkActivity(sent_bytes=1, received_bytes=1)
    usage = await node.sandboxes.usage(OPERATOR, sandbox.id)
    assert (usage.network_sent_bytes, usage.network_received_bytes) == (4, 6)


async def test_sandbox_keeps_its_policy_when_the_service_is_restarted(tmp_path: Path) -> None:
    state, gateway = NodeState(tmp_path), RecordingGateway()
    async with open_node(state, keep_sandboxes=True) as first:
        sandbox = await first.sandboxes.create(OPERATOR, BASE)
        await update(first, sandbox, OTHER)
    async with open_node(state, gateway=gateway) as second:
        assert (await second.services.network.get(OPERATOR, sandbox.id)).policy == replace(OTHER, generation=1)
        assert gateway.of(sandbox.id).policies == [replace(OTHER, generation=1)]


async def test_snapshot_gives_its_policy_which_is_checked_again(node: MemoryNode, sandbox: Sandbox) -> None:
    await update(node, sandbox, OTHER)
    snapshot = await node.services.snapshots.create(OPERATOR, sandbox.id)
    from_snapshot = CreateSandboxParams(snapshot=snapshot.id)
    assert (await node.sandboxes.create(OPERATOR, from_snapshot)).spec.network == OTHER
    assert (await node.sandboxes.create(OPERATOR, replace(from_snapshot, network=NetworkPolicy()))).spec.network == NetworkPolicy()
    with pytest.raises(ForbiddenError):
        await node.sandboxes.create(replace(RESTRICTED, operator=True), from_snapshot)


async def test_warm_sandbox_gets_the_policy_when_it_is_claimed(tmp_path: Path) -> None:
    limits, gateway = Limits(memory_bytes=GIB), RecordingGateway()
    state = NodeState(tmp_path, capabilities=set(DriverCapability) - {DriverCapability.SNAPSHOT})  # so that warm sandboxes are booted
    async with open_node(state, gateway=gateway) as node:
        pool = (await node.pools.create(OPERATOR, "base", "auto", limits, PoolSizes(warm=1, max=1))).pool
        node.clock.advance(1.0)
        await node.pools.run_until_idle()
        (warm,) = pool.ready
        assert gateway.networks == []

        sandbox = await node.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange.to(limits)))

        assert (sandbox.id, gateway.of(warm.id).policies) == (warm.id, [POLICY])


# Refusals -------------------------------------------------------------------------------------------------------------


async def test_refusal_is_an_event_of_the_sandbox(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    gateway.of(sandbox.id).refuse(refusal("a.example.com", 80, id="7", method="GET", path="/v1"))

    def events() -> list[dict[str, object]]:
        return [dict(record.event.data) for record in node.state.database.events if record.event.type == "sandbox.network_refused"]

    await settled(lambda: bool(events()))
    expected = {"refusal": "7", "reason": "host_not_allowed", "host": "a.example.com", "port": 80, "rule": None, "method": "GET", "path": "/v1"}
    assert events() == [expected]


async def test_approval_allows_the_refused_destination_until_the_next_update(node: MemoryNode, gateway: RecordingGateway, sandbox: Sandbox) -> None:
    network, service = gateway.of(sandbox.id), node.services.network
    network.refuse(refusal("a.example.com", 5432, id="1"), refusal("b.example.com", id="2", rule="b.example.com"))
    assert [each.id for each in (await service.get(OPERATOR, sandbox.id)).activity.refusals] == ["1", "2"]

    approved = (await service.approve(OPERATOR, sandbox.id, "1")).spec.network
    assert approved == replace(POLICY, entries=(*POLICY.entries, *network_entries(["a.example.com:5432"])), generation=1)
    assert network.policies == [POLICY, approved]
    assert (await service.approve(OPERATOR, sandbox.id, "1")).spec.network == approved, "a second approval changes nothing"

    with pytest.raises(ConflictError):
        await service.approve(OPERATOR, sandbox.id, "2")
    with pytest.raises(NotFoundError) as missing:
        await service.approve(OPERATOR, sandbox.id, "3")
    assert missing.value.code is ErrorCode.REFUSAL_NOT_FOUND
    assert network.policies == [POLICY, approved]

    assert (await update(node, sandbox, POLICY)).spec.network == replace(POLICY, generation=2)
