"""Headroom: raised by what was reserved, lowered step by step, and withdrawn or ended in bounded time."""

# ruff: noqa: ASYNC240
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import cast

import pytest

from sandlot.drivers.oci import headroom
from sandlot.drivers.oci.headroom import SLACK_BYTES, Headroom
from sandlot.host.cgroup_layout import GroupLimits, step_down
from sandlot.host.cgroups import Cgroup, GroupMemory
from sandlot.model.errors import ConflictError
from sandlot.model.specs import MIB
from tests.support.until import until

RECORDED = GroupLimits(memory_bytes=512 * MIB, cpus=0.5, pids=100)


class Group:
    """A control group without processes. A test says how much memory is in use and what the kernel can reclaim.

    Attributes:
        limits: Limits in force.
        history: Memory limits that were in force, oldest first.
        charged: Memory in use.
        needed: Memory that the sandbox may need until the runtime has collected its garbage.
        grow: Called before each attempt to lower the limit, as a tenant that runs meanwhile.
        reclaimed: If set to an event, lowering blocks until the event is set.
    """

    name = PurePosixPath("/sandlot/ab27/ab27-aaaaaaaaaaaaaaaa")

    def __init__(self, mark: Path) -> None:
        self.limits = RECORDED
        self.history: list[int] = []
        self.charged = self.needed = 0
        self.grow: Callable[[], None] = lambda: None
        self.lowering, self.reclaimed = threading.Event(), threading.Event()
        self.reclaimed.set()
        self.is_frozen_now = False
        self.kills = 0
        self.marked: list[bool] = []
        self._mark = mark

    def change(self, limits: GroupLimits, *, keep_memory: bool = False) -> None:
        if keep_memory:
            limits = replace(limits, memory_bytes=self.limits.memory_bytes)
        if limits.memory_bytes < self.charged:
            raise ConflictError("in use")
        self._set(limits)

    def lower_memory(self, memory_bytes: int, slack_bytes: int) -> int:
        self.lowering.set()
        assert self.reclaimed.wait(10)
        self.grow()
        current = self.limits.memory_bytes
        step = step_down(current_bytes=current, wanted_bytes=memory_bytes, charged_bytes=self.charged, slack_bytes=slack_bytes)
        self._set(replace(self.limits, memory_bytes=memory_bytes if self.charged <= memory_bytes else step))
        return self.limits.memory_bytes

    def memory_limit(self) -> int:
        return self.limits.memory_bytes

    def memory(self) -> GroupMemory:
        return GroupMemory(charged_bytes=self.charged, anonymous_bytes=self.charged, shared_bytes=0)

    def uncollected(self, memory: GroupMemory) -> int:
        return self.needed if memory.charged_bytes == self.charged else 0

    def is_frozen(self) -> bool:
        return self.is_frozen_now

    def kill_once(self) -> int:
        self.kills += 1
        return 0

    def _set(self, limits: GroupLimits) -> None:
        if limits.memory_bytes > self.limits.memory_bytes:
            self.marked.append(self._mark.exists())
        self.limits = limits
        self.history.append(limits.memory_bytes)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "roomy"


@pytest.fixture
def group(mark: Path) -> Group:
    return Group(mark)


@pytest.fixture
def granted(group: Group, mark: Path) -> Iterator[Headroom]:
    made = Headroom(cast("Cgroup", group), mark, lambda: RECORDED, group.uncollected)
    yield made
    group.reclaimed.set()
    made.cancel()


@pytest.fixture
def retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "RETRY_PAUSES_S", (0.0,) * 8)


@contextmanager
def blocked(group: Group) -> Iterator[None]:
    """Make the kernel reclaim memory for as long as the block lasts."""
    group.reclaimed.clear()
    try:
        yield
    finally:
        group.reclaimed.set()


async def test_limit_is_raised_by_what_was_granted_and_lowered_at_once(group: Group, granted: Headroom, mark: Path) -> None:
    async with granted.raised(100 * MIB):
        assert group.limits.memory_bytes == 612 * MIB
        assert group.limits.cpus >= 1
        assert granted.granted_bytes == 100 * MIB
    assert group.limits == RECORDED
    assert (granted.granted_bytes, mark.exists(), group.lowering.is_set()) == (0, False, False)
    await granted.wait_withdrawn()


