"""Pools of a whole service, on a driver without isolation and without snapshots: what waits was booted, made warm and stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandlot.core.admission import NewSandbox
from sandlot.core.pools.asleep import NEUTRAL
from sandlot.core.pools.kept import FILE
from sandlot.core.pools.kinds import Kind, Sizes
from sandlot.core.pools.pool import Pool
from sandlot.core.pools.pools import Pools, Told
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import LOCAL, OPERATOR, Principal, Quota
from sandlot.model.errors import ConflictError, ForbiddenError, HostError, InvalidRequestError, LimitError, NotFoundError, UnavailableError
from sandlot.model.ports import Reading, Resources
from sandlot.model.specs import GIB, MIB, Limits, ProcessSpec
from sandlot.model.states import State
from sandlot.server.compose import Service
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.service import BASE, BOUNDLESS, Bench, bench, serving
from tests.support.until import until

LIMITS = BASE.limits


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Bench]:
    """On the machine's clock: what waits has an age, and work is followed by rest."""
    async with bench(tmp_path) as here:
        yield here


async def pool(at: Bench, warm: int, most: int | None = None) -> Told:
    """A pool that is filled."""
    made = await at.sandboxes.pools.create(OPERATOR, "base", "auto", LIMITS, Sizes(warm, warm if most is None else most))
    await filled(at.sandboxes.pools, warm)
    return made


async def filled(pools: Pools, count: int) -> None:
    await until(lambda: len(pools.find("base", OPERATOR).pool.ready) == count)


async def said(box: Sandbox, command: str) -> str:
    assert box.link is not None
    process = await box.link.start(ProcessSpec(("/bin/sh", "-c", command)))
    text = b"".join([bytes(each.data) async for each in process if hasattr(each, "data")])
    await process.result()
    return text.decode()


async def test_what_waits_becomes_the_sandbox_that_is_asked_for(at: Bench) -> None:
    told = await pool(at, 2)
    waiting = {member.id for member in told.pool.ready}
    assert at.driver.faults.raises == {}
    box = await at.sandboxes.create(NewSandbox(template="base", limits=LIMITS, env={"MINE": "yes"}), OPERATOR)
    assert box.id in waiting
    assert box.state is State.RUNNING
    assert (await said(box, "echo $MINE $SANDLOT_SANDBOX_ID; hostname")).split()[0] == "yes"
    assert box.link is not None
    assert (await box.link.info()).identity == box.id
    record = await at.service.store.sandboxes.get(box.id)
    assert record is not None
    assert (record.state, record.ref, record.spec.root) == (State.RUNNING, box.ref, told.pool.ready[0].base.root.digest)
    assert told.pool.claims == {"hot": 1}
    await filled(at.sandboxes.pools, 2)
    assert box.id not in {member.id for member in told.pool.ready}
    await at.sandboxes.kill(box.id, OPERATOR)


async def test_nobody_gets_what_another_got(at: Bench) -> None:
    told = await pool(at, 3)
    at.sandboxes.pools.find("base", OPERATOR).pool.sizes = Sizes(0, 3)
    told.pool.grown = 3
    boxes = await asyncio.gather(*(at.sandbox() for _ in range(5)))
    assert len({box.ref for box in boxes}) == len(boxes)
    assert told.pool.claims["hot"] == 3
    assert told.pool.claims["boot"] == 2
    texts = await asyncio.gather(*(said(box, "head -c 16 /dev/urandom | od -An -tx1") for box in boxes))
    assert len(set(texts)) == len(boxes)


async def test_a_request_that_differs_is_not_answered_from_it(at: Bench) -> None:
    told = await pool(at, 1)
    box = await at.sandboxes.create(NewSandbox(template="base", limits=Limits(pids=LIMITS.pids, memory_bytes=2 * GIB)), OPERATOR)
    assert len(told.pool.ready) == 1
    assert told.pool.claims == {}
    assert box.id != told.pool.ready[0].id
    fewer = await at.sandboxes.create(NewSandbox(template="base", limits=Limits(pids=LIMITS.pids - 1)), OPERATOR)
    assert told.pool.claims == {"hot": 1}
    assert fewer.instance is not None
    assert fewer.instance.limits.pids == LIMITS.pids - 1


