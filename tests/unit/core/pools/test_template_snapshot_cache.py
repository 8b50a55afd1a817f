"""Template snapshots on disk: complete or absent, shared by services, and not removed while one of them uses them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from sandlot.core.pools.template_snapshot_cache import IMAGE, MANIFEST, UNUSED_S, TemplateSnapshot, TemplateSnapshotCache, take_in_thread
from tests.support.node import settled

ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64
SPEC = {"template": "base", "isolation": "gvisor"}


@pytest.fixture
def cache(tmp_path: Path) -> TemplateSnapshotCache:
    return TemplateSnapshotCache(tmp_path)


def publish(cache: TemplateSnapshotCache, key: str, spec: dict[str, str] = SPEC) -> None:
    lock = cache.lock(key)
    assert lock is not None
    with cache.begin(key) as folder:
        (folder.content / IMAGE).mkdir()
        cache.publish(key, folder, {"spec": spec, "size_bytes": 7})
    os.close(lock)


def taken(cache: TemplateSnapshotCache, key: str) -> TemplateSnapshot:
    snapshot = cache.take(key)
    assert snapshot is not None
    return snapshot


def published_keys(cache_dir: Path) -> set[str]:
    assert list((cache_dir / "snapshots/tmp").iterdir()) == [], "nothing is left of snapshots that were published or removed"
    return {path.name for path in (cache_dir / "snapshots").iterdir()} - {"tmp", "locks"}


def test_snapshot_is_found_after_it_was_published(cache: TemplateSnapshotCache) -> None:
    assert cache.take(ONE) is None
    publish(cache, ONE)

    snapshot = taken(cache, ONE)

    assert snapshot.image.is_dir()
    assert snapshot.manifest["size_bytes"] == 7
    snapshot.release()


def test_only_root_can_read_snapshots(cache: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(cache, ONE)

    assert (tmp_path / "snapshots").stat().st_mode & 0o077 == 0


def test_each_key_is_made_by_one_service_at_a_time(cache: TemplateSnapshotCache) -> None:
    lock, other = cache.lock(ONE), cache.lock(TWO)
    assert lock is not None
    assert other is not None
    assert cache.lock(ONE) is None
    os.close(lock)

    again = cache.lock(ONE)

    assert again is not None
    os.close(again)
    os.close(other)


def test_snapshot_is_removed_only_when_no_service_uses_it(cache: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(cache, ONE)
    first, second = taken(cache, ONE), taken(TemplateSnapshotCache(tmp_path), ONE)

    first.release()
    assert not cache.remove(ONE)
    assert second.image.is_dir()

    second.release()
    assert cache.remove(ONE)
    assert published_keys(tmp_path) == set()
    assert cache.take(ONE) is None


def test_new_snapshot_replaces_older_ones_of_an_equal_spec(cache: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(cache, ONE)
    publish(cache, TWO)
    publish(cache, THREE, {"template": "other"})

    assert cache.remove_replaced(TWO, SPEC) == 1

    assert published_keys(tmp_path) == {TWO, THREE}


def test_sweep_removes_leftovers_of_killed_services_but_no_unfinished_snapshot(cache: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(cache, ONE)
    (tmp_path / "snapshots/tmp/dead").mkdir()

    with cache.begin(TWO) as folder:
        assert cache.sweep() == 1
        assert folder.content.is_dir()

    assert published_keys(tmp_path) == {ONE}


def test_sweep_removes_snapshots_that_were_not_used_for_a_week(cache: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(cache, ONE)
    publish(cache, TWO)
    unused_since_s = time.time() - UNUSED_S - 60
    for key in (ONE, TWO):
        os.utime(tmp_path / "snapshots" / key / MANIFEST, (unused_since_s, unused_since_s))
    snapshot = taken(cache, TWO)

    assert cache.sweep() == 1

    assert published_keys(tmp_path) == {TWO}
    snapshot.release()


async def test_lock_taken_for_a_cancelled_caller_is_released(cache: TemplateSnapshotCache) -> None:
    started, may_go_on = threading.Event(), threading.Event()
    released: list[int] = []

    def slow(key: str) -> int | None:
        started.set()
        may_go_on.wait()
        return cache.lock(key)

    def release(lock: int) -> None:
        os.close(lock)
        released.append(lock)

    taking = asyncio.create_task(take_in_thread(slow, ONE, release))
    await asyncio.to_thread(started.wait)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    may_go_on.set()
    await settled(lambda: len(released) == 1)

    lock = cache.lock(ONE)
    assert lock is not None
    os.close(lock)
