"""Named snapshots on real drivers: what a sandbox started from one has, verification, damage, and full disks.

Names, owners, quotas and repeated requests are tested on the in-memory driver, in ``tests/unit/core/saved``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    LimitError,
    UnavailableError,
)
from sandlot.model.faults import Fault
from sandlot.model.ids import SnapshotId
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import MIB
from sandlot.model.states import State as Life
from sandlot.server.composition import RunningService
from tests.support.saving import (
    BASE,
    SMALL,
    State,
    check,
    fill,
    fill_up,
    free_up,
    gone,
    make,
    place,
    real_service,
    saved,
    shell,
    small_disk,
)
from tests.support.until import until

pytestmark = pytest.mark.slow

ALICE = Principal(owner=OwnerId("a11ce0a11ce0"), name="alice")
BOB = Principal(owner=OwnerId("b0bb0bb0bb0b"), name="bob")


@pytest.fixture(scope="module")
def service(core_service: RunningService) -> RunningService:
    return core_service


@pytest.fixture(scope="module")
async def source(service: RunningService) -> tuple[Sandbox, State]:
    """A sandbox with state in it, which goes on whatever is taken of it."""
    sandbox = await make(service, replace(BASE, env={"FIRST": "1", "BOTH": "1"}, metadata={"a": "b"}))
    return sandbox, await fill(service.node, sandbox)


async def start(
    service: RunningService, snapshot: str, *, limits: LimitsChange | None = None, principal: Principal = OPERATOR, **asked: object
) -> Sandbox:
    return await make(service, CreateSandboxParams(snapshot=snapshot, limits=limits or LimitsChange(), **asked), principal)  # type: ignore[arg-type]


async def end(service: RunningService, *sandboxes: Sandbox) -> None:
    for sandbox in sandboxes:
        await service.internals.manager.kill(OPERATOR, sandbox.id)


@contextmanager
def other_runtime(folder: Path, record: SnapshotRecord) -> Iterator[None]:
    """A snapshot as if another build of the runtime had written it, which is not on this host."""
    manifest = folder / "saved" / record.id / "image" / "snapshot.json"
    before = manifest.read_text(encoding="utf-8")
    manifest.write_text(json.dumps({**json.loads(before), "runtime_sha256": "ab" * 32}), encoding="utf-8")
    try:
        yield
    finally:
        manifest.write_text(before, encoding="utf-8")


async def events(service: RunningService, type_: str) -> list[dict[str, object]]:
    page = await service.store.events.page(owner=None, sandbox=None, after=0, limit=1000)
    return [dict(each.event.data) for each in page if each.event.type == type_]


async def test_snapshot_of_a_hibernated_sandbox_leaves_it_at_rest_and_may_start_with_larger_limits(
    service: RunningService, source: tuple[Sandbox, State], state_dir: Path
) -> None:
    sandbox, state = source
    await service.internals.manager.hibernate(OPERATOR, sandbox.id)
    record = await service.node.snapshots.create(OPERATOR, sandbox.id)
    larger = await start(service, record.id, limits=LimitsChange(memory_bytes=384 * MIB, pids=300))
    assert (larger.spec.limits.memory_bytes, larger.spec.limits.pids, larger.spec.limits.disk_bytes) == (384 * MIB, 300, SMALL.disk_bytes)
    await check(service.node, larger, state)
    assert sandbox.state is Life.HIBERNATED
    await end(service, larger)
    with pytest.raises(ConflictError) as refused:
        await start(service, record.id, limits=LimitsChange(memory_bytes=128 * MIB))
    assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
    await service.node.snapshots.delete(OPERATOR, record.id)
    await gone(state_dir, record.id)
    await check(service.node, sandbox, state)


async def test_snapshot_is_verified_and_its_files_start_a_sandbox_when_its_runtime_is_gone_until_both_are_damaged(
    service: RunningService, source: tuple[Sandbox, State], state_dir: Path
) -> None:
    taken = await service.node.snapshots.create(OPERATOR, source[0].id, name="set-up")
    await service.node.snapshots.verifier.idle.wait()
    record = await service.node.snapshots.get(OPERATOR, taken.id)
    assert (record.has_overlay, record.problem) == (True, "")
    assert record.size_bytes > taken.size_bytes
    await until(lambda: not any(sandbox.single_use for sandbox in service.internals.registry.list(OPERATOR)))  # the copy was for that alone

    overlay = state_dir / "saved" / taken.id / "files.overlay"
    with other_runtime(state_dir, taken):  # as after an upgrade whose old build is gone
        sandbox = await start(service, "set-up", env={"BOTH": "2", "SECOND": "2"})
        assert sandbox.spec.restored == "files"
        await check(service.node, sandbox, source[1], memory=False)
        assert (await shell(service.node, sandbox, "echo $FIRST $BOTH $SECOND")).split() == ["1", "2", "2"]
        told = [each for each in await events(service, "sandbox.created") if each.get("restored")]
        assert {"restored": "files", "snapshot": taken.id}.items() <= told[-1].items()
        await end(service, sandbox)
        overlay.unlink()
        with pytest.raises(ConflictError, match="runtime") as refused:
            await start(service, "set-up")
        assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE

    await service.store.snapshots.update(replace(record, has_overlay=False))
    for image in (state_dir / "saved" / taken.id / "image").glob("*.img"):
        with image.open("r+b") as file:
            file.write(bytes(image.stat().st_size))
    service.node.snapshots.verifier.submit(taken.id, tries=1)
    await service.node.snapshots.verifier.idle.wait()
    assert (await service.node.snapshots.get(OPERATOR, "set-up")).problem
    assert (await events(service, "snapshot.unusable"))[-1]["snapshot"] == taken.id
    with pytest.raises(ConflictError, match="could not be restored"):
        await start(service, "set-up")
    await service.node.snapshots.delete(OPERATOR, "set-up")
    await gone(state_dir, taken.id)


async def test_full_disk_fails_the_snapshot_and_the_source_continues() -> None:
    with place() as folder, small_disk(folder):
        records = {"events_keep": 100, "sandboxes_keep": 100, "executions_max_bytes": 16 * MIB}  # the database leaves room on this disk
        async with real_service(folder, keep=True, disk_reserve_bytes=0, **records) as careful:
            sandbox = await make(careful)
            state = await fill(careful.node, sandbox, size=8 * MIB)
            filled = fill_up(folder, but_bytes=4 * MIB)

            async def sees_the_full_disk() -> bool:
                return (await careful.internals.reservations.read_host()).free.disk_bytes <= 4 * MIB

            await until(sees_the_full_disk)  # a reading of the host is used for a second
            with pytest.raises(UnavailableError, match="disk") as busy:
                await careful.node.snapshots.create(OPERATOR, sandbox.id)
            assert "retry_after_s" in busy.value.fields
            await check(careful.node, sandbox, state)
        async with real_service(folder, disk_reserve_bytes=0, disk_ratio=100.0) as careless:
            sandbox = careless.internals.registry.find(sandbox.id, OPERATOR)
            with pytest.raises(LimitError) as full:
                await careless.node.snapshots.create(OPERATOR, sandbox.id)
            assert (full.value.code, full.value.status, full.value.fault) == (ErrorCode.NODE_DISK_FULL, 507, Fault.CAPACITY)
            assert saved(folder) == []
            assert await careless.store.snapshots.list_by_node(careless.node.id) == []
            await check(careless.node, sandbox, state)
            await free_up(filled)
            record = await careless.node.snapshots.create(OPERATOR, sandbox.id)
            assert saved(folder) == [record.id]
            await check(careless.node, sandbox, state)


async def test_snapshot_outlives_its_source_and_its_service() -> None:
    with place() as folder:
        async with real_service(folder) as first:
            sandbox = await make(first)
            state = await fill(first.node, sandbox, size=8 * MIB)
            record = await first.node.snapshots.create(OPERATOR, sandbox.id, name="kept")
            await first.internals.manager.kill(OPERATOR, sandbox.id)
        (folder / "saved" / "snap-half").mkdir()
        half = replace(record, id=SnapshotId("snap-aaaa-aaaaaaaaaaaaaaaa"), name=None, ready=False)
        async with real_service(folder) as second:
            assert saved(folder) == [record.id], "what belongs to nothing is removed by a start"
            await second.store.snapshots.save(half)
            copy = await start(second, "kept")
            await check(second.node, copy, state)
            await second.internals.manager.kill(OPERATOR, copy.id)
        async with real_service(folder) as third:
            assert [each.id for each in await third.store.snapshots.list_by_node(third.node.id)] == [record.id], (
                "what was never finished is forgotten"
            )
            await third.node.snapshots.delete(OPERATOR, "kept")
            await gone(folder, record.id)
