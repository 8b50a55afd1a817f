"""Pools of Tensorlake's client: whoever makes one has it, and nobody else."""

from __future__ import annotations

import pytest
from tensorlake.sandbox import PoolNotFoundError, SandboxClient

from tests.compat.tensorlake.asking import status


def test_a_pool_is_ones_own_and_one_of_the_nodes_is_claimed_of_by_whoever_knows_it(
    operator: SandboxClient, client: SandboxClient, stranger: SandboxClient
) -> None:
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
