"""Pools of a whole service, on a driver without isolation and without snapshots: what waits was booted, made warm and stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.core.admission import NewSandbox
from sandlot.core.pools.asleep import NEUTRAL
from sandlot.core.pools.kept import FILE
from sandlot.core.pools.kinds import Kind, Sizes
from sandlot.core.pools.pools import Pools, Told
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, HostError, InvalidRequestError, NotFoundError, UnavailableError
from sandlot.model.ports import Reading, Resources
from sandlot.model.specs import GIB, MIB, Limits, ProcessSpec
from sandlot.model.states import State
from tests.support.bare import BareDriver
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
    made = await at.sandboxes.pools.create("base", "auto", LIMITS, Sizes(warm, warm if most is None else most))
    await filled(at.sandboxes.pools, warm)
    return made


async def filled(pools: Pools, count: int) -> None:
    await until(lambda: len(pools.find("base").pool.ready) == count)


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
    at.sandboxes.pools.find("base").pool.sizes = Sizes(0, 3)
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
    for instance in at.driver.instances:
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
        told = await at.sandboxes.pools.create("base", "auto", LIMITS, Sizes(5, 5))
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
    made = await at.sandboxes.pools.create("base", "auto", LIMITS, Sizes(1, 1))
    await until(lambda: at.sandboxes.pools.find(made.pool.kind.id).error == "no boot today")
    await filled(at.sandboxes.pools, 1)
    assert at.sandboxes.pools.find("base").error == ""
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
    driver = BareDriver(below)
    other = Limits(pids=LIMITS.pids, memory_bytes=2 * GIB)
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        pools = service.sandboxes.pools
        first = await pools.create("base", "auto", LIMITS, Sizes(1, 1))
        with pytest.raises(ConflictError):
            await pools.create("base", "gvisor", LIMITS, Sizes(2, 2))
        with pytest.raises(NotFoundError):
            await pools.create("nonsense", "auto", LIMITS, Sizes(2, 2))
        second = await pools.create("base", "auto", other, Sizes(0, 0))
        with pytest.raises(ConflictError):
            pools.find("base")
        with pytest.raises(NotFoundError):
            pools.find("code-interpreter")
        await pools.change(second.pool.kind.id, warm=None, most=3, blank=None)
        await until(lambda: len(first.pool.ready) == 1)
    assert driver.left() == []
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        pools = service.sandboxes.pools
        await until(lambda: len(pools.all()) == 2)
        assert {told.pool.kind: told.pool.sizes for told in pools.all()} == {
            Kind("base", "gvisor", LIMITS): Sizes(1, 1),
            Kind("base", "gvisor", other): Sizes(0, 3),
        }
        await until(lambda: len(pools.find(first.pool.kind.id).pool.ready) == 1)
        await pools.remove(first.pool.kind.id)
        await pools.remove(second.pool.kind.id)
        assert pools.all() == []
        await until(lambda: driver.left() == [])
        assert json.loads((tmp_path / "data" / FILE).read_text("utf-8"))["pools"] == []


async def test_a_service_that_leaves_its_sandboxes_takes_its_pools_along(tmp_path: Path) -> None:
    below = tmp_path / "driver"
    below.mkdir()
    driver = BareDriver(below)
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS, keep=True) as service:
        await service.sandboxes.pools.create("base", "auto", LIMITS, Sizes(2, 2))
        await filled(service.sandboxes.pools, 2)
        box = await service.sandboxes.create(BASE, OPERATOR)
    assert [instance.ref for instance in driver.instances if instance.process.returncode is None] == [box.ref]
    async with serving(tmp_path, driver, read_host=lambda: BOUNDLESS) as service:
        again = service.sandboxes.find(box.id, OPERATOR)
        assert await said_when_there(again) == "alive\n"
    assert driver.left() == []


async def said_when_there(box: Sandbox) -> str:
    await box.within_reach()
    return await said(box, "echo alive")
