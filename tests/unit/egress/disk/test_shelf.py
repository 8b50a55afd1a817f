"""The store on the disk: whole files or none, bounded, shared by processes, swept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sandlot.egress.counters import Counters
from sandlot.egress.disk import shelf as shelf_module
from sandlot.egress.disk.eviction import Kept
from sandlot.egress.disk.opened import Draft
from sandlot.egress.disk.shelf import Kind, Shelf

KIB = 1024
MIB = 1024 * KIB


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def shelf(tmp_path: Path, counters: Counters) -> Shelf:
    found = Shelf(tmp_path / "packages", 1 * MIB, counters)
    found.prepare()
    return found


def put(shelf: Shelf, text: str, size: int = 100 * KIB) -> str:
    data = text.encode().ljust(size, b".")
    name = hashlib.sha256(data).hexdigest()
    assert shelf.put(Kind.BODIES, name, data)
    return name


def age(tmp_path: Path, name: str, seconds: float) -> None:
    path = next((tmp_path / "packages").rglob(name))
    os.utime(path, (time.time() - seconds,) * 2)


def drafts(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "packages/tmp").iterdir())


def test_the_bound_is_kept_and_the_longest_unused_goes(shelf: Shelf, tmp_path: Path, counters: Counters) -> None:
    first = put(shelf, "first")
    age(tmp_path, first, 5000)
    second = put(shelf, "second")
    age(tmp_path, second, 9000)
    assert shelf.read(Kind.BODIES, first)  # used now
    for number in range(20):
        put(shelf, f"more {number}")
        assert shelf.total_bytes() <= 1 * MIB
    assert shelf.read(Kind.BODIES, second) is None
    assert counters.evictions > 0


def test_what_is_read_or_written_does_not_go(shelf: Shelf, tmp_path: Path) -> None:
    read = put(shelf, "read")
    opened = shelf.open(Kind.BODIES, read)
    assert opened is not None
    age(tmp_path, read, 9000)
    draft = shelf.draft()
    assert shelf.make_room(draft, 100 * KIB)
    for number in range(20):
        put(shelf, f"more {number}")
    assert draft.path.exists()
    assert shelf.read(Kind.BODIES, read) is not None
    opened.close()
    draft.close()
    age(tmp_path, read, 9000)
    for number in range(20):
        put(shelf, f"again {number}")
    assert shelf.read(Kind.BODIES, read) is None


def test_no_room_is_had_for_more_than_there_may_be(shelf: Shelf) -> None:
    draft, other = shelf.draft(), shelf.draft()
    assert not shelf.make_room(draft, 2 * MIB)
    assert shelf.make_room(draft, 900 * KIB)
    assert not shelf.make_room(other, 900 * KIB)
    draft.close()
    shelf._full_s = float("-inf")  # noqa: SLF001 - a second has passed
    assert shelf.make_room(other, 900 * KIB)
    other.close()


def test_what_was_not_given_is_not_counted_and_a_full_shelf_is_not_scanned_for_everybody(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    scans, scan = 0, shelf._scan  # noqa: SLF001 - how often the disk is read is what this is about

    def counted() -> list[Kept]:
        nonlocal scans
        scans += 1
        return scan()

    monkeypatch.setattr(shelf, "_scan", counted)
    monkeypatch.setattr(shelf_module, "_FULL_S", 3600.0)
    monkeypatch.setattr(shelf_module, "_SCAN_S", 3600.0)
    large, other = shelf.draft(), shelf.draft()
    assert shelf.make_room(large, 700 * KIB)
    scans = 0
    for _ in range(10):
        assert not shelf.make_room(other, 600 * KIB)
    assert scans == 1
    for _ in range(10):
        assert shelf.make_room(other, 4 * KIB), "what fits has room"
    assert scans == 1
    large.close()
    other.close()


def test_what_a_dead_writer_left_is_swept_and_what_a_live_one_writes_is_not(shelf: Shelf, tmp_path: Path) -> None:
    live = shelf.draft()
    program = (
        "import sys, os, signal; from pathlib import Path; from sandlot.egress.disk.opened import Draft;"
        "d = Draft(Path(sys.argv[1])); d.write(b'x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "packages/tmp"], check=False)
    assert len(drafts(tmp_path)) == 2
    assert shelf.sweep() == 0  # it may have been made a moment ago
    for path in drafts(tmp_path):
        os.utime(path, (time.time() - 1000,) * 2)
    assert shelf.sweep() == 1
    assert drafts(tmp_path) == [live.path]
    live.close()


def test_two_services_share_a_shelf(shelf: Shelf, tmp_path: Path) -> None:
    other = Shelf(tmp_path / "packages", 1 * MIB, Counters())
    other.prepare()
    name = put(shelf, "a")
    assert put(other, "a") == name
    assert other.read(Kind.BODIES, name) is not None
    for number in range(30):
        put((shelf, other)[number % 2], f"{number}")
    shelf._scanned_s = float("-inf")  # noqa: SLF001 - ten seconds have passed
    put(shelf, "last")
    assert shelf.total_bytes() <= 1 * MIB


def test_a_full_disk_says_so_and_keeps_nothing(small_disk: Path, counters: Counters) -> None:
    shelf = Shelf(small_disk / "packages", 100 * MIB, counters)
    shelf.prepare()
    put(shelf, "a", 200 * KIB)
    draft = shelf.draft()
    assert not shelf.make_room(draft, 5 * MIB)
    draft.close()
    assert not shelf.put(Kind.BODIES, "b" * 64, bytes(2 * MIB))
    assert list((small_disk / "packages/tmp").iterdir()) == []
    assert counters.evictions >= 1, "what is here makes room first"


def test_a_close_waits_for_the_read_that_is_under_way(tmp_path: Path) -> None:
    draft = Draft(tmp_path)
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