async def test_what_died_while_it_waited_is_replaced_and_a_claim_meanwhile_succeeds(at: Bench) -> None:
    told = await pool(at, 2)
    dead = [member.id for member in told.pool.ready]
    for instance in at.driver.booted:
        instance.kill()
    box = await at.sandbox()
    assert box.state is State.RUNNING
    assert await said(box, "echo alive") == "alive\n"
    await filled(at.sandboxes.pools, 2)
    assert not {member.id for member in told.pool.ready} & set(dead)


async def test_one_that_fails_when_it_is_claimed_is_spoilt_and_the_request_succeeds(at: Bench) -> None:
    told = await pool(at, 1)
    (member,) = told.pool.ready
    at.driver.faults.raises["resume"] = [HostError("no thaw")]
    box = await at.sandbox()
    assert await said(box, "echo alive") == "alive\n"
    assert box.ref != member.asleep.instance.ref or box.instance is not member.asleep.instance
    assert told.pool.claims == {"boot": 1}
    await until(member.asleep.exits.done)
    await filled(at.sandboxes.pools, 1)
    assert (await at.sandboxes.figures()).sandboxes == 2


async def test_a_pool_is_promised_like_sandboxes_and_gives_way_to_them(tmp_path: Path) -> None:
    has = Resources(memory_bytes=6 * GIB, disk_bytes=1 << 50, pids=1 << 40)
    async with bench(tmp_path, read_host=lambda: Reading(has=has, free=has, held_disk_bytes=0)) as at:
        told = await pool(at, 3)
        assert (await at.sandboxes.figures()).promised.memory_bytes == 3 * GIB
        large = NewSandbox(template="base", limits=Limits(pids=LIMITS.pids, memory_bytes=4 * GIB))
        box = await at.sandboxes.create(large, OPERATOR)
        assert box.state is State.RUNNING
        assert len(told.pool.ready) == 1
        claimed = await at.sandbox()
        assert told.pool.claims == {"hot": 1}
        assert claimed.state is State.RUNNING
        assert (await at.sandboxes.figures()).promised.memory_bytes == 5 * GIB
        with pytest.raises(UnavailableError):
            await at.sandbox()
        with pytest.raises(InvalidRequestError):
            await at.sandboxes.create(NewSandbox(template="base", limits=Limits(pids=LIMITS.pids, memory_bytes=64 * GIB)), OPERATOR)


async def test_a_pool_never_takes_the_last_place(tmp_path: Path) -> None:
    has = Resources(memory_bytes=3 * GIB + 512 * MIB, disk_bytes=1 << 50, pids=1 << 40)
    async with bench(tmp_path, read_host=lambda: Reading(has=has, free=has, held_disk_bytes=0)) as at:
        told = await at.sandboxes.pools.create(OPERATOR, "base", "auto", LIMITS, Sizes(5, 5))
        await until(lambda: len(told.pool.ready) == 2)
        await until(lambda: told.pool.not_before_s > 0)
        assert (await at.sandboxes.figures()).free.memory_bytes >= GIB


async def test_it_counts_against_no_bound_on_sandboxes(at: Bench) -> None:
    told = await pool(at, 2)
    assert at.sandboxes.held == 0
    assert at.sandboxes.all(OPERATOR) == []
    assert len(told.pool.ready) == 2


async def test_a_pool_grows_with_what_it_missed(at: Bench) -> None:
    told = await pool(at, 0, 2)
    await at.sandbox()
    assert told.pool.claims == {"boot": 1}
    await filled(at.sandboxes.pools, 1)
    await at.sandbox()
    assert told.pool.claims == {"boot": 1, "hot": 1}


