"""What waits in the pool of one owner is nobody else's, whatever of it others ask for, and by whatever door."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from sandlot.model.access import OPERATOR
from tests.support.service import Bench
from tests.support.serving import at, folder
from tests.support.tenants import Two, tenants
from tests.support.until import until

__all__ = ["at", "folder"]

POOLS = "/tensorlake/v1/namespaces/default/sandbox-pools"
LIMITS = {"limits": {"pids": 32768, "memory_bytes": 640 << 20}}


@pytest.fixture
async def two(at: Bench) -> AsyncIterator[Two]:
    async with tenants(at.service) as clients:
        yield clients


async def waiting(who: httpx.AsyncClient, pool: str) -> set[str]:
    """The ids of those that wait in a pool of one's own."""
    there = (await who.get(f"{POOLS}/{pool}")).json()["containers"]
    return {each["id"] for each in there if each["state"] == "Idle"}


async def test_no_request_is_answered_with_what_waits_for_somebody_else(at: Bench, two: Two) -> None:
    body = {"template": "base", "warm": 1, "max": 1, **LIMITS}
    mine, theirs = [(await who.post("/v1/pools", json=body)).json()["id"] for who in (two.owner, two.stranger)]
    assert mine != theirs

    async def both_wait() -> bool:
        return bool(await waiting(two.owner, mine) and await waiting(two.stranger, theirs))

    await until(both_wait)
    for told in at.sandboxes.pools.all(OPERATOR):
        told.pool.not_before_s = float("inf")  # nothing more is made: what is there is all that there is
    (kept,), (taken,) = await waiting(two.owner, mine), await waiting(two.stranger, theirs)
    claimed = await two.stranger.post(f"{POOLS}/{mine}/sandboxes")
    assert claimed.status_code == 404, claimed.text
    assert (await two.stranger.post(f"{POOLS}/{theirs}/sandboxes")).json()["sandbox_id"] == taken
    for asked in (two.stranger.post("/v1/sandboxes", json={"template": "base", **LIMITS}), two.stranger.post(f"{POOLS}/{theirs}/sandboxes")):
        answer = (await asked).json()
        assert answer.get("id", answer.get("sandbox_id")) not in {None, kept, taken}
    assert await waiting(two.owner, mine) == {kept}
    assert (await two.stranger.get(f"/v1/sandboxes/{kept}")).status_code == 404
    assert (await two.owner.get(f"/v1/sandboxes/{kept}")).status_code == 404, "it is nobody's until it is claimed"
    assert (await two.owner.post("/v1/sandboxes", json={"template": "base", **LIMITS})).json()["id"] == kept
