"""Decisions of the memory watch: what counts as memory, what counts as full, which process is killed, and when to measure again."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sandlot.guest.kernels import oom
from sandlot.guest.kernels.oom import (
    FILL_RATE_BYTES,
    MAX_EXAMINED,
    MAX_IDLE_PAUSE_S,
    MAX_PAUSE_S,
    MIN_IDLE_PAUSE_S,
    MIN_PAUSE_S,
    OomWatcher,
    explained,
    files_bytes,
    find_largest,
    mapped_files_bytes,
    own_bytes,
    pause_s,
    read_meminfo,
    reserve_bytes,
    resident_bytes,
    sum_mapped_files,
    used_bytes,
)
from sandlot.guest.process.procfs import ProcStat

MIB = 1 << 20
KERNEL, CHILD = 3, 12
SMAPS = b"""\
00ac4000-01877000 rw-p 00000000 00:00 0                                  [heap]
Size:              14028 kB
Rss:               14028 kB
Anonymous:         14028 kB
VmFlags: rd wr mr mw me ac
7ebab8000000-7ebaba801000 rw-p 00000000 00:00 0
Rss:               40964 kB
Anonymous:         40964 kB
7ebabba00000-7ebabc000000 rw-s 00000000 00:05 3                          /memfd:mm (deleted)
Rss:                6144 kB
Anonymous:             0 kB
7ebabc000000-7ebabd400000 rw-s 00000000 00:05 2                          /dev/zero (deleted)
Rss:               20480 kB
Anonymous:             0 kB
7ebad479a000-7ebad519a000 rw-s 00000000 00:18 2                          /dev/shm/x
Rss:               10240 kB
Anonymous:             0 kB
7ebabd400000-7ebac3800000 rw-p 00000000 00:11 6                          /workspace/big
Rss:              102400 kB
Anonymous:         30720 kB
7ebad409a000-7ebad479a000 rw-s 00000000 00:11 7                          /workspace/a file (deleted)
Rss:                7168 kB
Anonymous:             0 kB
"""


def meminfo(total: int, *, anonymous: int, shared: int, mapped: int) -> bytes:
    """Return the text of /proc/meminfo in gVisor.

    Args:
        total: Memory limit in MiB.
        anonymous: Anonymous memory in MiB.
        shared: Memory in MiB of the files that gVisor counts.
        mapped: Memory in MiB of mapped files of the template.
    """
    free = max(0, total - anonymous - shared - mapped)
    fields = {"MemTotal": total, "MemFree": free, "MemAvailable": free, "Cached": shared + mapped, "Active(anon)": anonymous + shared}
    fields |= {"AnonPages": anonymous + shared, "Mapped": mapped, "Shmem": shared}
    return "".join(f"{name + ':':15} {value * 1024:8} kB\n" for name, value in fields.items()).encode()


class NoChildren(dict[int, object]):
    """An empty table of child processes."""

    def report_kill(self, pid: int, reason: str) -> None:
        pass


class ScriptedWatcher(OomWatcher):
    """A watcher whose /proc/meminfo is scripted.

    Args:
        text: Content of /proc/meminfo.
    """

    def __init__(self, text: bytes) -> None:
        self.pauses_s: list[float] = []
        super().__init__(SimpleNamespace(call_later=self._call_later), NoChildren())  # type: ignore[arg-type]
        self._text = text

    def _call_later(self, delay_s: float, _call: object) -> SimpleNamespace:
        self.pauses_s.append(delay_s)
        return SimpleNamespace(cancel=lambda: None)

    def _read(self) -> bytes:
        return self._text


Kill = Callable[..., list[int]]


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> Kill:
    """A function that measures while ``KERNEL`` runs a cell, and returns the pids of the processes that were killed. All sizes are in MiB."""

    def measure(
        text: bytes, resident: dict[int, int], *, limit: int = 256, on_disk: int = 0, in_shared_memory: int = 0, mapped: dict[int, int] | None = None
    ) -> list[int]:
        found: list[int] = []
        sizes = {"/": on_disk, "/dev/shm": in_shared_memory}
        monkeypatch.setattr(oom, "files_bytes", lambda path: sizes[path] * MIB)
        monkeypatch.setattr(oom, "mapped_files_bytes", lambda pid: (mapped or {}).get(pid, 0) * MIB)
        monkeypatch.setattr(oom, "resident_bytes", lambda pid: resident[pid] * MIB)
        monkeypatch.setattr(oom, "all_pids", lambda: [1, *resident])
        monkeypatch.setattr(oom, "send_signal", lambda pid, _number: found.append(pid))
        watcher = ScriptedWatcher(text)
        watcher.on_cell(lambda: [KERNEL])
        watcher.set_limit(limit * MIB)
        return found

    return measure


@pytest.mark.parametrize(
    "text", [b"", b"MemTotal: 1 kB\nAnonPages: 1 kB\n", b"MemTotal: x kB\nAnonPages: 2 kB\nShmem: 1 kB\n", b"MemTotal: 1 kB\nShmem:"]
)
def test_text_that_is_not_meminfo_has_no_values(text: bytes) -> None:
    assert read_meminfo(text) is None


def test_meminfo_of_gvisor_is_read() -> None:
    assert read_meminfo(meminfo(256, anonymous=65, shared=180, mapped=17)) == (256 * MIB, 65 * MIB, 180 * MIB)


@pytest.mark.parametrize("limit, on_disk, anonymous", [(256, 180, 65), (1024, 1000, 220), (160, 98, 20)])
def test_no_kernel_is_killed_for_files_that_gvisor_counts_after_a_snapshot_or_restore(killed: Kill, limit: int, on_disk: int, anonymous: int) -> None:
    text = meminfo(limit, anonymous=anonymous, shared=on_disk, mapped=17)
    assert killed(text, {KERNEL: anonymous}, limit=limit, on_disk=on_disk) == []


@pytest.mark.parametrize("on_disk", [180, 400])
def test_process_that_fills_the_memory_is_killed_after_a_restore(killed: Kill, on_disk: int) -> None:
    text = meminfo(256, anonymous=220, shared=180, mapped=17)  # 400: more files were written after the restore
    assert killed(text, {KERNEL: 40, CHILD: 180}, on_disk=on_disk) == [CHILD]


def test_files_in_memory_count_besides_files_on_the_disk(killed: Kill) -> None:
    text = meminfo(256, anonymous=100, shared=180 + 120, mapped=17)
    assert killed(text, {KERNEL: 40, CHILD: 180}, on_disk=180, in_shared_memory=120) == [CHILD]
    assert killed(text, {KERNEL: 40, CHILD: 180}, on_disk=180) == [CHILD], "files of memfd_create(2), which belong to no file system"
    assert killed(text, {KERNEL: 40, CHILD: 180}, on_disk=300) == []


@pytest.mark.parametrize("session, expected", [(CHILD, CHILD), (0, 0)])
def test_session_that_fills_the_memory_with_small_processes_is_killed(monkeypatch: pytest.MonkeyPatch, session: int, expected: int) -> None:
    killed: list[int] = []
    processes = [ProcStat(pid, f"S 1 {session} {session} {' 0' * 13} 1".encode().split()) for pid in range(20, 40)]
    monkeypatch.setattr(oom, "files_bytes", lambda _path: 0)
    monkeypatch.setattr(oom, "resident_bytes", lambda _pid: 11 * MIB)
    monkeypatch.setattr(oom, "own_bytes", lambda _pid: 11 * MIB)
    monkeypatch.setattr(oom, "all_pids", lambda: [process.pid for process in processes])
    monkeypatch.setattr(oom, "all_processes", lambda: processes)
    monkeypatch.setattr(oom, "kill_tree", lambda root, _number: killed.append(root))
    watcher = ScriptedWatcher(meminfo(256, anonymous=220, shared=0, mapped=0))
    told: list[int] = []
    watcher.on_kill = lambda root, _text: told.append(root)
    watcher.set_limit(256 * MIB)
    assert killed == told == ([expected] if expected else [])


def test_measurements_are_rarer_while_nothing_runs() -> None:
    watcher = ScriptedWatcher(meminfo(256, anonymous=200, shared=0, mapped=0))
    watcher.set_limit(256 * MIB)
    assert watcher.pauses_s == [MIN_IDLE_PAUSE_S]
    watcher.on_commands(running=True)
    assert watcher.pauses_s[1] < MIN_IDLE_PAUSE_S, "little memory is free: measured at once"
    watcher.on_commands(running=False)
    assert len(watcher.pauses_s) == 2


def test_next_measurement_can_wait_if_much_memory_is_free() -> None:
    watcher = ScriptedWatcher(meminfo(4096, anonymous=20, shared=0, mapped=0))
    watcher.set_limit(4096 * MIB)
    watcher.on_commands(running=True)
    assert watcher.pauses_s == [MAX_IDLE_PAUSE_S]


def test_mapped_files_are_not_memory(killed: Kill) -> None:
    assert killed(meminfo(256, anonymous=60, shared=0, mapped=190), {KERNEL: 250}) == []


def test_process_with_mapped_files_is_not_killed_instead_of_a_greedy_one(killed: Kill) -> None:
    text = meminfo(256, anonymous=220, shared=0, mapped=180)
    assert killed(text, {KERNEL: 220, CHILD: 180}, mapped={KERNEL: 180}) == [CHILD]
    assert killed(text, {KERNEL: 220, CHILD: 180}) == [KERNEL]


@pytest.mark.parametrize(
    "anonymous, shared, on_disk, in_shared_memory, expected",
    [
        (40, 0, 500, 0, 40),  # never saved
        (40, 50, 0, 50, 90),  # only files in /dev/shm
        (40, 50, 10, 20, 80),
        (40, 50, 100, 20, 60),
        (40, 50, 100, 200, 90),  # /dev/shm has allocated pages that were never written
    ],
)
def test_memory_in_use_is_the_least_that_the_figures_allow(anonymous: int, shared: int, on_disk: int, in_shared_memory: int, expected: int) -> None:
    assert used_bytes(anonymous, shared, on_disk, in_shared_memory) == expected


def test_a_few_of_the_largest_processes_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    examined: list[int] = []
    mapped = 0

    def measure(pid: int) -> int:
        examined.append(pid)
        return mapped

    monkeypatch.setattr(oom, "mapped_files_bytes", measure)
    monkeypatch.setattr(oom, "resident_bytes", lambda pid: 1000 - pid)
    assert find_largest(list(range(1, 500)), 10) == 1
    assert examined == [1], "no other process can be larger"
    examined.clear()
    mapped = 900
    assert find_largest(list(range(1, 500)), 500) == 0
    assert len(examined) == MAX_EXAMINED
    assert find_largest(list(range(1, 500)), 1001) == 0


def test_mapped_files_are_summed_without_copied_pages_and_files_in_memory() -> None:
    assert sum_mapped_files(SMAPS) == (102400 - 30720 + 7168) * 1024


@pytest.mark.parametrize("text", [b"", b"\n", b"Rss:", b"Rss: x kB\n", b"7e00-7f00 rw-p 0 00:11 6 /a\nRss: 4 kB\nAnonymous:"])
def test_incomplete_or_forged_mappings_have_no_files(text: bytes) -> None:
    assert sum_mapped_files(text) == 0


def test_mapped_files_of_a_process_are_measured(tmp_path: Path) -> None:
    before = mapped_files_bytes(os.getpid())
    (tmp_path / "file").write_bytes(b"x" * (8 * MIB))
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as area:
        assert sum(area[:: mmap.PAGESIZE]) > 0
        assert mapped_files_bytes(os.getpid()) >= before + 8 * MIB
    assert mapped_files_bytes(1 << 30) == 0


def test_files_of_a_file_system_are_measured() -> None:
    assert files_bytes("/") > 0
    assert files_bytes("/nothing") == 0


@pytest.mark.parametrize("limit, most", [(128, 0.3), (512, 0.15), (1024, 0.12), (8192, 0.04)])
def test_reserve_is_a_small_part_of_the_limit(limit: int, most: float) -> None:
    assert 24 * MIB < reserve_bytes(limit * MIB) < most * limit * MIB


@pytest.mark.parametrize("room", [1, 16, 50, 64, 100, 500, 5000])
@pytest.mark.parametrize("rate", [0.0, FILL_RATE_BYTES / 2, FILL_RATE_BYTES])
def test_next_measurement_comes_before_the_room_is_used_up(room: int, rate: float) -> None:
    pause = pause_s(room * MIB, rate)
    assert MIN_PAUSE_S <= pause <= MAX_PAUSE_S
    if pause > MIN_PAUSE_S:
        assert pause * max(rate, FILL_RATE_BYTES / 2) <= room * MIB / 2


def test_memory_of_a_process_is_measured() -> None:
    assert resident_bytes(1 << 30) == 0
    assert resident_bytes(1) > 0
    assert own_bytes(1 << 30) == 0
    assert 0 < own_bytes(os.getpid()) < resident_bytes(os.getpid())


@pytest.mark.parametrize(
    "limit, peak, others, expected",
    [
        (1024, 512, 0, True),
        (1024, 340, 680, True),  # three processes of a third each
        (1024, 340, 100, False),  # memory was free, so the reason is another one
        (1024, 100, 924, False),  # the OOM killer would have killed a larger process
        (0, 500, 500, False),
    ],
)
def test_memory_explains_the_end_of_large_processes_only(limit: int, peak: int, others: int, *, expected: bool) -> None:
    assert explained(limit * MIB, peak * MIB, others * MIB) == expected
