"""Sandboxes of one service: limits, ended sandboxes, unique names, and the stop of the service."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core import registry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    HostError,
    InvalidRequestError,
    NotFoundError,
    UnavailableError,
)
from sandlot.model.ports import HostReading, Resources
from sandlot.model.sandboxes import LimitsChange
from sandlot.model.specs import GIB
from sandlot.model.states import State
from sandlot.server.settings import Settings
from tests.support.clock import ManualClock
from tests.support.service import BASE, BOUNDLESS, Bench, bench
from tests.support.until import until


async def test_bounded_number_of_ended_sandboxes_is_remembered_without_their_environment(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_REMEMBERED", 2)
    sandboxes = []
    for number in range(3):
        sandbox = await at.sandboxes.create(OPERATOR, replace(BASE, env={"SECRET": "x"}, metadata={"n": str(number)}))
        await at.sandboxes.kill(OPERATOR, sandbox.id)
        sandboxes.append(sandbox)
    await until(lambda: at.sandboxes.held == 0)
    with pytest.raises(NotFoundError):
        at.sandboxes.find(sandboxes[0].id, OPERATOR)
    for sandbox in sandboxes[1:]:
        assert at.sandboxes.find(sandbox.id, OPERATOR).spec.env == {}
        assert at.sandboxes.find(sandbox.id, OPERATOR).metadata
        assert (sandbox.instance, sandbox.link) == (None, None)


async def test_creates_of_another_key_do_not_wait_behind_those_of_one_key(at: Bench) -> None:
    first, second = (replace(OPERATOR, owner=OwnerId(owner), operator=False) for owner in ("first", "second"))
    at.driver.hold("boot")
    creating = [asyncio.create_task(at.sandboxes.create(first, BASE)) for _ in range(3 * at.service.settings.max_creates)]
    await until(lambda: len(at.driver.prepared) == at.service.settings.max_creates)
    other = asyncio.create_task(at.sandboxes.create(second, BASE))
    try:
        await until(lambda: len(at.driver.prepared) == at.service.settings.max_creates + 1)
    finally:
        at.driver.faults.release("boot")
    await other
    await asyncio.gather(*creating)


async def test_sandbox_that_could_not_be_created_is_not_remembered(at: Bench) -> None:
    at.driver.faults.raises["boot"] = [HostError("no", code=ErrorCode.HOST_NOT_READY)]
    with pytest.raises(HostError):
        await at.sandbox()
    await until(lambda: at.sandboxes.held == 0)
    assert at.sandboxes.list(OPERATOR, ended=True) == []


async def test_limit_of_sandboxes_counts_unfinished_creates_and_removals(tmp_path: Path) -> None:
    async with bench(tmp_path, Settings(max_sandboxes=2)) as at:
        first = await at.sandbox()
        release = at.driver.faults.hold("prepare")
        second = asyncio.create_task(at.sandbox())
        await at.driver.faults.reach("prepare")
        with pytest.raises(UnavailableError) as full:
            await at.sandbox()
        assert full.value.code is ErrorCode.BUSY
        release.set()
        await second
        removing = at.driver.faults.hold("clean")
        await at.sandboxes.kill(OPERATOR, first.id)
        with pytest.raises(UnavailableError):
            await at.sandbox()
        removing.set()
        await until(lambda: at.sandboxes.held == 1)
        assert (await at.sandbox()).state is State.RUNNING


async def test_driver_is_probed_again_after_the_host_was_repaired(at: Bench) -> None:
    at.driver.faults.reason = "runsc is not installed."
    for _ in range(2):
        with pytest.raises(HostError):
            await at.sandbox()
    at.driver.faults.reason = ""
    assert (await at.sandbox()).state is State.RUNNING
    at.driver.faults.reason = "not asked any more"
    assert (await at.sandbox()).state is State.RUNNING


async def test_create_on_a_full_disk_is_busy_even_if_the_probe_failed(tmp_path: Path) -> None:
    full_host = replace(BOUNDLESS, free=replace(BOUNDLESS.free, disk_bytes=0))
    async with bench(tmp_path, read_host=lambda: full_host) as at:
        at.driver.faults.reason = "No space left on device"
        with pytest.raises(UnavailableError) as full:
            await at.sandbox()
    assert (full.value.code, full.value.fields["resource"]) == (ErrorCode.BUSY, "disk_bytes")


async def test_name_belongs_to_one_live_sandbox_of_an_owner(at: Bench) -> None:
    named = replace(BASE, name="worker")
    results = await asyncio.gather(*(at.sandboxes.create(OPERATOR, named) for _ in range(3)), return_exceptions=True)
    assert sorted(isinstance(each, ConflictError) for each in results) == [False, True, True]
    (sandbox,) = [each for each in results if isinstance(each, Sandbox)]
    assert at.sandboxes.find_by_name("worker", OPERATOR) is sandbox
    other = replace(OPERATOR, owner=OwnerId("0" * 12), operator=False)
    with pytest.raises(NotFoundError):
        at.sandboxes.find_by_name("worker", other)
    assert (await at.sandboxes.create(other, named)).owner == other.owner
    with pytest.raises(ConflictError) as taken:
        await at.sandboxes.create(OPERATOR, named)
    assert taken.value.fields == {"name": "worker", "sandbox": sandbox.id}
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    with pytest.raises(NotFoundError):
        at.sandboxes.find_by_name("worker", OPERATOR)
    assert (await at.sandboxes.create(OPERATOR, named)).name == "worker"


async def test_name_is_free_after_a_failed_create_and_taken_until_the_end_of_its_sandbox(at: Bench) -> None:
    named = replace(BASE, name="worker")
    at.driver.faults.raises["boot"] = [HostError("no", code=ErrorCode.HOST_NOT_READY)]
    with pytest.raises(HostError):
        await at.sandboxes.create(OPERATOR, named)
    sandbox = await at.sandboxes.create(OPERATOR, named)
    release = at.driver.faults.hold("destroy")
    await at.sandboxes.kill(OPERATOR, sandbox.id, wait=False)
    await at.driver.faults.reach("destroy")
    with pytest.raises(ConflictError):
        await at.sandboxes.create(OPERATOR, named)
    release.set()
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    assert (await at.sandboxes.create(OPERATOR, named)).name == "worker"


async def test_service_is_empty_from_the_removal_of_the_last_sandbox_on(at: Bench, clock: ManualClock) -> None:
    clock.advance(7)
    assert at.sandboxes.empty_s() == 7
    sandbox = await at.sandbox()
    clock.advance(7)
    assert at.sandboxes.empty_s() == 0
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    await until(lambda: at.sandboxes.held == 0)
    clock.advance(3)
    assert at.sandboxes.empty_s() == 3


async def test_stop_of_the_service_ends_sandboxes_in_every_state(at: Bench) -> None:
    running = await at.sandbox()
    release = at.driver.faults.hold("boot")
    creating = asyncio.create_task(at.sandbox())
    await at.driver.faults.reach("boot")
    closing = asyncio.create_task(at.sandboxes.aclose())
    await asyncio.sleep(0)
    release.set()
    await closing
    with pytest.raises(UnavailableError, match="stopping"):
        await creating
    assert running.exit is not None
    assert running.exit.detail == "the service was stopped"
    assert at.sandboxes.held == 0
    with pytest.raises(UnavailableError):
        await at.sandbox()


async def test_stop_waits_once_for_a_sandbox_that_cannot_be_removed(at: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    release = at.driver.faults.hold("clean")
    await at.sandbox()
    monkeypatch.setattr("sandlot.core.manager.CLOSE_TIMEOUT_S", 0.2)
    await at.sandboxes.aclose()
    monkeypatch.setattr("sandlot.core.manager.CLOSE_TIMEOUT_S", 3600.0)
    async with asyncio.timeout(30):
        await at.sandboxes.aclose()
    assert at.sandboxes.held == 1
    release.set()
    await until(lambda: at.sandboxes.held == 0)


async def test_node_reserves_no_more_than_its_host_has(tmp_path: Path) -> None:
    has = Resources(memory_bytes=3 * GIB, disk_bytes=1 << 50, pids=1 << 30)
    settings = Settings(memory_reserve_bytes=GIB // 2, suspend_reserve=0)
    async with bench(tmp_path, settings, read_host=lambda: HostReading(total=has, free=has, sandbox_disk_bytes=0)) as at:
        sandboxes = [await at.sandbox(), await at.sandbox()]
        found = await at.sandboxes.capacity()
        assert (found.reserved.memory_bytes, found.available.memory_bytes, found.sandboxes) == (2 * GIB, GIB // 2, 2)
        with pytest.raises(UnavailableError, match="are not reserved") as full:
            await at.sandbox()
        assert (full.value.code, full.value.retryable, full.value.fields["retry_after_s"]) == (ErrorCode.BUSY, True, 2)
        with pytest.raises(InvalidRequestError, match=r"together can have 2.5 GiB"):
            await at.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange(memory_bytes=4 * GIB)))
        assert at.sandboxes.held == 2
        await at.sandboxes.create(OPERATOR, replace(BASE, limits=replace(BASE.limits, memory_bytes=GIB // 2)))
        at.driver.faults.raises["clean"] = [OSError("busy")]
        await at.sandboxes.kill(OPERATOR, sandboxes[0].id)
        # The processes are dead, but the removal failed once, so the memory is still reserved.
        assert (await at.sandboxes.capacity()).available.memory_bytes == 0
        await until(lambda: at.sandboxes.held == 2)
        assert (await at.sandboxes.capacity()).available.memory_bytes == GIB
        await at.sandbox()


async def test_create_that_can_never_fit_is_invalid_while_the_service_is_full(tmp_path: Path) -> None:
    has = Resources(memory_bytes=3 * GIB, disk_bytes=1 << 50, pids=1 << 30)
    settings = Settings(max_sandboxes=1, memory_reserve_bytes=0, suspend_reserve=0)
    async with bench(tmp_path, settings, read_host=lambda: HostReading(total=has, free=has, sandbox_disk_bytes=0)) as at:
        await at.sandbox()
        with pytest.raises(UnavailableError):
            await at.sandbox()
        with pytest.raises(InvalidRequestError, match=r"together can have 3.0 GiB"):
            await at.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange(memory_bytes=4 * GIB)))
