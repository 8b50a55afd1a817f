"""Limits of a running sandbox: guest, host and reservation change together, or not at all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.model.access import OPERATOR, OwnerId, Principal, Quota
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    HostError,
    InternalError,
    InvalidRequestError,
    LimitError,
    SandboxEndedError,
    TimeoutExceededError,
    UnavailableError,
)
from sandlot.model.pools import PoolSizes
from sandlot.model.ports import Change, HostReading, Resources
from sandlot.model.sandboxes import LimitsChange, UpdateSandboxParams
from sandlot.model.specs import GIB, MIB, Limits, ProcessSpec, User
from sandlot.server.settings import Settings
from sandlot.testing.memory.driver import MemoryInstance
from tests.support.clock import ManualClock
from tests.support.pools import live_pools
from tests.support.service import BASE, BOUNDLESS, Bench, bench
from tests.support.until import until

PIDS = 20_000
"""Large, because without isolation the guest's limit counts all processes of the machine."""
LIMITS = Limits(pids=PIDS)


@pytest.fixture
async def sandbox(at: Bench) -> Sandbox:
    return await at.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange.to(LIMITS)))


async def inside(sandbox: Sandbox) -> int:
    """Return the limit of processes that the guest was given."""
    assert isinstance(sandbox.instance, MemoryInstance)
    return sandbox.instance.guest.pids


async def promised(at: Bench) -> Resources:
    return (await at.sandboxes.capacity()).reserved


async def test_omitted_and_equal_limits_are_not_changed(at: Bench, sandbox: Sandbox) -> None:
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=2 * GIB, cpus=0.5)))
    assert sandbox.spec.limits == replace(LIMITS, memory_bytes=2 * GIB, cpus=0.5)
    (driver,) = at.driver.booted
    assert driver.changes == [Change(memory_bytes=2 * GIB, cpus=0.5, pids=PIDS, disk_bytes=LIMITS.disk_bytes)]
    assert (await promised(at)).memory_bytes == 2 * GIB
    for same in (LimitsChange(), LimitsChange(memory_bytes=2 * GIB), LimitsChange(disk_bytes=LIMITS.disk_bytes)):
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=same))
    assert len(driver.changes) == 1


@pytest.mark.parametrize("pids", [PIDS + 100, PIDS - 100])
async def test_new_process_limit_is_set_in_the_guest_and_on_the_host(at: Bench, sandbox: Sandbox, pids: int) -> None:
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(pids=pids)))
    assert await inside(sandbox) == sandbox.spec.limits.pids == pids
    assert [change.pids for change in at.driver.booted[0].changes] == [pids]
    used = await at.sandboxes.usage(OPERATOR, sandbox.id)
    assert used.limits.pids == pids
    assert used.pids is not None
    assert used.usage.pids == 3


@pytest.mark.parametrize("pids", [PIDS + 100, PIDS - 100])
async def test_limits_that_the_host_refuses_are_changed_nowhere(at: Bench, sandbox: Sandbox, pids: int) -> None:
    before = await promised(at)
    at.driver.faults.raises["configure"] = [ConflictError("It holds more.", code=ErrorCode.CONFLICT)]
    with pytest.raises(ConflictError, match="holds more"):
        await at.sandboxes.update(
            OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(pids=pids, memory_bytes=2 * GIB), metadata={"a": "b"}, timeout_s=10)
        )
    assert (await inside(sandbox), sandbox.spec.limits, dict(sandbox.metadata), sandbox.spec.timeout_s) == (PIDS, LIMITS, {}, BASE.timeout_s)
    assert await promised(at) == before
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(pids=pids)))
    assert await inside(sandbox) == pids


async def test_limits_that_the_guest_refuses_are_changed_nowhere(at: Bench, sandbox: Sandbox) -> None:
    before = await promised(at)
    for _ in range(20):
        await at.node.processes.launch(OPERATOR, sandbox.id, ProcessSpec(("sleep", "600"), user=User.ROOT, timeout_s=None))
    with pytest.raises(ConflictError, match=r"The sandbox has 2\d processes and threads"):
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(pids=16, memory_bytes=2 * GIB)))
    assert (await inside(sandbox), sandbox.spec.limits, at.driver.booted[0].changes) == (PIDS, LIMITS, [])
    assert await promised(at) == before
    assert (await at.sandboxes.usage(OPERATOR, sandbox.id)).pids in {20, 21}  # the kernel that is kept ready may be there by now


