"""Where template snapshots lie: whole or not there, shared, and not removed from under who uses them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from sandlot.core.pools.template_snapshot_cache import IMAGE, MADE, UNUSED_S, TemplateSnapshotCache, in_thread
from tests.support.node import settled

ONE, TWO = "1" * 64, "2" * 64
LOOK = {"template": "base", "isolation": "gvisor"}


@pytest.fixture
def shelf(tmp_path: Path) -> TemplateSnapshotCache:
    return TemplateSnapshotCache(tmp_path)


def publish(shelf: TemplateSnapshotCache, key: str, look: dict[str, str] = LOOK) -> None:
    lock = shelf.lock(key)
    assert lock is not None
    with shelf.begin(key) as folder:
        (folder.content / IMAGE).mkdir()
        shelf.publish(key, folder, {"look": look, "size_bytes": 7})
    os.close(lock)


def names(tmp_path: Path) -> set[str]:
    assert list((tmp_path / "snapshots/tmp").iterdir()) == []  # nothing is left of what was published or removed
    return {path.name for path in (tmp_path / "snapshots").iterdir()} - {"tmp", "locks"}


def test_snapshot_is_found_once_it_is_published(shelf: TemplateSnapshotCache, tmp_path: Path) -> None:
    assert shelf.take(ONE) is None
    publish(shelf, ONE)
    held = shelf.take(ONE)
    assert held is not None
    assert held.image.is_dir()
    assert held.made["size_bytes"] == 7
    assert (tmp_path / "snapshots").stat().st_mode & 0o077 == 0
    held.release()


def test_one_at_a_time_makes_a_key(shelf: TemplateSnapshotCache) -> None:
    lock = shelf.lock(ONE)
    assert lock is not None
    assert shelf.lock(ONE) is None
    other = shelf.lock(TWO)
    assert other is not None
    os.close(other)
    os.close(lock)
    again = shelf.lock(ONE)
    assert again is not None
    os.close(again)


def test_what_somebody_uses_is_not_removed(shelf: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(shelf, ONE)
    held, twice = shelf.take(ONE), TemplateSnapshotCache(tmp_path).take(ONE)
    assert held is not None
    assert twice is not None
    held.release()
    assert not shelf.remove(ONE)
    assert twice.image.is_dir()
    twice.release()
    assert shelf.remove(ONE)
    assert names(tmp_path) == set()
    assert shelf.take(ONE) is None


def test_a_new_one_takes_the_place_of_the_stale_one_of_its_look(shelf: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(shelf, ONE)
    publish(shelf, TWO)
    publish(shelf, "3" * 64, {"template": "other"})
    assert shelf.replaced(TWO, LOOK) == 1
    assert names(tmp_path) == {TWO, "3" * 64}


def test_sweep_removes_what_a_dead_service_left_and_keeps_what_is_being_made(shelf: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(shelf, ONE)
    (tmp_path / "snapshots/tmp/dead").mkdir()
    with shelf.begin(TWO) as folder:
        assert shelf.sweep() == 1
        assert folder.content.is_dir()
    assert names(tmp_path) == {ONE}


def test_what_nobody_has_used_for_long_goes(shelf: TemplateSnapshotCache, tmp_path: Path) -> None:
    publish(shelf, ONE)
    publish(shelf, TWO)
    long_ago_s = time.time() - UNUSED_S - 60
    for key in (ONE, TWO):
        os.utime(tmp_path / "snapshots" / key / MADE, (long_ago_s, long_ago_s))
    held = shelf.take(TWO)
    assert held is not None
    assert shelf.sweep() == 1
    assert names(tmp_path) == {TWO}
    held.release()


async def test_lock_taken_for_a_cancelled_caller_is_released(shelf: TemplateSnapshotCache) -> None:
    begun, go_on = threading.Event(), threading.Event()
    released: list[int] = []

    def slow(key: str) -> int | None:
        begun.set()
        go_on.wait()
        return shelf.lock(key)

    def release(lock: int) -> None:
        os.close(lock)
        released.append(lock)

    taking = in_thread(slow, ONE, release)
    waiting = asyncio.create_task(taking)
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go_on.set()
    await settled(lambda: len(released) == 1)

    lock = shelf.lock(ONE)
    assert lock is not None
    os.close(lock)
