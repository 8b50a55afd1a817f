"""The memory limit: a cell that uses too much memory loses its kernel, and the sandbox survives.

In a container, the kernel's OOM killer kills the largest process at the limit. There, this module only recognizes such kills.
gVisor has no OOM killer inside, and the host's kernel would kill the whole sandbox. So while a cell runs in gVisor, free memory is
measured, and the largest process is killed before the limit is reached. The less memory is free and the faster it shrinks, the more often
it is measured.

Invariants:
- Memory is measured while a cell runs and once after it, and only if ``/proc/meminfo`` describes this sandbox.
- If enough memory was free before, the first measurement follows ``MIN_PAUSE_S`` after the start of a cell: most cells have ended by then.
- One process is killed at a time, and only if it uses at least an eighth of the limit.
"""

from __future__ import annotations

import os
import time

from sandlot.guest.process.procfs import all_pids, kill_tree, send_signal
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.loop import Loop
    from sandlot.guest.process.children import ChildTable

MIB = 1 << 20
RESERVE_BYTES = 24 * MIB
RESERVE_SHARE = 12
"""The reserve is ``RESERVE_BYTES`` plus the limit divided by this number."""
MAX_RESERVE_SHARE_BYTES = 192 * MIB
"""Maximum of that quotient. gVisor's own memory counts as well and is not visible inside (26 MiB more after 32 processes, measured)."""
HORIZON_S = 0.06
"""Seconds to look ahead, for a measurement, a kill and delays of the scheduler."""
FILL_RATE_BYTES = 1024 * MIB
"""Highest rate at which one core fills memory in gVisor, in bytes per second (measured: 1.0 to 1.1 GiB/s)."""
NEAR_BYTES = 64 * MIB
"""Free memory up to which the limit counts as near."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.005, 0.1
"""Shortest and longest time between two measurements."""
SLACK_BYTES = 8 * MIB
"""Maximum difference between MemTotal and the limit of the sandbox. Beyond it, /proc/meminfo describes the host."""
MIN_VICTIM_SHARE = 8
"""A process is killed only if it uses at least the limit divided by this number."""
LARGE_SHARE = 2
"""A process that was killed and had used at least the limit divided by this number was killed for lack of memory."""
FULL_SHARE = 4
"""Memory was full if all processes together used all of the limit except the limit divided by this number."""
DYING_S = 2.0
"""Seconds to wait for a killed process to free its memory before another process is killed."""
MIN_SPARE_LIMIT_BYTES = 256 << 20
"""Memory limit below which no spare kernel is kept."""
PAGE = os.sysconf("SC_PAGE_SIZE")
KIB = 1024


class OomWatcher:
    """Measures free memory while cells run, and kills the largest process before the limit is reached.

    Args:
        loop: The guest's loop.
        children: Owners of processes, which get a report of a kill.
    """

    __slots__ = (
        "_busy_pids",
        "_children",
        "_has_room",
        "_is_watching",
        "_last_reading",
        "_limit_bytes",
        "_loop",
        "_meminfo_fd",
        "_victim",
        "_victim_since_s",
    )

    def __init__(self, loop: Loop, children: ChildTable) -> None:
        self._loop = loop
        self._children = children
        self._meminfo_fd = -1
        """Descriptor of /proc/meminfo; -1 if that does not describe this sandbox."""
        self._is_watching = False
        self._has_room = False
        self._last_reading = (0.0, 0)
        """Time and used bytes of the last measurement."""
        self._victim = 0
        self._victim_since_s = 0.0
        self._limit_bytes = 0
        self._busy_pids: Callable[[], list[int]] = list

    @property
    def allows_spare(self) -> bool:
        """True if there is enough memory for a kernel that may never be used."""
        return not self._limit_bytes or self._limit_bytes >= MIN_SPARE_LIMIT_BYTES

    def set_limit(self, limit_bytes: int | None) -> None:
        """Set the memory limit at a wake; None if the limit is unknown."""
        self._limit_bytes = limit_bytes or 0
        if self._meminfo_fd < 0:
            try:
                self._meminfo_fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
        found = read_meminfo(self._read())
        if found is None or abs(found[0] - self._limit_bytes) > SLACK_BYTES:
            os.close(self._meminfo_fd)
            self._meminfo_fd = -1

    def change_limit(self, limit_bytes: int) -> None:
        """Change the limit while the sandbox runs. In gVisor, MemTotal does not change."""
        self._limit_bytes = limit_bytes

    def watch(self, busy_pids: Callable[[], list[int]]) -> None:
        """Measure from now on, as long as a cell runs.

        Args:
            busy_pids: Returns the processes of kernels that run a cell.
        """
        self._busy_pids = busy_pids
        if not self._is_watching and self._meminfo_fd >= 0:
            self._is_watching = True
            self._last_reading = (0.0, 0)
            if self._has_room:
                self._loop.call_later(MIN_PAUSE_S, self._measure)
            else:
                self._measure()

    def explains(self, peak_bytes: int) -> bool:
        """Return True if a process was probably killed for lack of memory, but not by this object.

        Inside a container, kills by the OOM killer cannot be read: neither the control group nor the host's counters are visible.

        Args:
            peak_bytes: Largest resident memory of the process.
        """
        if self._meminfo_fd >= 0:  # gVisor: the only OOM killer is this object, and it did not kill the process
            return explained(self._limit_bytes, peak_bytes, 0)
        return explained(self._limit_bytes, peak_bytes, sum(own_bytes(pid) for pid in all_pids() if pid != 1))

    def _measure(self) -> None:
        found = read_meminfo(self._read())
        if found is None:
            self._is_watching = self._has_room = False
            return
        now_s, used = time.monotonic(), found[0] - found[1]
        room = self._limit_bytes - used - reserve_bytes(self._limit_bytes)
        self._has_room = room > NEAR_BYTES
        if not self._busy_pids():
            self._is_watching = False
            return
        then_s, used_before = self._last_reading
        self._last_reading = (now_s, used)
        rate = max(0.0, (used - used_before) / max(now_s - then_s, 0.001)) if then_s else 0.0
        if room < rate * HORIZON_S:
            self._kill_largest()
        self._loop.call_later(pause_s(room, rate), self._measure)

    def _read(self) -> bytes:
        try:
            return os.pread(self._meminfo_fd, 1024, 0)
        except OSError:
            return b""

    def _kill_largest(self) -> None:
        now_s = time.monotonic()
        if self._victim and now_s - self._victim_since_s < DYING_S and os.path.exists(f"/proc/{self._victim}"):
            return  # its memory is still being freed
        pid = self._find_largest()
        if pid:
            self._victim, self._victim_since_s = pid, now_s
            send_signal(pid, signal.SIGKILL)  # at once, before its descendants are searched
            if pid in self._children:
                kill_tree(pid, signal.SIGKILL)
            self._children.report_kill(pid, "oom")

    def _find_largest(self) -> int:
        """Return the process with the most memory; 0 if none has enough. Busy kernels are examined first, because examining all takes longer."""
        largest = max(self._busy_pids(), key=resident_bytes, default=0)
        if largest and resident_bytes(largest) * LARGE_SHARE > self._limit_bytes:
            return largest
        largest = max((pid for pid in all_pids() if pid != 1), key=resident_bytes, default=0)
        return largest if largest and resident_bytes(largest) >= self._limit_bytes // MIN_VICTIM_SHARE else 0


def read_meminfo(text: bytes) -> tuple[int, int] | None:
    """Return MemTotal and MemFree in bytes; None if the text does not begin with them (proc(5), meminfo)."""
    fields = text.split(None, 5)
    try:
        if fields[0] != b"MemTotal:" or fields[3] != b"MemFree:":
            return None
        return int(fields[1]) * KIB, int(fields[4]) * KIB
    except (IndexError, ValueError):
        return None


def reserve_bytes(limit_bytes: int) -> int:
    """Return the number of bytes of a limit that must stay free."""
    return RESERVE_BYTES + min(MAX_RESERVE_SHARE_BYTES, limit_bytes // RESERVE_SHARE)


def pause_s(room: int, rate: float) -> float:
    """Return the time in seconds until the next measurement.

    Args:
        room: Bytes that can still be used until a process must be killed.
        rate: Bytes per second by which the room shrinks.
    """
    # Assume the highest possible rate, so that at least four measurements are taken before the free memory is used up. Near the limit, assume
    # the measured rate instead, but at least half of the highest rate.
    fastest = FILL_RATE_BYTES if room > NEAR_BYTES else max(FILL_RATE_BYTES // 2, rate)
    return min(MAX_PAUSE_S, max(MIN_PAUSE_S, room / (4 * fastest)))


def explained(limit_bytes: int, peak_bytes: int, others_bytes: int) -> bool:
    """Return True if lack of memory explains that a process was killed.

    Args:
        limit_bytes: Memory limit of the sandbox; 0 if it is unknown.
        peak_bytes: Largest resident memory of the process.
        others_bytes: Memory of the other processes.
    """
    if LARGE_SHARE * peak_bytes >= limit_bytes or not limit_bytes:
        return limit_bytes > 0
    return MIN_VICTIM_SHARE * peak_bytes >= limit_bytes and peak_bytes + others_bytes >= limit_bytes - limit_bytes // FULL_SHARE


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, shared memory included; 0 if it has ended."""
    return _pages(pid)[0] * PAGE


def own_bytes(pid: int) -> int:
    """Return the resident memory of a process without files and shared memory; 0 if it has ended."""
    resident, shared = _pages(pid)
    return (resident - shared) * PAGE


def _pages(pid: int) -> tuple[int, int]:
    """Return the number of resident pages, and the number of those that belong to files or are shared (proc(5), statm)."""
    try:
        fd = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0, 0
    try:
        fields = os.read(fd, 256).split()
        return int(fields[1]), int(fields[2])
    except (OSError, ValueError, IndexError):
        return 0, 0
    finally:
        os.close(fd)