async def test_limits_are_set_back_if_the_update_fails_later(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.link is not None

    async def fail(_: float | None) -> None:
        raise InternalError("no deadline")

    monkeypatch.setattr(type(sandbox.link), "set_deadline", lambda _, seconds: fail(seconds))
    for pids in (PIDS + 100, PIDS - 100):
        with pytest.raises(InternalError, match="no deadline"):
            await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(pids=pids), timeout_s=50))
        assert (await inside(sandbox), sandbox.spec.limits) == (PIDS, LIMITS)
    assert [change.pids for change in at.driver.booted[0].changes] == [PIDS + 100, PIDS, PIDS - 100, PIDS]


async def test_limits_are_not_changed_without_a_response_of_the_guest(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.link is not None

    async def silent() -> None:
        raise TimeoutExceededError("silent")

    monkeypatch.setattr(type(sandbox.link), "set_limits", lambda _, pids: silent() if pids else None)
    monkeypatch.setattr(type(sandbox.link), "info", lambda _: asyncio.Event().wait())
    monkeypatch.setattr("sandlot.core.lifecycle.update.COUNT_TIMEOUT_S", 0.01)
    with pytest.raises(TimeoutExceededError):
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(pids=PIDS + 1)))
    assert [change.pids for change in at.driver.booted[0].changes] == [PIDS + 1, PIDS]
    used = await at.sandboxes.usage(OPERATOR, sandbox.id)
    assert (used.pids, used.usage.pids) == (None, 3)


async def test_memory_is_added_only_after_the_guest_has_agreed(at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.link is not None

    async def refuse() -> None:
        raise ConflictError("no", code=ErrorCode.CONFLICT)

    monkeypatch.setattr(type(sandbox.link), "set_limits", lambda _, pids: refuse() if pids else None)
    with pytest.raises(ConflictError, match="no"):
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(pids=PIDS + 1, memory_bytes=32 * GIB)))
    assert at.driver.booted[0].changes
    assert {change.memory_bytes for change in at.driver.booted[0].changes} == {LIMITS.memory_bytes}
    assert (sandbox.spec.limits, (await promised(at)).memory_bytes) == (LIMITS, LIMITS.memory_bytes)


async def test_limits_whose_change_failed_on_the_host_are_set_again(at: Bench, sandbox: Sandbox) -> None:
    at.driver.faults.raises["configure"] = [OSError(5, "Input/output error")]

    with pytest.raises(HostError, match="Input/output error"):
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=2 * GIB)))

    assert [change.memory_bytes for change in at.driver.booted[0].changes] == [LIMITS.memory_bytes]
    assert sandbox.spec.limits == LIMITS
    assert (await promised(at)).memory_bytes == LIMITS.memory_bytes


@pytest.mark.parametrize("failure", [ConflictError("It holds more.", code=ErrorCode.CONFLICT), OSError(16, "busy")], ids=["refused", "failed"])
async def test_memory_that_cannot_be_withdrawn_stays_reserved_and_is_reported(
    at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """The sandbox fills the memory that it was given, and then its guest refuses the rest of the change."""
    assert sandbox.link is not None

    async def refuse() -> None:
        at.driver.faults.raises["configure"] = [failure]
        raise InternalError("no deadline")

    with monkeypatch.context() as patch:
        patch.setattr(type(sandbox.link), "set_deadline", lambda _, seconds: refuse() if seconds else None)
        with pytest.raises(InternalError, match="no deadline"):
            await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB), timeout_s=50))
    assert sandbox.spec.limits == replace(LIMITS, memory_bytes=3 * GIB)
    assert (await promised(at)).memory_bytes == 3 * GIB
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=GIB)))  # later it can be
    assert at.driver.booted[0].changes[-1].memory_bytes == GIB
    assert (await promised(at)).memory_bytes == GIB


async def test_process_limit_that_cannot_be_lowered_stays_and_all_other_limits_are_set_back(
    at: Bench, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sandbox.link is not None
    real = type(sandbox.link).set_limits

    async def raise_only(link: Link, *, pids: int, memory_bytes: int | None = None, processors: int | None = None) -> None:
        if pids < sandbox.spec.limits.pids + 100:
            raise ConflictError("more run", code=ErrorCode.CONFLICT)
        await real(link, pids=pids, memory_bytes=memory_bytes, processors=processors)

    async def fail() -> None:
        raise InternalError("no deadline")

    monkeypatch.setattr(type(sandbox.link), "set_limits", raise_only)
    monkeypatch.setattr(type(sandbox.link), "set_deadline", lambda _, seconds: fail() if seconds else None)
    with pytest.raises(InternalError, match="no deadline"):
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB, pids=PIDS + 100), timeout_s=50))
    assert sandbox.spec.limits == replace(LIMITS, pids=PIDS + 100)
    assert at.driver.booted[0].changes[-1] == Change(memory_bytes=GIB, cpus=LIMITS.cpus, disk_bytes=LIMITS.disk_bytes, pids=PIDS + 100)
    assert await promised(at) == Resources(memory_bytes=GIB, disk_bytes=LIMITS.disk_bytes, pids=PIDS + 100)


