"""Named snapshots on real drivers: what a sandbox started from one has, verification, damage, and full disks.

Names, owners, quotas and repeated requests are tested on the in-memory driver, in ``tests/unit/core/saved``.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.core.admission import NewSandbox
from sandlot.core.lives.adoption import USE_WORD
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OPERATOR, OwnerId, Principal
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    LimitError,
    UnavailableError,
)
from sandlot.model.ids import SnapshotId
from sandlot.model.ports import Change
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import MIB, SnapshotKind
from sandlot.model.states import State as Life
from sandlot.server.compose import Service
from tests.support.saving import (
    BASE,
    IN_CONTAINER,
    SMALL,
    State,
    cell,
    check,
    fill,
    fill_up,
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
def folder() -> Iterator[Path]:
    with place() as made:
        yield made


@pytest.fixture(scope="module")
async def service(folder: Path) -> AsyncGenerator[Service]:
    async with real_service(folder) as running:
        yield running


@pytest.fixture(scope="module")
async def source(service: Service) -> tuple[Sandbox, State]:
    """A sandbox with state in it, which goes on whatever is taken of it."""
    box = await make(service, replace(BASE, env={"FIRST": "1", "BOTH": "1"}, metadata={"a": "b"}))
    return box, await fill(box)


@pytest.fixture(scope="module")
async def taken(service: Service, source: tuple[Sandbox, State]) -> SnapshotRecord:
    return await service.core.snapshots.take(source[0].id, OPERATOR, name="set-up")


async def start(service: Service, snapshot: str, *, limits: Change | None = None, who: Principal = OPERATOR, **asked: object) -> Sandbox:
    return await service.core.snapshots.create(NewSandbox(snapshot=snapshot, **asked), who, limits=limits)  # type: ignore[arg-type]


async def end(service: Service, *boxes: Sandbox) -> None:
    for box in boxes:
        await service.sandboxes.kill(box.id, OPERATOR)


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


async def events(service: Service, type_: str) -> list[dict[str, object]]:
    page = await service.store.events.page(owner=None, sandbox=None, after=0, limit=1000)
    return [dict(each.event.data) for each in page if each.event.type == type_]


async def test_sandboxes_continue_from_a_snapshot_with_memory_files_and_processes(
    service: Service, source: tuple[Sandbox, State], taken: SnapshotRecord
) -> None:
    box, state = source
    assert taken.ready
    assert taken.size_bytes > MIB
    first, second = await asyncio.gather(start(service, "set-up", env={"BOTH": "2", "SECOND": "2"}), start(service, taken.id))
    for each in (box, first, second):
        await check(each, state)
    assert len({await shell(each, "hostname; head -c8 /dev/urandom | od -An -tx1") for each in (box, first, second)}) == 3
    assert (await shell(first, "echo $FIRST $BOTH $SECOND")).split() == ["1", "2", "2"]
    assert (await shell(second, "echo $FIRST $BOTH $SECOND")).split() == ["1", "1"]
    assert (first.spec.snapshot, first.spec.restored, first.spec.parent, first.spec.limits) == (taken.id, "memory", None, SMALL)
    await shell(first, "echo changed > /workspace/word")
    await cell(first, "word = 'changed'")
    for each in (box, second):
        await check(each, state)
    await end(service, first, second)


async def test_limits_may_be_larger_than_those_of_the_source_and_not_smaller(
    service: Service, taken: SnapshotRecord, source: tuple[Sandbox, State]
) -> None:
    larger = await start(service, taken.id, limits=Change(memory_bytes=384 * MIB, pids=300))
    assert (larger.spec.limits.memory_bytes, larger.spec.limits.pids, larger.spec.limits.disk_bytes) == (384 * MIB, 300, SMALL.disk_bytes)
    await check(larger, source[1])
    await end(service, larger)
    with pytest.raises(ConflictError) as refused:
        await start(service, taken.id, limits=Change(memory_bytes=128 * MIB))
    assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE


async def test_snapshot_of_a_resting_sandbox_leaves_it_at_rest(service: Service, source: tuple[Sandbox, State], folder: Path) -> None:
    box, state = source
    for rest, word in ((service.sandboxes.pause, Life.PAUSED), (service.sandboxes.hibernate, Life.HIBERNATED)):
        await rest(box.id, OPERATOR)
        record = await service.core.snapshots.take(box.id, OPERATOR)
        assert box.state is word
        copy = await start(service, record.id)
        await check(copy, state)
        assert box.state is word
        await end(service, copy)
        await service.core.snapshots.delete(record.id, OPERATOR)
        await gone(folder, record.id)
        await check(box, state)


async def test_snapshot_is_verified_and_its_files_start_a_sandbox_when_its_runtime_is_gone(
    service: Service, source: tuple[Sandbox, State], taken: SnapshotRecord, folder: Path
) -> None:
    await service.core.snapshots.verifier.settled()
    record = await service.core.snapshots.look(taken.id, OPERATOR)
    assert (record.layer, record.problem) == (True, "")
    assert record.size_bytes > taken.size_bytes
    await until(lambda: not any(USE_WORD in box.metadata for box in service.sandboxes.all(OPERATOR)))  # the copy was for that alone

    with other_runtime(folder, taken):  # as after an upgrade whose old build is gone
        box = await start(service, "set-up")
        assert box.spec.restored == "files"
        await check(box, source[1], memory=False)
        assert (await shell(box, "echo $FIRST")).split() == ["1"]
        told = [each for each in await events(service, "sandbox.created") if each.get("restored")]
        assert {"restored": "files", "snapshot": taken.id}.items() <= told[-1].items()
        await end(service, box)
        layer = folder / "saved" / taken.id / "files.layer"
        layer.rename(layer.with_name("away"))
        with pytest.raises(ConflictError, match="runtime") as refused:
            await start(service, "set-up")
        assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
        layer.with_name("away").rename(layer)
    box = await start(service, "set-up")
    assert box.spec.restored == "memory"
    await end(service, box)


async def test_damaged_snapshot_is_marked_and_refused(service: Service, source: tuple[Sandbox, State], folder: Path) -> None:
    record = await service.core.snapshots.take(source[0].id, OPERATOR, name="bad")
    await service.core.snapshots.verifier.settled()
    await service.store.snapshots.update(replace(record, layer=False))
    (folder / "saved" / record.id / "files.layer").unlink()
    for image in (folder / "saved" / record.id / "image").glob("*.img"):
        with image.open("r+b") as file:
            file.write(bytes(image.stat().st_size))
    service.core.snapshots.verifier.put(record.id, tries=1)
    await service.core.snapshots.verifier.settled()
    assert (await service.core.snapshots.look("bad", OPERATOR)).problem
    assert (await events(service, "snapshot.unusable"))[-1]["snapshot"] == record.id
    with pytest.raises(ConflictError, match="could not be restored"):
        await start(service, "bad")
    await service.core.snapshots.delete("bad", OPERATOR)
    await gone(folder, record.id)


@pytest.mark.parametrize("asked", [BASE, pytest.param(IN_CONTAINER, marks=pytest.mark.soak)], ids=["gvisor", "container"])
async def test_snapshot_of_files_boots_with_them(service: Service, asked: NewSandbox, folder: Path) -> None:
    box = await make(service, asked)
    state = await fill(box)
    record = await service.core.snapshots.take(box.id, OPERATOR, name="files", kind=SnapshotKind.FILES)
    assert (record.layer, (folder / "saved" / record.id / "image").exists()) == (True, False)
    await check(box, state)
    await end(service, box)
    copy = await start(service, "files")
    assert (copy.spec.restored, copy.spec.isolation) == ("files", asked.isolation if asked is IN_CONTAINER else "gvisor")
    await check(copy, state, memory=False)
    await end(service, copy)
    await service.core.snapshots.delete("files", OPERATOR)
    await gone(folder, record.id)


async def test_full_disk_fails_the_snapshot_and_the_source_continues() -> None:
    with place() as folder, small_disk(folder):
        async with real_service(folder, keep=True, disk_reserve_bytes=0) as careful:
            box = await make(careful)
            state = await fill(box, size=8 * MIB)
            filled = fill_up(folder, but_bytes=4 * MIB)
            with pytest.raises(UnavailableError, match="disk") as busy:
                await careful.core.snapshots.take(box.id, OPERATOR)
            assert "retry_after_s" in busy.value.fields
            await check(box, state)
        async with real_service(folder, disk_reserve_bytes=0, disk_ratio=100.0) as careless:
            box = careless.sandboxes.find(box.id, OPERATOR)
            with pytest.raises(LimitError) as full:
                await careless.core.snapshots.take(box.id, OPERATOR)
            assert (full.value.code, full.value.status) == (ErrorCode.DISK_FULL, 507)
            assert saved(folder) == []
            assert await careless.store.snapshots.of_node(careless.node) == []
            await check(box, state)
            filled.unlink()
            record = await careless.core.snapshots.take(box.id, OPERATOR)
            assert saved(folder) == [record.id]
            await check(box, state)


async def test_snapshot_outlives_its_source_and_its_service() -> None:
    with place() as folder:
        async with real_service(folder) as first:
            box = await make(first)
            state = await fill(box, size=8 * MIB)
            record = await first.core.snapshots.take(box.id, OPERATOR, name="kept")
            await first.sandboxes.kill(box.id, OPERATOR)
        (folder / "saved" / "snap-half").mkdir()
        half = replace(record, id=SnapshotId("snap-aaaa-aaaaaaaaaaaaaaaa"), name=None, ready=False)
        async with real_service(folder) as second:
            assert saved(folder) == [record.id], "what belongs to nothing is removed by a start"
            await second.store.snapshots.save(half)
            copy = await start(second, "kept")
            await check(copy, state)
            await second.sandboxes.kill(copy.id, OPERATOR)
        async with real_service(folder) as third:
            assert [each.id for each in await third.store.snapshots.of_node(third.node)] == [record.id], "what was never finished is forgotten"
            await third.core.snapshots.delete("kept", OPERATOR)
            await gone(folder, record.id)