@pytest.mark.usefixtures("retries_at_once")
async def test_limit_never_rises_while_a_tenant_fills_what_it_gets_and_the_sandbox_is_ended(group: Group, granted: Headroom) -> None:
    async with granted.raised(512 * MIB):
        group.charged = 700 * MIB
    raised = len(group.history)

    def grow() -> None:
        group.charged = group.limits.memory_bytes

    group.grow = grow
    await until(lambda: granted.is_exhausted)
    steps = group.history[raised - 1 :]
    assert steps == sorted(steps, reverse=True)
    assert group.kills > 0


async def test_each_attempt_lowers_the_limit_to_the_memory_in_use(group: Group, granted: Headroom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headroom, "RETRY_PAUSES_S", (0.0, 0.0, 600.0))
    charged = iter([900 * MIB, 800 * MIB, 600 * MIB])
    async with granted.raised(512 * MIB):
        group.charged = 1000 * MIB

    def shrink() -> None:
        group.charged = next(charged)

    group.grow = shrink
    await until(lambda: group.limits.memory_bytes == 600 * MIB + SLACK_BYTES)
    assert [limit // MIB for limit in group.history if limit != group.history[0]] == [916, 916, 816, 816, 616, 616]
    await until(lambda: granted.granted_bytes == 104 * MIB)


async def test_sandbox_keeps_what_garbage_may_need_until_it_was_collected(
    group: Group, granted: Headroom, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headroom, "RETRY_PAUSES_S", (0.01, 0.01, 600.0))
    monkeypatch.setattr(headroom, "COLLECTED_S", 0.02)
    group.needed = 600 * MIB
    async with granted.raised(512 * MIB):
        group.charged = 300 * MIB
    assert mark.exists()
    await granted.wait_withdrawn()
    assert [limit // MIB for limit in group.history] == [1024, 1024, 600, 600, 600, 600, 512, 512]


async def test_garbage_that_needs_more_than_was_granted_raises_no_limit(group: Group, granted: Headroom) -> None:
    group.needed = 900 * MIB
    async with granted.raised(100 * MIB):
        pass
    await until(group.lowering.is_set)
    assert {limit // MIB for limit in group.history} == {612}
    async with granted.raised(0):
        granted.cancel()
    assert granted.granted_bytes == 100 * MIB


async def test_block_without_headroom_has_none_to_withdraw(group: Group, granted: Headroom) -> None:
    group.needed = 900 * MIB
    async with granted.raised(0):
        pass
    await granted.wait_withdrawn()
    assert not group.lowering.is_set()


@pytest.mark.usefixtures("retries_at_once")
async def test_headroom_is_withdrawn_once_the_memory_is_returned(group: Group, granted: Headroom, mark: Path) -> None:
    async with granted.raised(512 * MIB):
        group.charged = 700 * MIB
    assert granted.granted_bytes == 512 * MIB

    def shrink() -> None:
        group.charged -= 100 * MIB

    group.grow = shrink
    await granted.wait_withdrawn()
    assert group.limits == RECORDED
    assert (granted.granted_bytes, mark.exists(), granted.is_exhausted) == (0, False, False)


async def test_processors_come_back_before_the_memory(group: Group, granted: Headroom) -> None:
    with blocked(group):
        async with granted.raised(512 * MIB):
            group.charged = 700 * MIB
        assert (group.limits.cpus, group.limits.memory_bytes) == (RECORDED.cpus, 1024 * MIB)


async def test_limits_stay_raised_during_a_second_block_although_the_first_is_still_lowered(group: Group, granted: Headroom) -> None:
    with blocked(group):
        async with granted.raised(512 * MIB):
            group.charged = 700 * MIB
        await asyncio.to_thread(group.lowering.wait, 10)
        entered, leave = asyncio.Event(), asyncio.Event()

        async def second() -> None:
            async with granted.raised(512 * MIB):
                entered.set()
                await leave.wait()

        task = asyncio.ensure_future(second())
        done, _ = await asyncio.wait({asyncio.ensure_future(entered.wait())}, timeout=0.1)
        assert not done, "the block began while a thread could still lower the limit"
    await entered.wait()
    assert group.limits.memory_bytes == 1024 * MIB
    lowered = group.history[-2:]
    leave.set()
    await task
    assert lowered == [716 * MIB, 1024 * MIB]


async def test_cancelled_wait_for_a_raise_leaves_the_withdrawal_going(group: Group, granted: Headroom) -> None:
    with blocked(group):
        async with granted.raised(512 * MIB):
            group.charged = 700 * MIB
        await asyncio.to_thread(group.lowering.wait, 10)

        async def second() -> None:
            async with granted.raised(512 * MIB):
                raise AssertionError("it was cancelled")

        task = asyncio.ensure_future(second())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        group.charged = 100 * MIB
    await granted.wait_withdrawn()
    assert group.limits == RECORDED


@pytest.mark.parametrize("second, in_force", [(50, 512 + 204), (300, 512 + 300)])
async def test_second_block_grants_the_larger_of_what_is_left_and_what_is_new(group: Group, granted: Headroom, second: int, in_force: int) -> None:
    async with granted.raised(512 * MIB):
        group.charged = 700 * MIB
    await until(lambda: granted.granted_bytes == 204 * MIB)
    async with granted.raised(second * MIB):
        assert group.limits.memory_bytes == in_force * MIB


@pytest.mark.usefixtures("retries_at_once")
async def test_frozen_sandbox_is_not_ended_for_memory_that_it_cannot_return(group: Group, granted: Headroom) -> None:
    group.is_frozen_now = True
    attempts = 0

    def count() -> None:
        nonlocal attempts
        attempts += 1

    group.grow = count
    async with granted.raised(512 * MIB):
        group.charged = 700 * MIB
    await until(lambda: attempts > 20)
    assert not granted.is_exhausted
    group.is_frozen_now = False
    await until(lambda: granted.is_exhausted)


async def test_next_service_withdraws_the_headroom_that_a_killed_service_granted(group: Group, granted: Headroom, mark: Path) -> None:
    async with granted.raised(512 * MIB):
        group.charged = 700 * MIB
        assert group.marked == [True], "a service that is killed right after the raise would leave no trace of it"
        killed = group.limits
    await until(lambda: group.limits.memory_bytes < 1024 * MIB)
    granted.cancel()
    group.limits = killed
    group.lowering.clear()
    later = Headroom(cast("Cgroup", group), mark, lambda: RECORDED, group.uncollected)
    with blocked(group):
        assert await later.recover()
        assert later.granted_bytes == 512 * MIB
        group.charged = 100 * MIB
    await later.wait_withdrawn()
    assert group.limits == RECORDED
    assert not mark.exists()
    assert not await later.recover()


async def test_changed_limits_leave_headroom_to_its_withdrawal(group: Group, granted: Headroom) -> None:
    with blocked(group):
        async with granted.raised(512 * MIB):
            group.charged = 700 * MIB
        granted.change_limits(replace(RECORDED, cpus=2))
        assert (group.limits.memory_bytes, group.limits.cpus, granted.granted_bytes) == (1024 * MIB, 2, 512 * MIB)
        granted.change_limits(replace(RECORDED, memory_bytes=600 * MIB))
        assert (group.limits.memory_bytes, granted.granted_bytes) == (1024 * MIB, 424 * MIB)
        with pytest.raises(ConflictError):
            granted.change_limits(replace(RECORDED, memory_bytes=500 * MIB))
        assert (group.limits.memory_bytes, granted.granted_bytes) == (1024 * MIB, 424 * MIB)
        granted.change_limits(replace(RECORDED, memory_bytes=2048 * MIB))
        assert (group.limits.memory_bytes, granted.granted_bytes) == (2048 * MIB, 0)


async def test_released_sandbox_needs_no_withdrawal(group: Group, mark: Path) -> None:
    recorded: list[GroupLimits | None] = [RECORDED]
    granted = Headroom(cast("Cgroup", group), mark, lambda: recorded[0], group.uncollected)
    async with granted.raised(512 * MIB):
        group.charged = 700 * MIB
        recorded[0] = None
    await granted.wait_withdrawn()
    assert not group.lowering.is_set()