async def test_update_reports_a_sandbox_that_was_killed_while_the_host_was_read(tmp_path: Path) -> None:
    looks = threading.Semaphore(1)

    def look() -> HostReading:
        looks.acquire()
        return BOUNDLESS

    clock = ManualClock()
    async with bench(tmp_path, clock=clock, read_host=look) as at:
        sandbox = await at.sandbox()
        clock.advance(2)
        waiting = asyncio.create_task(at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=2 * GIB))))
        await asyncio.sleep(0)
        await at.sandboxes.kill(OPERATOR, sandbox.id)
        await until(lambda: at.sandboxes.held == 0)
        looks.release()
        with pytest.raises(SandboxEndedError, match="killed by request"):
            await waiting


async def test_update_of_an_ended_or_unfinished_sandbox_is_refused(at: Bench, sandbox: Sandbox) -> None:
    release = at.driver.faults.hold("boot")
    creating = asyncio.create_task(at.sandboxes.create(OPERATOR, replace(BASE, name="new")))
    await at.driver.faults.reach("boot")
    (new,) = (each for each in at.sandboxes.list(OPERATOR) if each.name == "new")
    with pytest.raises(ConflictError, match="still being created"):
        await at.sandboxes.update(OPERATOR, new.id, UpdateSandboxParams(limits=LimitsChange(cpus=0.5)))
    release.set()
    await creating
    await at.sandboxes.kill(OPERATOR, sandbox.id)
    with pytest.raises(SandboxEndedError):
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(cpus=0.5)))


class TestAQuota:
    """Two sandboxes of one core and 1 GiB each, of a key that may have four of both."""

    WHO = Principal(OwnerId("a" * 12), "alice", quota=Quota(cpus=4.0, memory_bytes=4 * GIB))

    async def test_concurrent_updates_stay_within_the_quota(self, at: Bench) -> None:
        sandboxes = [await at.sandboxes.create(self.WHO, replace(BASE, limits=LimitsChange.to(LIMITS))) for _ in range(2)]
        changes = [
            at.sandboxes.update(self.WHO, sandbox.id, UpdateSandboxParams(limits=LimitsChange(cpus=3.0, memory_bytes=3 * GIB)))
            for sandbox in sandboxes
        ]
        ends = await asyncio.gather(*changes, return_exceptions=True)
        refused = [end for end in ends if isinstance(end, LimitError)]
        assert [error.code for error in refused] == [ErrorCode.QUOTA_EXCEEDED]
        assert sorted(sandbox.spec.limits.cpus for sandbox in sandboxes) == [1.0, 3.0]

    async def test_unfinished_update_counts_with_the_larger_of_both_limits(self, at: Bench) -> None:
        one = await at.sandboxes.create(self.WHO, replace(BASE, limits=LimitsChange.to(replace(LIMITS, memory_bytes=3 * GIB))))
        release = at.driver.faults.hold("configure")
        less = asyncio.create_task(at.sandboxes.update(self.WHO, one.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=GIB))))
        await at.driver.faults.reach("configure")
        more = asyncio.create_task(at.sandboxes.update(self.WHO, one.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB))))
        with pytest.raises(LimitError):
            await at.sandboxes.create(self.WHO, replace(BASE, limits=LimitsChange.to(replace(LIMITS, memory_bytes=2 * GIB))))
        async with asyncio.timeout(60):
            release.set()
            await less
            await more
        assert at.service.internals.reservations.live_limits(one.owner) == [one.spec.limits] == [replace(LIMITS, memory_bytes=3 * GIB)]

    async def test_update_that_waited_is_checked_again(self, at: Bench) -> None:
        one = await at.sandboxes.create(self.WHO, replace(BASE, limits=LimitsChange.to(replace(LIMITS, memory_bytes=3 * GIB))))
        await at.sandboxes.update(self.WHO, one.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=GIB)))
        at.driver.fail_next("configure", ConflictError("It holds more.", code=ErrorCode.CONFLICT))
        release = at.driver.hold("configure")
        first = asyncio.create_task(at.sandboxes.update(self.WHO, one.id, UpdateSandboxParams(limits=LimitsChange(cpus=0.5))))
        await at.driver.faults.reach("configure")
        waiting = asyncio.create_task(at.sandboxes.update(self.WHO, one.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB))))
        await asyncio.sleep(0)
        await at.sandboxes.create(self.WHO, replace(BASE, limits=LimitsChange.to(replace(LIMITS, memory_bytes=3 * GIB))))
        release.set()
        with pytest.raises(ConflictError):
            await first
        with pytest.raises(LimitError):
            await waiting
        assert one.spec.limits.memory_bytes == GIB


