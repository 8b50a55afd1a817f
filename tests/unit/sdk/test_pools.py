"""Pools as the SDK asks for them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sandlot.model.specs import GIB, MIB, Limits
from sandlot.sdk import Client
from sandlot.sdk.models.pools import TemplateSnapshot
from tests.unit.sdk.scripted import Reply, Script

POOL: dict[str, Any] = {
    "id": "pool-abcdefghijkl",
    "owner": "0123456789ab",
    "template": "base",
    "isolation": "gvisor",
    "limits": {"cpus": 0.5, "memory_bytes": GIB, "disk_bytes": 5 * GIB, "pids": 99},
    "warm": 2,
    "max": 4,
    "prepared": 1,
    "ready": 1,
    "filling": 1,
    "prepared_ready": 0,
    "claims": {"warm": 3, "prepared": 0, "restored": 1, "booted": 0},
    "hit_rate": 0.75,
    "snapshot": {"size_bytes": 20 * MIB, "created_at": "2026-11-22T15:00:00+00:00"},
    "error": "",
    "metadata": {"team": "blue"},
    "newer": True,
}


def test_pool_is_created_and_read(client: Client, service: Script) -> None:
    service.say(Reply(201, POOL))
    made = client.pools.create(
        "base", warm=2, max=4, prepared=1, isolation="gvisor", cpus=0.5, memory="1G", disk=GIB, pids=99, metadata={"team": "blue"}
    )
    assert (service.seen[-1].method, service.seen[-1].path) == ("POST", "/v1/pools")
    assert service.seen[-1].json() == {
        "template": "base",
        "isolation": "gvisor",
        "limits": {"cpus": 0.5, "memory_bytes": GIB, "disk_bytes": GIB, "pids": 99},
        "warm": 2,
        "max": 4,
        "prepared": 1,
        "metadata": {"team": "blue"},
    }
    assert (made.metadata, made.owner) == ({"team": "blue"}, "0123456789ab")
    assert made.limits == Limits(cpus=0.5, pids=99)
    assert (made.ready, made.filling, made.hit_rate, made.claims["warm"]) == (1, 1, 0.75, 3)
    assert made.snapshot == TemplateSnapshot(20 * MIB, datetime(2026, 11, 22, 15, tzinfo=UTC))