async def test_what_cannot_be_made_is_tried_again_later_and_told(at: Bench) -> None:
    at.driver.faults.raises["boot"] = [HostError("no boot today")]
    made = await at.sandboxes.pools.create(OPERATOR, "base", "auto", LIMITS, Sizes(1, 1))
    await until(lambda: at.sandboxes.pools.find(made.pool.id, OPERATOR).error == "no boot today")
    await filled(at.sandboxes.pools, 1)
    assert at.sandboxes.pools.find("base", OPERATOR).error == ""
    assert b'sandlot_pool_failures_total{isolation="gvisor"} 1.0' in at.service.core.metrics.text()


async def test_what_waits_is_nobody(at: Bench) -> None:
    told = await pool(at, 1)
    (member,) = told.pool.ready
    assert member.asleep.link.asleep
    await member.asleep.instance.resume()
    await member.asleep.link.wake(identity="looked-at", hostname="looked-at", env={}, pids=32768, deadline_s=None)
    told.pool.drop(member)
    assert (await member.asleep.link.info()).identity == "looked-at"
    assert NEUTRAL not in (await member.asleep.link.info()).identity
    await member.asleep.destroy()


async def test_pools_are_found_changed_and_removed_and_survive_a_restart(tmp_path: Path) -> None:
    below = tmp_path / "driver"
    below.mkdir()
    driver = MemoryDriver()
    other = Limits(pids=LIMITS.pids, memory_bytes=2 * GIB)
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        pools = service.sandboxes.pools
        first = await pools.create(OPERATOR, "base", "auto", LIMITS, Sizes(1, 1))
        with pytest.raises(ConflictError):
            await pools.create(OPERATOR, "base", "gvisor", LIMITS, Sizes(2, 2))
        with pytest.raises(NotFoundError):
            await pools.create(OPERATOR, "nonsense", "auto", LIMITS, Sizes(2, 2))
        second = await pools.create(OPERATOR, "base", "auto", other, Sizes(0, 0))
        with pytest.raises(ConflictError):
            pools.find("base", OPERATOR)
        with pytest.raises(NotFoundError):
            pools.find("code-interpreter", OPERATOR)
        await pools.change(second.pool.id, OPERATOR, warm=None, most=3, blank=None)
        await until(lambda: len(first.pool.ready) == 1)
    assert driver.leftovers() == []
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        pools = service.sandboxes.pools
        await until(lambda: len(pools.all(OPERATOR)) == 2)
        assert {told.pool.kind: told.pool.sizes for told in pools.all(OPERATOR)} == {
            Kind("base", "gvisor", LIMITS): Sizes(1, 1),
            Kind("base", "gvisor", other): Sizes(0, 3),
        }
        await until(lambda: len(pools.find(first.pool.id, OPERATOR).pool.ready) == 1)
        await pools.remove(first.pool.id, OPERATOR)
        await pools.remove(second.pool.id, OPERATOR)
        assert pools.all(OPERATOR) == []
        await until(lambda: driver.leftovers() == [])
        assert json.loads((tmp_path / "data" / FILE).read_text("utf-8"))["pools"] == []


async def test_a_service_that_leaves_its_sandboxes_takes_its_pools_along(tmp_path: Path) -> None:
    below = tmp_path / "driver"
    below.mkdir()
    driver = MemoryDriver()
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS, keep=True) as service:
        await service.sandboxes.pools.create(OPERATOR, "base", "auto", LIMITS, Sizes(2, 2))
        await filled(service.sandboxes.pools, 2)
        box = await service.sandboxes.create(BASE, OPERATOR)
    assert [instance.ref for instance in driver.booted if instance.process.returncode is None] == [box.ref]
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        again = service.sandboxes.find(box.id, OPERATOR)
        assert await said_when_there(again) == "alive\n"
    assert driver.leftovers() == []