async def test_new_limits_are_recorded_before_the_response(at: Bench, sandbox: Sandbox) -> None:
    await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(cpus=2.0, memory_bytes=2 * GIB)))
    record = await at.service.store.sandboxes.get(sandbox.id)
    assert record is not None
    assert record.spec.limits == sandbox.spec.limits == replace(LIMITS, cpus=2.0, memory_bytes=2 * GIB)


class TestAFullNode:
    """A host of 4 GiB for two sandboxes of 1 GiB."""

    @pytest.fixture
    async def at(self, tmp_path: Path) -> AsyncIterator[Bench]:
        has = replace(BOUNDLESS.total, memory_bytes=4 * GIB)
        settings = Settings(memory_reserve_bytes=0, suspend_reserve=0)
        async with bench(tmp_path, settings, read_host=lambda: HostReading(total=has, free=has, sandbox_disk_bytes=0)) as here:
            yield here

    async def test_limits_beyond_the_free_room_are_busy_and_beyond_the_node_invalid(self, at: Bench, sandbox: Sandbox) -> None:
        other = await at.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange.to(LIMITS)))
        with pytest.raises(UnavailableError) as busy:
            await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB + MIB)))
        assert busy.value.code is ErrorCode.BUSY
        assert busy.value.fields["retry_after_s"] > 0
        with pytest.raises(InvalidRequestError, match="memory"):
            await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=5 * GIB)))
        assert (sandbox.spec.limits, at.driver.booted[0].changes) == (LIMITS, [])
        # Memory that one sandbox gives up can be added to the other.
        await at.sandboxes.update(OPERATOR, other.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=512 * MIB)))
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB + MIB)))
        assert (await promised(at)).memory_bytes == 3 * GIB + 513 * MIB

    async def test_warm_sandboxes_are_evicted_for_a_sandbox_that_grows(self, at: Bench, sandbox: Sandbox) -> None:
        made = await at.service.node.pools.create(OPERATOR, "base", "auto", LimitsChange.to(LIMITS), PoolSizes(2, 2))
        pool = live_pools(at.service.node)[made.id]
        await until(lambda: len(pool.ready) == 2)
        await at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB)))
        assert (sandbox.spec.limits.memory_bytes, len(pool.ready)) == (3 * GIB, 1), "no more goes than it grows by"

    async def test_update_over_the_quota_evicts_nothing(self, at: Bench) -> None:
        principal = Principal(OwnerId("a" * 12), "alice", quota=Quota(memory_bytes=2 * GIB))
        one = await at.sandboxes.create(principal, replace(BASE, limits=LimitsChange.to(LIMITS)))
        made = await at.service.node.pools.create(OPERATOR, "base", "auto", LimitsChange.to(LIMITS), PoolSizes(2, 2))
        pool = live_pools(at.service.node)[made.id]
        await until(lambda: len(pool.ready) == 2)
        with pytest.raises(LimitError):
            await at.sandboxes.update(principal, one.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=3 * GIB)))
        assert len(pool.ready) == 2

    async def test_unfinished_update_reserves_the_larger_of_both_limits(self, at: Bench, sandbox: Sandbox) -> None:
        release = at.driver.faults.hold("configure")
        changing = asyncio.create_task(at.sandboxes.update(OPERATOR, sandbox.id, UpdateSandboxParams(limits=LimitsChange(memory_bytes=4 * GIB))))
        await at.driver.faults.reach("configure")
        with pytest.raises(UnavailableError):
            await at.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange.to(LIMITS)))
        release.set()
        await changing
        with pytest.raises(UnavailableError):
            await at.sandboxes.create(OPERATOR, replace(BASE, limits=LimitsChange.to(LIMITS)))
