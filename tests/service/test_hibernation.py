"""Hibernation on gVisor: repeated, on a full disk, and of several owners."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.core.execution.helpers import is_helper
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, LimitError, NotFoundError
from sandlot.model.faults import Fault
from sandlot.model.specs import MIB
from sandlot.model.states import State as Life
from sandlot.server.composition import RunningService
from tests.support.saving import BASE, cell, check, fill, fill_up, free_up, make, place, real_service, saved, shell, small_disk
from tests.support.until import until

pytestmark = pytest.mark.slow

ALICE, BOB = (Principal(OwnerId(name), name) for name in ("alice", "bob"))


async def no_memory_promised(service: RunningService) -> bool:
    return (await service.internals.reservations.capacity()).reserved.memory_bytes == 0


@pytest.mark.parametrize("times, size", [(2, 8 * MIB), pytest.param(20, 50 * MIB, marks=pytest.mark.soak)])
async def test_hibernation_keeps_everything_again_and_again(core_service: RunningService, state_dir: Path, times: int, size: int) -> None:
    sandbox = await make(core_service)
    state = await fill(core_service.node, sandbox, size=size)
    for number in range(1, times + 1):
        await core_service.internals.manager.hibernate(OPERATOR, sandbox.id)
        assert saved(state_dir) == [sandbox.id]
        await until(lambda: no_memory_promised(core_service))
        if number % 2:
            await core_service.internals.manager.resume(OPERATOR, sandbox.id)
        await check(core_service.node, sandbox, state)  # where nobody woke it, the next request does
        assert saved(state_dir) == []
        counted = await cell(core_service.node, sandbox, f"seen = [*globals().get('seen', []), {number}]\nprint(seen)")
        assert counted == f"{list(range(1, number + 1))}\n"
        await shell(core_service.node, sandbox, f"echo {number} >> /workspace/cycles")
    assert (await shell(core_service.node, sandbox, "cat /workspace/cycles")).split() == [str(number) for number in range(1, times + 1)]
    await core_service.internals.manager.kill(OPERATOR, sandbox.id)


async def test_full_disk_fails_the_hibernation_and_the_sandbox_continues() -> None:
    with place() as folder, small_disk(folder):
        async with real_service(folder, disk_reserve_bytes=0, disk_ratio=100.0) as service:
            sandbox = await make(service)
            state = await fill(service.node, sandbox, size=32 * MIB)
            filled = fill_up(folder, but_bytes=16 * MIB)  # what it writes itself finds room
            for _ in range(2):  # what was written so far is gone, and it can be asked again
                with pytest.raises(LimitError, match="disk of the host is full") as full:
                    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
                assert (full.value.code, full.value.status, full.value.fault) == (ErrorCode.NODE_DISK_FULL, 507, Fault.CAPACITY)
                assert sandbox.state is Life.RUNNING
                assert saved(folder) == []
            await check(service.node, sandbox, state)
            await free_up(filled)
            await service.internals.manager.hibernate(OPERATOR, sandbox.id)
            await check(service.node, sandbox, state)


async def test_hibernated_sandboxes_of_two_owners_share_nothing(core_service: RunningService) -> None:
    first, second = [await core_service.internals.manager.create(principal, BASE) for principal in (ALICE, BOB)]
    states = [await fill(core_service.node, sandbox, word) for sandbox, word in ((first, "first"), (second, "second"))]
    for sandbox, principal, other in ((first, ALICE, BOB), (second, BOB, ALICE)):
        await core_service.internals.manager.hibernate(principal, sandbox.id)
        for verb in (
            core_service.internals.manager.resume,
            core_service.internals.manager.hibernate,
            core_service.internals.manager.pause,
            core_service.internals.manager.kill,
        ):
            with pytest.raises(NotFoundError):
                await verb(other, sandbox.id)
    for sandbox, state in zip((first, second), states, strict=True):
        assert sandbox.state is Life.HIBERNATED
        await check(core_service.node, sandbox, state)
        assert (await shell(core_service.node, sandbox, "hostname")).strip() == sandbox.id
    drawn = {
        await cell(core_service.node, sandbox, "import os, random, uuid\nprint(os.urandom(8).hex(), random.random(), uuid.uuid4())")
        for sandbox in (first, second)
    }
    assert len(drawn) == 2
    for sandbox, principal in ((first, ALICE), (second, BOB)):
        await core_service.internals.manager.kill(principal, sandbox.id)


async def test_watches_do_not_wake_a_hibernated_sandbox_and_continue_after_it_wakes(core_service: RunningService) -> None:
    async def programs(sandbox: Sandbox) -> int:
        async with sandbox.connection() as link:
            return sum(info.running and is_helper(info.argv) for info in await link.processes.list())

    sandbox, watches = await make(core_service), core_service.node.watches
    watcher = await watches.create(OPERATOR, sandbox.id, "/workspace")
    watch = await watches.watch(OPERATOR, sandbox.id, "/workspace")
    await core_service.internals.manager.hibernate(OPERATOR, sandbox.id)
    with pytest.raises(ConflictError):
        await anext(aiter(watch))
    await watch.aclose()
    await asyncio.sleep(0.5)  # a wake would have begun by now
    assert sandbox.state is Life.HIBERNATED
    assert [event.kind for event in await watches.take(OPERATOR, sandbox.id, watcher.id)] == ["overflow"]

    async def one() -> bool:
        return await programs(sandbox) == 1

    await until(one)
    await shell(core_service.node, sandbox, "echo > /workspace/seen")

    async def seen() -> bool:
        return ("created", "/workspace/seen") in [(event.kind, event.path) for event in await watches.take(OPERATOR, sandbox.id, watcher.id)]

    await until(seen)
    await core_service.internals.manager.kill(OPERATOR, sandbox.id)
