"""Allocations: what a start has on the host is removed in the end, and stays reserved until then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from sandlot.core.resources.allocation import SLOW_REMOVAL_S, Allocation
from sandlot.core.resources.reservations import OvercommitConfig, Purpose, Reservations
from sandlot.model.errors import SandboxEndedError
from sandlot.model.ports import Driver, HostReading, PreparedSandbox, Resources
from sandlot.model.specs import RootFs, Shape
from tests.support.clock import ManualClock
from tests.support.node import run_pending

TEN = Resources(10, 10, 10)
SHAPE = Shape(root=RootFs("digest", Path("/nonexistent")))


class Resource:
    """A prepared sandbox whose first attempts to be destroyed fail, and which can be held while it is destroyed."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.attempts = 0
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def destroy(self) -> None:
        self.attempts += 1
        await self.may_end.wait()
        if self.attempts <= self.failures:
            raise OSError(16, "Device or resource busy")


class PreparingDriver:
    """A driver whose ``prepare`` waits for the test and ignores cancellations."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.preparing, self.may_end = asyncio.Event(), asyncio.Event()

    async def prepare(self, _shape: Shape, *, snapshot: Path | None) -> Resource:
        del snapshot
        self.preparing.set()
        await asyncio.shield(self.may_end.wait())
        return self.resource


@pytest.fixture
def reservations(clock: ManualClock) -> Reservations:
    host = Resources(100, 100, 100)
    no_reserve = OvercommitConfig(memory_reserve_bytes=0, disk_reserve_bytes=0, pids_reserve=0)
    return Reservations(lambda: HostReading(total=host, free=host, sandbox_disk_bytes=0), no_reserve, clock)


def allocate(reservations: Reservations, clock: ManualClock, resource: Resource | None = None, driver: Any = None) -> Allocation:  # noqa: ANN401
    allocation = Allocation(cast("Driver", driver), reservations.record(Purpose.SANDBOX, TEN), clock, "sb-1")
    if resource is not None:
        allocation.take(cast("PreparedSandbox", resource))
    return allocation


async def reserved(reservations: Reservations) -> int:
    return (await reservations.capacity()).reserved.memory_bytes


async def test_attempts_continue_with_doubling_pauses_up_to_a_minute(reservations: Reservations, clock: ManualClock) -> None:
    resource = Resource(failures=8)
    allocation = allocate(reservations, clock, resource)
    release = allocation.release()
    await run_pending()
    for attempts, pause_s in enumerate((1, 2, 4, 8, 16, 32, 60, 60), start=1):
        await clock.pass_s(pause_s - 0.5, 0.5)
        assert resource.attempts == attempts
        assert await reserved(reservations) == 10
        await clock.pass_s(0.5, 0.5)
    await release
    assert await reserved(reservations) == 0


async def test_release_is_expected_soon_until_an_attempt_fails(reservations: Reservations, clock: ManualClock) -> None:
    allocation = allocate(reservations, clock, Resource(failures=1))
    release = allocation.release()
    assert reservations.leaving() == {allocation.reservation}
    await run_pending()
    assert allocation.failed.is_set()
    assert reservations.leaving() == set()
    await clock.pass_s(2, 0.5)
    await release


async def test_release_that_takes_long_is_not_expected_soon(reservations: Reservations, clock: ManualClock) -> None:
    resource = Resource()
    resource.may_end.clear()
    allocation = allocate(reservations, clock, resource)
    release = allocation.release()
    await run_pending()
    await clock.pass_s(SLOW_REMOVAL_S - 1, 0.5)
    assert reservations.leaving() == {allocation.reservation}
    await clock.pass_s(2, 0.5)
    assert reservations.leaving() == set()
    assert not allocation.failed.is_set()
    resource.may_end.set()
    await release
    assert await reserved(reservations) == 0


async def test_release_is_idempotent(reservations: Reservations, clock: ManualClock) -> None:
    resource = Resource()
    allocation = allocate(reservations, clock, resource)
    assert allocation.release() is allocation.release()
    await allocation.release()
    assert resource.attempts == 1


async def test_callbacks_run_once_when_the_resources_are_removed_and_still_reserved(reservations: Reservations, clock: ManualClock) -> None:
    resource, seen = Resource(), []
    allocation = allocate(reservations, clock, resource)
    allocation.also_release(lambda _: seen.append((resource.attempts, allocation.reservation in reservations.leaving())))
    await allocation.release()
    assert seen == [(1, True)]
    assert await reserved(reservations) == 0


async def test_callback_that_is_passed_twice_runs_once(reservations: Reservations, clock: ManualClock) -> None:
    allocation = allocate(reservations, clock)
    seen: list[Allocation] = []
    for _ in range(2):
        allocation.also_release(seen.append)
    await allocation.release()
    assert seen == [allocation]


async def test_resource_that_is_made_after_the_release_has_begun_is_removed(reservations: Reservations, clock: ManualClock) -> None:
    resource = Resource()
    driver = PreparingDriver(resource)
    allocation = allocate(reservations, clock, driver=driver)
    preparing = asyncio.create_task(allocation.prepare(SHAPE))
    await driver.preparing.wait()
    await allocation.release()
    driver.may_end.set()
    with pytest.raises(SandboxEndedError):
        await preparing
    await allocation.release()
    assert resource.attempts == 1


async def test_wait_for_a_release_ends_at_the_first_failure(reservations: Reservations, clock: ManualClock) -> None:
    allocation = allocate(reservations, clock, Resource(failures=1))
    async with asyncio.timeout(60):
        await allocation.release_soon(1e6)
    assert await reserved(reservations) == 10
    await clock.pass_s(2, 0.5)
    assert await reserved(reservations) == 0