async def said_when_there(box: Sandbox) -> str:
    await box.within_reach()
    return await said(box, "echo alive")


async def keyed(service: Service, name: str, **quota: Any) -> Principal:  # noqa: ANN401 - any of a quota's fields
    record, _ = await service.keys.create(name, quota=Quota(**quota))
    who = service.keys.principal_of(record.id)
    assert who is not None
    return who


async def own(at: Bench, who: Principal, warm: int, most: int | None = None, limits: Limits = LIMITS) -> Pool:
    return (await at.sandboxes.pools.create(who, "base", "auto", limits, Sizes(warm, warm if most is None else most))).pool


async def test_a_request_takes_of_its_owners_own_first_and_never_of_anothers(at: Bench) -> None:
    anne, bob = await keyed(at.service, "anne"), await keyed(at.service, "bob")
    made = [await own(at, who, 1) for who in (OPERATOR, anne, bob)]
    assert [each.owner for each in made] == [LOCAL, anne.owner, bob.owner]
    await until(lambda: all(len(each.ready) == 1 for each in made))
    for each in made:
        each.not_before_s = float("inf")  # nothing more is made
    nodes, annes, bobs = [each.ready[0].id for each in made]
    boxes = [await at.sandboxes.create(BASE, anne) for _ in range(3)]
    assert [box.id for box in boxes][:2] == [annes, nodes]
    assert boxes[2].id != bobs
    assert [member.id for member in made[2].ready] == [bobs]
    assert [each.claims for each in made] == [{"hot": 1, "boot": 1}, {"hot": 2, "boot": 1}, {}]


async def test_what_waits_for_an_owner_takes_what_his_live_ones_leave(at: Bench) -> None:
    anne = await keyed(at.service, "anne", sandboxes=3)
    mine, other = await own(at, anne, 2), await own(at, anne, 2, limits=replace(LIMITS, memory_bytes=2 * GIB))
    await until(lambda: mine.held + other.held == len(mine.ready) + len(other.ready) == 3)
    waiting = {member.id for member in (*mine.ready, *other.ready)}
    different = replace(BASE, limits=replace(LIMITS, cpus=0.5))
    boxes = [await at.sandboxes.create(different, anne)]  # it is not of a pool, and not refused for what waits
    await until(lambda: len(mine.ready) + len(other.ready) == 2)
    assert {member.id for member in (*mine.ready, *other.ready)} < waiting
    boxes.append(await at.sandboxes.create(replace(BASE, limits=mine.kind.limits if mine.ready else other.kind.limits), anne))
    assert boxes[1].id in waiting, "one that is claimed is counted once, before and after"
    await until(lambda: mine.held + other.held == 1)
    boxes.append(await at.sandboxes.create(different, anne))
    await until(lambda: mine.held + other.held == 0)
    with pytest.raises(LimitError):
        await at.sandboxes.create(different, anne)
    await at.sandboxes.kill(boxes[0].id, anne)
    await until(lambda: len(mine.ready) + len(other.ready) == 1)


async def test_what_one_key_may_have_of_pools(at: Bench) -> None:
    anne = await keyed(at.service, "anne", sandboxes=3, pools=1)
    pools = at.sandboxes.pools
    with pytest.raises(LimitError) as refused:
        await own(at, anne, 4)
    assert refused.value.fields == {"quota": "sandboxes", "limit": 3, "used": 0, "asked": 4}
    with pytest.raises(ForbiddenError, match="the node's"):
        await pools.create(anne, "base", "auto", LIMITS, Sizes(0, 0, 1))
    mine = await own(at, anne, 0)
    with pytest.raises(LimitError) as refused:
        await own(at, anne, 0, limits=replace(LIMITS, cpus=0.5))
    assert refused.value.fields == {"quota": "pools", "limit": 1, "used": 1, "asked": 1}
    with pytest.raises(LimitError):
        await pools.change(mine.id, anne, warm=4, most=None, blank=None)
    with pytest.raises(ForbiddenError):
        await pools.change(mine.id, anne, warm=None, most=None, blank=1)
    assert mine.sizes == Sizes(0, 0)
    await asyncio.gather(*(own(at, OPERATOR, 0, limits=replace(LIMITS, memory_bytes=GIB + more * MIB)) for more in range(6)))
    assert len(pools.all(OPERATOR)) == 7
    assert [told.pool for told in pools.all(anne)] == [mine]


