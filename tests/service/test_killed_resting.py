"""SIGKILL of the service while a sandbox hibernates or wakes, and while a pool is filled or asked: nothing is lost, nothing half is used.

What lived or slept is found again by the next service with all that was in it; pools have what they should again, clean; nothing is left on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.pools import StartPath
from sandlot.model.states import State as Life
from sandlot.server.composition import RunningService
from tests.support.cache import CACHE_DIR
from tests.support.forsaken import POOL, POOLED, own_cache, stocked
from tests.support.saving import State, cell, check, killed_at, make, real_service, saved, shell, soaks
from tests.support.until import until

pytestmark = pytest.mark.slow


@contextmanager
def abandoned(deed: str, step: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A state directory whose service was killed at that step, and what it had said."""
    with killed_at("forsaken", deed, step) as (folder, told):
        yield folder, told
        assert saved(folder) == []


async def settled(service: RunningService, told: dict[str, Any]) -> Sandbox:
    sandbox = service.internals.registry.find(told["box"], OPERATOR)
    await until(lambda: sandbox.recovered.is_set() or sandbox.state in {Life.STOPPED, Life.FAILED})
    return sandbox


async def goes_on(service: RunningService, folder: Path, sandbox: Sandbox, told: dict[str, Any]) -> None:
    """It has all that it had, and can be put to sleep and woken again."""
    await service.internals.manager.resume(OPERATOR, sandbox.id)
    await check(service.node, sandbox, State("first", told["ticker"]))
    assert saved(folder) == []
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    assert saved(folder) == [sandbox.id]
    await service.internals.manager.resume(OPERATOR, sandbox.id)
    await check(service.node, sandbox, State("first", told["ticker"]))


@pytest.mark.parametrize("step", ["writing", *soaks("rest intended", "at rest", "rest written", "rest recorded", "given back")])
async def test_service_killed_during_a_hibernation_keeps_the_sandbox(step: str) -> None:
    with abandoned("hibernate", step) as (folder, told):
        async with real_service(folder) as service:
            sandbox = await settled(service, told)
            if "hibernated" in told:
                assert sandbox.state is Life.HIBERNATED
            assert sandbox.state in {Life.RUNNING, Life.HIBERNATED}
            assert saved(folder) == ([sandbox.id] if sandbox.state is Life.HIBERNATED else [])
            await goes_on(service, folder, sandbox, told)


@pytest.mark.parametrize("step", ["restored", *soaks("restoring", "restoring memory", "recorded as woken")])
async def test_service_killed_during_a_wake_keeps_the_sandbox(step: str) -> None:
    with abandoned("wake", step) as (folder, told):
        assert "woken" not in told
        async with real_service(folder) as service:
            sandbox = await settled(service, told)
            assert sandbox.state in {Life.RUNNING, Life.HIBERNATED}
            await goes_on(service, folder, sandbox, told)


@pytest.mark.parametrize("step", ["claimed", *soaks("thawed", "one is told of")])
async def test_service_killed_during_a_claim_leaves_nothing(step: str) -> None:
    with abandoned("claim", step) as (folder, told):
        assert "made" not in told
        async with real_service(folder, pools=POOL) as service:
            for sandbox in service.internals.registry.list(OPERATOR):  # recorded as one that runs, though nobody was told: it does
                await sandbox.wait_reachable()  # a claim is recorded while its guest wakes, so this can be after any of the steps
                assert sandbox.state is Life.RUNNING
                assert await cell(service.node, sandbox, "print('used' in globals())") == "False\n"
            await stocked(service)
            (pool,) = await service.node.pools.list(OPERATOR)
            waiting = set(pool.ready)
            claimed = await make(service, POOLED)
            assert claimed.id in waiting, "the pool has recovered"
            assert await cell(service.node, claimed, "print('used' in globals())") == "False\n"
            assert (await shell(service.node, claimed, "hostname")).strip() == claimed.id


@pytest.mark.parametrize(
    "step", soaks("frozen", "restoring memory", "rehearsed", "snapshot of the template", "snapshot to be proved", "snapshot published")
)
async def test_service_killed_during_a_refill_leaves_nothing(step: str) -> None:
    with abandoned("refill", step) as (folder, _):
        cache = own_cache(folder) if step.startswith("snapshot") else CACHE_DIR
        async with real_service(folder, pools=POOL, cache_dir=cache) as service:
            assert list(service.internals.registry.list(OPERATOR)) == []
            await stocked(service)
            (told,) = await service.node.pools.list(OPERATOR)
            assert told.error == ""
            claimed = await make(service, POOLED)
            (told,) = await service.node.pools.list(OPERATOR)
            assert told.claims.get(StartPath.WARM) == 1
            assert await cell(service.node, claimed, "print(6 * 7)") == "42\n"
            shelf = cache / "snapshots"  # what was half made is gone, and what is there is whole
            await until(lambda: not [entry for entry in shelf.iterdir() if entry.is_dir() and not (entry / "made.json").is_file()])
