"""Who is filled first, and what of owners gives way to the node's.

On the in-memory driver; a test that wants template snapshots asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.admission import NewSandbox
from sandlot.core.pools import policy, templates
from sandlot.core.pools.kinds import Sizes
from sandlot.core.pools.pool import Member, Pool
from sandlot.model.access import OPERATOR, Principal, Quota
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Ability, Reading
from sandlot.model.specs import GIB, MIB
from sandlot.server.compose import Service
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.service import BASE, BOUNDLESS, serving
from tests.support.until import until

LIMITS = BASE.limits


@asynccontextmanager
async def node(folder: Path, memory_bytes: int, *, snapshots: bool = False) -> AsyncIterator[tuple[Service, MemoryDriver]]:
    """A service of a host that may promise so much memory, and plenty of everything else."""
    has = replace(BOUNDLESS.has, memory_bytes=memory_bytes)
    made = MemoryDriver(abilities=set(Ability) - (set() if snapshots else {Ability.SNAPSHOT}))
    settings = Settings(memory_reserve_bytes=0)
    async with serving(folder, made, settings, read_host=lambda: Reading(has=has, free=has, held_disk_bytes=0)) as service:
        yield service, made
    assert made.leftovers() == []


async def keyed(service: Service, name: str) -> Principal:
    record, _ = await service.keys.create(name, quota=Quota(sandboxes=20))
    who = service.keys.principal_of(record.id)
    assert who is not None
    return who


async def own(service: Service, who: Principal, warm: int, memory_bytes: int = GIB) -> Pool:
    limits = replace(LIMITS, memory_bytes=memory_bytes)
    return (await service.sandboxes.pools.create(who, "base", "auto", limits, Sizes(warm, max(1, warm)))).pool


async def promised(service: Service) -> int:
    return (await service.sandboxes.figures()).promised.memory_bytes


async def test_what_waits_for_owners_gives_its_room_to_the_nodes_and_no_more_of_it(tmp_path: Path) -> None:
    async with node(tmp_path, 5 * GIB) as (service, _):
        mine = await own(service, await keyed(service, "anne"), 9)
        await until(lambda: len(mine.ready) == 4)
        nodes = await own(service, OPERATOR, 1)
        await until(lambda: len(nodes.ready) == 1)
        assert len(mine.ready) == 3  # room for one that waits, and for a sandbox of that size besides


async def test_what_waits_for_owners_stays_where_it_would_not_be_enough(tmp_path: Path) -> None:
    async with node(tmp_path, 6 * GIB) as (service, _):
        await service.sandboxes.create(NewSandbox(template="base", limits=replace(LIMITS, memory_bytes=3 * GIB)), OPERATOR)
        mine = await own(service, await keyed(service, "anne"), 1)
        await until(lambda: len(mine.ready) == 1)
        kept = mine.ready[0]
        nodes = await own(service, OPERATOR, 1, 2 * GIB)
        await until(lambda: nodes.not_before_s > 0)
        assert (list(nodes.ready), list(mine.ready)) == ([], [kept])


async def test_what_is_made_for_owners_gives_its_room_to_the_nodes(tmp_path: Path) -> None:
    async with node(tmp_path, 2 * GIB + 512 * MIB) as (service, driver):
        release = driver.faults.hold("boot")
        mine = await own(service, await keyed(service, "anne"), 1)
        await driver.faults.reach("boot")
        nodes = await own(service, OPERATOR, 1)
        await until(lambda: not mine.filling)
        release.set()
        await until(lambda: len(nodes.ready) == 1)
        assert mine.held == 0


async def test_a_template_snapshot_of_the_nodes_gets_the_room_of_what_waits_for_owners(tmp_path: Path) -> None:
    class Waiting:
        gone = False

        async def destroy(self) -> None:
            self.gone = True

    async with node(tmp_path, 3 * GIB, snapshots=True) as (service, driver):
        driver.faults.hold("prepare")
        mine = await own(service, await keyed(service, "anne"), 0)
        asleep: Any = Waiting()
        base: Any = None
        member = Member(SandboxId("waits"), mine.kind, asleep, base, service.core.clock.monotonic_s(), "")
        ledger = service.sandboxes.births.ledger
        ledger.promise(member.holder, driver.takes(LIMITS), await ledger.look())
        await own(service, OPERATOR, 1, 3 * GIB)
        mine.sizes = Sizes(1, 1)
        mine.ready.append(member)
        await until(lambda: asleep.gone)
        await driver.faults.reach("prepare")
        assert await promised(service) == 3 * GIB


async def test_owners_have_one_hand_together_and_the_node_has_another(tmp_path: Path) -> None:
    async with node(tmp_path, 99 * GIB) as (service, driver):
        release = driver.faults.hold("boot")
        theirs = [await own(service, await keyed(service, name), 2) for name in ("anne", "bob")]
        await driver.faults.reach("boot")
        nodes = await own(service, OPERATOR, 2)
        await until(lambda: len(nodes.filling) == 1)
        assert sum(len(each.filling) for each in theirs) == 1
        release.set()
        await until(lambda: len(nodes.ready) == 2)


async def test_rest_after_what_was_made_for_owners_is_none_of_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "pause_s", lambda _: 1000.0)
    async with node(tmp_path, 99 * GIB) as (service, _):
        mine = await own(service, await keyed(service, "anne"), 2)
        await until(lambda: len(mine.ready) == 1)
        nodes = await own(service, OPERATOR, 1)
        await until(lambda: len(nodes.ready) == 1)
        assert len(mine.ready) == 1


async def test_what_is_made_for_owners_goes_before_what_the_node_has(tmp_path: Path) -> None:
    async with node(tmp_path, 5 * GIB) as (service, driver):
        nodes = await own(service, OPERATOR, 1)
        await until(lambda: len(nodes.ready) == 1)
        kept = nodes.ready[0]
        release = driver.faults.hold("boot")
        mine = await own(service, await keyed(service, "anne"), 1)
        await driver.faults.reach("boot")
        large = NewSandbox(template="base", limits=replace(LIMITS, memory_bytes=4 * GIB))
        creating = asyncio.create_task(service.sandboxes.create(large, OPERATOR))
        await until(lambda: not mine.filling)
        release.set()
        await creating
        assert list(nodes.ready) == [kept]


async def test_a_template_snapshot_for_owners_is_begun_only_where_something_may_wait_and_goes_first(tmp_path: Path) -> None:
    async with node(tmp_path, 99 * GIB, snapshots=True) as (service, driver):
        release = driver.faults.hold("prepare")
        anne = await keyed(service, "anne")
        await own(service, anne, 0, 5 * GIB)  # nothing waits there before somebody asks
        await own(service, anne, 1, 3 * GIB)
        await driver.faults.reach("prepare")
        assert await promised(service) == 3 * GIB
        assert await service.sandboxes.pools.evict()
        assert await promised(service) == 0
        release.set()


async def test_a_template_snapshot_for_owners_alone_does_not_keep_the_nodes_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "FLEETING_S", 0.2)
    async with node(tmp_path, 99 * GIB, snapshots=True) as (service, driver):
        driver.faults.hold("prepare")
        pools = service.sandboxes.pools
        mine = await own(service, await keyed(service, "anne"), 1, 6 * GIB)
        await until(lambda: pools.find(mine.id, OPERATOR).error == "It took too long.")
        nodes = await own(service, OPERATOR, 1, 7 * GIB)
        await until(lambda: pools._snapshots.holder != "" and not pools._refill._writes_owners)  # noqa: SLF001
        assert pools.find(nodes.id, OPERATOR).error == ""
