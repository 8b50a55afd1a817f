"""Pools of Tensorlake's client: what is kept in one and claimed of it; whoever makes one has it, and nobody else."""

from __future__ import annotations

import pytest
from tensorlake.sandbox import PoolInUseError, PoolNotFoundError, SandboxClient
from tensorlake.sandbox.models import CLEAR_NETWORK_POLICY, NetworkConfig

from tests.compat.tensorlake.asking import status, until_so
from tests.support.tcpservice import TcpService


def test_pool_is_created_inspected_updated_claimed_and_deleted(client: SandboxClient, service: TcpService) -> None:
    asked = {"image": "base", "cpus": 1.0, "memory_mb": 192}
    locked = NetworkConfig(allow_internet_access=False)
    pool = client.create_pool(**asked, timeout_secs=88, warm_containers=1, max_containers=2, network=locked).pool_id
    told = client.get_pool(pool)
    assert (told.image, told.timeout_secs, told.warm_containers, told.max_containers, told.resources.memory_mb) == ("base", 88, 1, 2, 192)
    assert pool in {each.pool_id for each in client.list_pools()}
    native = service.client.pools.get(pool)
    assert (native.warm, native.max, native.template) == (1, 2, "base")
    assert native.owner == next(each.id for each in service.client.keys.list() if each.name == "compat")
    until_so(lambda: [each.state for each in client.get_pool(pool).containers or ()] == ["Idle"])
    claimed = client.claim(pool)
    assert service.client.pools.get(pool).claims["warm"] == 1
    made = client.get(claimed.sandbox_id)
    assert (made.pool_id, made.timeout_secs, made.network_policy.allow_internet_access) == (pool, 88, False)
    assert (made.image, made.resources.memory_mb) == ("base", 192)
    assert "Running" in {each.state for each in client.get_pool(pool).containers or ()}
    with pytest.raises(PoolInUseError):
        client.delete_pool(pool)
    client.delete(claimed.sandbox_id)
    kept = client.update_pool(pool, **asked, timeout_secs=99, warm_containers=0, max_containers=1)
    assert (kept.timeout_secs, kept.warm_containers, kept.network_policy.allow_internet_access) == (99, 0, False)
    cleared = client.update_pool(pool, **asked, network=CLEAR_NETWORK_POLICY)
    assert (cleared.network_policy, cleared.timeout_secs) == (None, 0)
    assert status(lambda: client.update_pool(pool, image="base", memory_mb=256)) == 400
    client.delete_pool(pool)
    for gone in (client.get_pool, client.delete_pool):
        with pytest.raises(PoolNotFoundError):
            gone(pool)
    assert status(lambda: client.claim(pool)) == 404


def test_pools_are_private_and_shared_pools_can_be_claimed_by_id(operator: SandboxClient, client: SandboxClient, stranger: SandboxClient) -> None:
    asked = {"image": "base", "cpus": 1.0, "memory_mb": 224, "warm_containers": 0}
    nodes, own, other = (each.create_pool(**asked).pool_id for each in (operator, client, stranger))
    assert len({nodes, own, other}) == 3
    assert [each.pool_id for each in stranger.list_pools()] == [other]
    assert {nodes, own, other} <= {each.pool_id for each in operator.list_pools()}
    for foreign in (nodes, own):
        for refused in (stranger.get_pool, stranger.delete_pool, lambda id_: stranger.update_pool(id_, **asked)):
            with pytest.raises(PoolNotFoundError):
                refused(foreign)
    assert status(lambda: stranger.claim(own)) == status(lambda: operator.claim(own)) == 404
    claimed = stranger.claim(nodes).sandbox_id
    assert stranger.get(claimed).pool_id == nodes
    assert status(lambda: client.create_pool(**asked)) == 409
    stranger.delete(claimed)
    for each, pool in ((operator, nodes), (operator, own), (stranger, other)):
        each.delete_pool(pool)
    with pytest.raises(PoolNotFoundError):
        client.get_pool(own)