async def test_of_many_at_once_no_more_are_made_than_a_key_may_have(at: Bench) -> None:
    anne = await keyed(at.service, "anne", pools=2)
    asked = [own(at, anne, 0, limits=replace(LIMITS, memory_bytes=GIB + more * MIB)) for more in range(5)]
    came = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in came].count(LimitError) == 3
    assert at.sandboxes.pools.count(anne.owner) == 2
    same = await asyncio.gather(*(own(at, OPERATOR, 0) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in same].count(ConflictError) == 2


async def test_whose_key_is_revoked_has_no_pool_any_more(tmp_path: Path) -> None:
    below = tmp_path / "driver"
    below.mkdir()
    driver = MemoryDriver()
    kept = tmp_path / "data" / FILE
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        anne, bob = await keyed(service, "anne"), await keyed(service, "bob")
        pools = service.sandboxes.pools
        mine, other = [(await pools.create(who, "base", "auto", LIMITS, Sizes(1, 1))).pool for who in (anne, bob)]
        await until(lambda: bool(mine.ready and other.ready))
        await service.keys.revoke(anne.owner)
        await until(lambda: [told.pool for told in pools.all(OPERATOR)] == [other])
        await until(lambda: not mine.ready)
        await until(lambda: [each["owner"] for each in json.loads(kept.read_text("utf-8"))["pools"]] == [bob.owner])
        assert await service.store.keys.revoke(bob.owner, service.core.clock.now()) is not None  # and the service ends before it looks
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        await until(lambda: service.sandboxes.pools.all(OPERATOR) == [])
        await until(lambda: json.loads(kept.read_text("utf-8"))["pools"] == [])
    assert driver.leftovers() == []


async def test_an_owners_pool_is_his_after_a_restart(tmp_path: Path) -> None:
    below = tmp_path / "driver"
    below.mkdir()
    driver = MemoryDriver()
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        anne = await keyed(service, "anne")
        made = (await service.sandboxes.pools.create(anne, "base", "auto", LIMITS, Sizes(1, 1), {"team": "blue"})).pool
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        (told,) = service.sandboxes.pools.all(anne)
        assert (told.pool.id, told.pool.owner, told.pool.sizes, told.pool.metadata) == (made.id, anne.owner, Sizes(1, 1), {"team": "blue"})
        await until(lambda: len(told.pool.ready) == 1)
        (member,) = told.pool.ready
        assert (await service.sandboxes.create(BASE, anne)).id == member.id


async def test_where_room_is_short_what_waits_for_owners_goes_before_the_nodes(tmp_path: Path) -> None:
    has = Resources(memory_bytes=6 * GIB, disk_bytes=1 << 50, pids=1 << 40)
    async with bench(tmp_path, read_host=lambda: Reading(has=has, free=has, held_disk_bytes=0)) as at:
        anne = await keyed(at.service, "anne")
        nodes, mine = await own(at, OPERATOR, 1), await own(at, anne, 2)
        await until(lambda: len(nodes.ready) == 1 and len(mine.ready) == 2)
        kept = nodes.ready[0]
        await at.sandboxes.create(NewSandbox(template="base", limits=Limits(pids=LIMITS.pids, memory_bytes=4 * GIB)), OPERATOR)
        assert (list(nodes.ready), list(mine.ready)) == ([kept], [])
