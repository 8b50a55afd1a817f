"""The store on disk: complete files only, bounded, shared by processes, swept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.store import store as store_module
from sandlot.egress.packages.store.eviction import StoredFile
from sandlot.egress.packages.store.open_files import DraftFile
from sandlot.egress.packages.store.store import Kind, PackageStore

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def store(tmp_path: Path, counters: Counters) -> PackageStore:
    found = PackageStore(tmp_path / "packages", 1 * MIB, counters)
    found.prepare()
    return found


def put(store: PackageStore, text: str, size: int = 100 * KIB) -> str:
    data = text.encode().ljust(size, b".")
    name = hashlib.sha256(data).hexdigest()
    assert store.put(Kind.PAGES, name, data)
    return name


def age(tmp_path: Path, name: str, seconds: float) -> None:
    path = next((tmp_path / "packages").rglob(name))
    os.utime(path, (time.time() - seconds,) * 2)


def drafts(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "packages/tmp").iterdir())


def test_limit_is_kept_by_evicting_the_least_recently_used_file(store: PackageStore, tmp_path: Path, counters: Counters) -> None:
    first = put(store, "first")
    age(tmp_path, first, 5000)
    second = put(store, "second")
    age(tmp_path, second, 9000)
    assert store.read(Kind.PAGES, first)  # used now
    for number in range(20):
        put(store, f"more {number}")
        assert store.total_bytes() <= 1 * MIB
    assert store.read(Kind.PAGES, second) is None
    assert counters.evictions > 0


def test_file_in_use_is_not_evicted(store: PackageStore, tmp_path: Path) -> None:
    read = put(store, "read")
    opened = store.open(Kind.PAGES, read)
    assert opened is not None
    age(tmp_path, read, 9000)
    draft = store.create_draft()
    assert store.make_room(draft, 100 * KIB)
    for number in range(20):
        put(store, f"more {number}")
    assert draft.path.exists()
    assert store.read(Kind.PAGES, read) is not None
    opened.close()
    draft.close()
    age(tmp_path, read, 9000)
    for number in range(20):
        put(store, f"again {number}")
    assert store.read(Kind.PAGES, read) is None


def test_file_larger_than_the_limit_gets_no_room(store: PackageStore) -> None:
    draft, other = store.create_draft(), store.create_draft()
    assert not store.make_room(draft, 2 * MIB)
    assert store.make_room(draft, 900 * KIB)
    assert not store.make_room(other, 900 * KIB)
    draft.close()
    store._full_s = float("-inf")  # noqa: SLF001 - a second has passed
    assert store.make_room(other, 900 * KIB)
    other.close()


def test_refused_space_is_not_counted_and_a_full_store_is_not_scanned_each_time(store: PackageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    scans, scan = 0, store._scan  # noqa: SLF001 - how often the disk is read is what this is about

    def counted() -> list[StoredFile]:
        nonlocal scans
        scans += 1
        return scan()

    monkeypatch.setattr(store, "_scan", counted)
    monkeypatch.setattr(store_module, "_FULL_S", 3600.0)
    monkeypatch.setattr(store_module, "_SCAN_S", 3600.0)
    large, other = store.create_draft(), store.create_draft()
    assert store.make_room(large, 700 * KIB)
    scans = 0
    for _ in range(10):
        assert not store.make_room(other, 600 * KIB)
    assert scans == 1
    for _ in range(10):
        assert store.make_room(other, 4 * KIB), "what fits has room"
    assert scans == 1
    large.close()
    other.close()


def test_sweep_removes_drafts_of_dead_writers_only(store: PackageStore, tmp_path: Path) -> None:
    live = store.create_draft()
    program = (
        "import sys, os, signal; from pathlib import Path; from sandlot.egress.packages.store.open_files import DraftFile;"
        "d = DraftFile(Path(sys.argv[1])); d.write(b'x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "packages/tmp"], check=False)
    assert len(drafts(tmp_path)) == 2
    assert store.sweep() == 0  # it may have been made a moment ago
    for path in drafts(tmp_path):
        os.utime(path, (time.time() - 1000,) * 2)
    assert store.sweep() == 1
    assert drafts(tmp_path) == [live.path]
    live.close()


def test_two_services_share_a_store(store: PackageStore, tmp_path: Path) -> None:
    other = PackageStore(tmp_path / "packages", 1 * MIB, Counters())
    other.prepare()
    name = put(store, "a")
    assert put(other, "a") == name
    assert other.read(Kind.PAGES, name) is not None
    for number in range(30):
        put((store, other)[number % 2], f"{number}")
    store._scanned_s = float("-inf")  # noqa: SLF001 - ten seconds have passed
    put(store, "last")
    assert store.total_bytes() <= 1 * MIB


def test_full_disk_is_reported_and_leaves_no_draft(small_disk: Path, counters: Counters) -> None:
    store = PackageStore(small_disk / "packages", 100 * MIB, counters)
    store.prepare()
    put(store, "a", 200 * KIB)
    draft = store.create_draft()
    assert not store.make_room(draft, 5 * MIB)
    draft.close()
    assert not store.put(Kind.PAGES, "b" * 64, bytes(2 * MIB))
    assert list((small_disk / "packages/tmp").iterdir()) == []
    assert counters.evictions >= 1, "what is here makes room first"


def test_close_waits_for_a_read_in_progress(tmp_path: Path) -> None:
    draft = DraftFile(tmp_path)
    draft.write(b"x" * 4096)
    stop = threading.Event()
    wrong: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            try:
                data = draft.read(4096, 0)
            except OSError:
                return
            if data != b"x" * 4096:
                wrong.append(data)

    readers = [threading.Thread(target=read) for _ in range(4)]
    for reader in readers:
        reader.start()
    draft.close()
    with open(os.devnull, "rb"):  # noqa: PTH123 - takes the number that has become free
        stop.set()
        for reader in readers:
            reader.join()
    assert wrong == []


class Shared:
    """A disk on which others have reserved space."""

    def __init__(self, reserved_bytes: int) -> None:
        self.reserved_bytes = reserved_bytes

    async def disk_to_leave(self) -> int:
        return self.reserved_bytes


async def test_disk_space_that_others_have_reserved_is_left_free(small_disk: Path, counters: Counters) -> None:
    """``small_disk`` has 2 MiB."""
    store = PackageStore(small_disk / "packages", 100 * MIB, counters)
    store.prepare()
    disk = Shared(1 * MIB)
    store.share_disk(disk)
    await store.read_disk()
    for number in range(20):
        assert store.put(Kind.PAGES, hashlib.sha256(b"%d" % number).hexdigest(), bytes(200 * KIB))
    found = os.statvfs(small_disk)
    assert found.f_bavail * found.f_frsize >= 1 * MIB
    assert counters.evictions > 10

    disk.reserved_bytes = 2 * MIB
    await store.read_disk()
    store._full_s = float("-inf")  # noqa: SLF001 - a second has passed
    assert not store.put(Kind.PAGES, "c" * 64, bytes(200 * KIB))


def test_files_are_given_up_for_others_the_least_recently_used_first(store: PackageStore, tmp_path: Path) -> None:
    names = [put(store, f"{number}") for number in range(5)]
    for position, name in enumerate(names):
        age(tmp_path, name, 1000 - 100 * position)
    assert store.reclaim(150 * KIB) >= 150 * KIB
    assert [store.read(Kind.PAGES, name) is not None for name in names] == [False, False, True, True, True]
    assert store.reclaim(10 * MIB) == 0
    assert store.read(Kind.PAGES, names[2]) is not None
