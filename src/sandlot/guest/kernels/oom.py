"""The memory limit of the sandbox: if a cell or a command uses too much memory, the largest process is killed and the sandbox survives.

In a container, the OOM killer of the host's Linux kernel kills the largest process when the limit is reached, and this module only recognizes such
kills. gVisor has no OOM killer inside, and at the limit the host's kernel would kill the whole sandbox. In gVisor, this module therefore measures the
memory in use, and kills the largest process before the limit is reached. The time between two measurements depends on the free memory. If little
memory is free, the time also depends on the rate at which the free memory shrinks.

MemFree and MemAvailable of gVisor do not show how much memory is in use. After a snapshot or a restore, gVisor counts the files that are on the
sandbox's disk at that time as Shmem (20240729, with 116 MiB of files: Shmem grew from 50 to 166 MiB, while the host charged 134 MiB in all before
and after). Mapped files count as well. The host can reclaim the memory of both. The memory in use is therefore computed from the anonymous memory,
which gVisor always counts correctly, and from the sizes of file systems; see :func:`used_bytes`. A measurement takes about 40 us, however many
processes there are.

Invariants:
- Files on the disk, mapped or not, do not count as memory, neither when memory is measured nor when the process to kill is chosen.
- Memory is measured from the first wake on, because processes in the background may fill it at any time, and only if ``/proc/meminfo`` describes
  this sandbox and not the host. Measurements are less frequent while neither a cell nor a command of the host runs.
- If the last measurement found little free memory, memory is measured again as soon as a cell or a command starts.
- One process is killed at a time. A process is killed only if it uses at least an eighth of the limit. If there is none, the session whose processes
  together use the most memory is killed.
- The output of the command to which a killed process belongs says that the process was killed.
"""

from __future__ import annotations

import os
import time

from sandlot.guest.process.procfs import all_pids, all_processes, find_root, kill_tree, send_signal
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from sandlot.guest.loop import Loop, Timer
    from sandlot.guest.process.children import ChildTable

MIB = 1 << 20
RESERVE_BYTES = 24 * MIB
"""Fixed part of the memory that must stay free; see :func:`reserve_bytes`."""
RESERVE_SHARE = 12
"""The variable part of the memory that must stay free is the memory limit divided by this number."""
MAX_RESERVE_SHARE_BYTES = 192 * MIB
"""Maximum of the variable part of the memory that must stay free.

gVisor's own memory counts towards the memory limit of the sandbox, but is not visible inside the sandbox (measured: 26 MiB more after 32 processes
were started). The memory that stays free is meant for gVisor.
"""
HORIZON_S = 0.06
"""A process is killed if all free memory above :func:`reserve_bytes` would be used up within this number of seconds at the measured rate.

Measuring memory and killing a process takes less time than this, including delays of the scheduler.
"""
FILL_RATE_BYTES = 1024 * MIB
"""Highest rate in bytes per second at which one core can fill memory in gVisor (measured: 1.0 to 1.1 GiB/s)."""
NEAR_BYTES = 64 * MIB
"""If at most this many bytes are free in addition to :func:`reserve_bytes`, memory is measured immediately at the start of a cell or command.

The time until the next measurement then depends on the measured rate; see :func:`pause_s`.
"""
MIN_PAUSE_S, MAX_PAUSE_S = 0.005, 0.1
"""Shortest and longest time in seconds between two measurements while a cell or a command runs."""
MIN_IDLE_PAUSE_S, MAX_IDLE_PAUSE_S = 0.05, 0.25
"""Shortest and longest time in seconds between two measurements while neither a cell nor a command runs."""
SLACK_BYTES = 8 * MIB
"""Maximum difference in bytes between MemTotal and the sandbox's memory limit. If they differ by more, /proc/meminfo describes the host."""
MIN_VICTIM_SHARE = 8
"""A process is killed only if it uses at least the memory limit divided by this number."""
LARGE_SHARE = 2
"""If a killed process used at least the memory limit divided by this number, lack of memory is assumed to be the reason for the kill."""
FULL_SHARE = 4
"""If a process was killed while at most the memory limit divided by this number was unused, memory is assumed to have been full."""
DYING_S = 2.0
"""Maximum time in seconds to wait until a killed process has freed its memory, before another process is killed."""
MIN_SPARE_LIMIT_BYTES = 256 << 20
"""Smallest memory limit in bytes of a sandbox that keeps a spare kernel."""
SHARED_MEMORY = "/dev/shm"
MEMORY_FILES = (b"/dev/shm/", b"/dev/zero", b"/memfd:", b"/SYSV")
"""Beginnings of the names of files that are memory: of /dev/shm, shared anonymous memory, memfd_create(2), and shmget(2)."""
MAX_EXAMINED = 8
"""Maximum number of processes whose mapped files are summed up when a process must be killed. One takes 1 to 10 ms (measured)."""
MAX_MAPS_BYTES = MIB
"""Maximum number of bytes that are read of ``/proc/PID/smaps``: 1,600 mappings. Files in further mappings count as memory of the process."""
PAGE = os.sysconf("SC_PAGE_SIZE")
KIB = 1024


class OomWatcher:
    """Measures free memory, and kills the largest process before the limit is reached.

    Args:
        loop: The guest's loop.
        children: Table of child processes, through which the owner of a killed process is notified.

    Attributes:
        on_kill: Called after a process was killed, with the pid of its ancestor among the child processes of PID 1 (0 if there is none), and with a
            sentence about the reason.
    """

    __slots__ = (
        "_are_commands_running",
        "_busy_pids",
        "_children",
        "_has_room",
        "_last_reading",
        "_limit_bytes",
        "_loop",
        "_meminfo_fd",
        "_timer",
        "_victim",
        "_victim_since_s",
        "on_kill",
    )

    def __init__(self, loop: Loop, children: ChildTable) -> None:
        self._loop = loop
        self._children = children
        self._meminfo_fd = -1
        """Descriptor of /proc/meminfo; -1 if the file does not describe this sandbox or cannot be read."""
        self._timer: Timer | None = None
        """Timer of the next measurement."""
        self._has_room = False
        self._last_reading = (0.0, 0)
        """Monotonic time in seconds and used memory in bytes of the last measurement; (0.0, 0) before the first."""
        self._victim = 0
        self._victim_since_s = 0.0
        self._limit_bytes = 0
        self._busy_pids: Callable[[], list[int]] = list
        self._are_commands_running = False
        self.on_kill: Callable[[int, str], object] = lambda _root, _reason: None

    @property
    def allows_spare(self) -> bool:
        """True if the sandbox's memory limit is unknown or large enough to keep a spare kernel (``MIN_SPARE_LIMIT_BYTES``)."""
        return not self._limit_bytes or self._limit_bytes >= MIN_SPARE_LIMIT_BYTES

    def set_limit(self, limit_bytes: int | None) -> None:
        """Set the memory limit of the sandbox after a wake. Begin to measure if /proc/meminfo describes the sandbox.

        Args:
            limit_bytes: Memory limit in bytes; None if unknown.
        """
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
            return
        self._last_reading = (0.0, 0)
        self._measure()

    def change_limit(self, limit_bytes: int) -> None:
        """Set a new memory limit while the sandbox runs. MemTotal is not compared with the limit, because MemTotal does not change in gVisor.

        Args:
            limit_bytes: New memory limit in bytes.
        """
        self._limit_bytes = limit_bytes

    def on_cell(self, busy_pids: Callable[[], list[int]]) -> None:
        """Handle the start of a cell.

        Args:
            busy_pids: Returns the pids of the kernels that run a cell.
        """
        self._busy_pids = busy_pids
        self._hurry()

    def on_commands(self, *, running: bool) -> None:
        """Handle the start of the first running command, or the end of the last.

        Args:
            running: True if a command runs.
        """
        self._are_commands_running = running
        if running:
            self._hurry()

    def _hurry(self) -> None:
        """Measure now if little memory was free at the last measurement. Otherwise the next measurement comes soon enough."""
        if self._timer is not None and not self._has_room:
            self._measure()

    def explains(self, peak_bytes: int) -> bool:
        """Return True if lack of memory is the probable reason why a process was ended by SIGKILL. Only for processes that this object did not kill.

        Inside a container, neither the control group nor the host's counters are visible. The reason for the kill must therefore be guessed from
        the memory that processes use.

        Args:
            peak_bytes: Largest resident memory of the killed process in bytes.
        """
        if self._meminfo_fd >= 0:
            # In gVisor, the guest itself kills processes for lack of memory, and it did not kill this one. The memory of other processes is therefore
            # not the reason, and counts as 0.
            return explained(self._limit_bytes, peak_bytes, 0)
        return explained(self._limit_bytes, peak_bytes, sum(own_bytes(pid) for pid in all_pids() if pid != 1))

    def _measure(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        found = read_meminfo(self._read())
        if found is None:
            return
        _, anonymous, shared = found
        now_s, used = time.monotonic(), used_bytes(anonymous, shared, files_bytes("/"), files_bytes(SHARED_MEMORY))
        room = self._limit_bytes - used - reserve_bytes(self._limit_bytes)
        self._has_room = room > NEAR_BYTES
        then_s, used_before = self._last_reading
        self._last_reading = (now_s, used)
        rate = max(0.0, (used - used_before) / max(now_s - then_s, 0.001)) if then_s else 0.0
        if room < rate * HORIZON_S:
            self._kill_largest()
        is_idle = not self._are_commands_running and not self._busy_pids()
        self._timer = self._loop.call_later(pause_s(room, rate, is_idle=is_idle), self._measure)

    def _read(self) -> bytes:
        try:
            return os.pread(self._meminfo_fd, 2048, 0)
        except OSError:
            return b""

    def _kill_largest(self) -> None:
        now_s = time.monotonic()
        if self._victim and now_s - self._victim_since_s < DYING_S and os.path.exists(f"/proc/{self._victim}"):
            return  # the memory of the previous victim is still being freed
        pid = self._find_largest()
        root = find_root(pid, self._children)
        if pid:
            send_signal(pid, signal.SIGKILL)  # immediately: kill_tree searches for the descendants before it kills
            if pid in self._children:
                kill_tree(pid, signal.SIGKILL)
        else:
            pid = root = self._kill_largest_session()
        if pid:
            self._victim, self._victim_since_s = pid, now_s
            self._children.report_kill(pid, "oom")
            self.on_kill(root, f"Process {pid} was killed, because the sandbox's memory of {self._limit_bytes // MIB} MiB is full.")

    def _kill_largest_session(self) -> int:
        """Kill the session that uses the most memory. Return its id; 0 if no session uses the limit divided by ``MIN_VICTIM_SHARE``."""
        sessions: dict[int, int] = {}
        for process in all_processes():
            if process.pid != 1:
                sessions[process.session] = sessions.get(process.session, 0) + own_bytes(process.pid)
        sessions.pop(0, None)  # processes of no session, whose kill would reach others
        session = max(sessions, key=lambda each: sessions[each], default=0)
        if not session or sessions[session] < self._limit_bytes // MIN_VICTIM_SHARE:
            return 0
        kill_tree(session, signal.SIGKILL)
        return session

    def _find_largest(self) -> int:
        """Return the pid of the largest process by memory; 0 if every process uses less than the limit divided by ``MIN_VICTIM_SHARE``.

        Kernels that run a cell are examined first. If one of these uses more than half of the limit, the other processes are not examined,
        because this would take longer.
        """
        largest = find_largest(self._busy_pids(), self._limit_bytes // LARGE_SHARE + 1)
        return largest or find_largest([pid for pid in all_pids() if pid != 1], self._limit_bytes // MIN_VICTIM_SHARE)


def read_meminfo(text: bytes) -> tuple[int, int, int] | None:
    """Return MemTotal, the anonymous memory, and Shmem in bytes; None if ``text`` does not contain these fields.

    In gVisor, AnonPages includes Shmem.

    Args:
        text: Content of /proc/meminfo (proc(5)).
    """
    fields = text.split()
    try:
        total, pages, shared = (int(fields[fields.index(name) + 1]) * KIB for name in (b"MemTotal:", b"AnonPages:", b"Shmem:"))
    except (IndexError, ValueError):
        return None
    return total, pages - shared, shared


def used_bytes(anonymous: int, shared: int, on_disk: int, in_shared_memory: int) -> int:
    """Return the smallest number of bytes that the programs of a sandbox in gVisor can be using.

    ``shared`` contains all files in memory, and an unknown part of the files on the disk. The largest possible part is assumed, because otherwise
    processes would be killed although memory is free. The result is therefore too small by at most ``on_disk`` if memfd_create(2) or a tmpfs of root
    is used.

    Args:
        anonymous: Anonymous memory in bytes.
        shared: Shmem of /proc/meminfo in bytes.
        on_disk: Size of all files on the sandbox's disk in bytes.
        in_shared_memory: Size of all files in /dev/shm in bytes.
    """
    return anonymous + max(shared - on_disk, min(in_shared_memory, shared))


def files_bytes(path: str) -> int:
    """Return the size in bytes of all files of a file system, by allocated pages; 0 if there is no such file system.

    Args:
        path: Mount point of the file system.
    """
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def reserve_bytes(limit_bytes: int) -> int:
    """Return the number of bytes that must stay free in a sandbox with the memory limit ``limit_bytes``."""
    return RESERVE_BYTES + min(MAX_RESERVE_SHARE_BYTES, limit_bytes // RESERVE_SHARE)


def pause_s(room: int, rate: float, *, is_idle: bool = False) -> float:
    """Return the time in seconds until the next measurement of free memory.

    Args:
        room: Bytes that processes may still use before a process must be killed.
        rate: Bytes per second by which ``room`` has shrunk between the last two measurements; 0 if there was only one measurement.
        is_idle: True if neither a cell nor a command runs.
    """
    # ``fastest`` is the assumed rate at which memory is used up: the highest possible rate if more than NEAR_BYTES are left, otherwise the measured
    # rate, but at least half of the highest possible rate. The pause is a fourth of the time in which ``room`` is used up at this rate.
    fastest = FILL_RATE_BYTES if room > NEAR_BYTES else max(FILL_RATE_BYTES // 2, rate)
    least_s, most_s = (MIN_IDLE_PAUSE_S, MAX_IDLE_PAUSE_S) if is_idle and not rate else (MIN_PAUSE_S, MAX_PAUSE_S)
    return min(most_s, max(least_s, room / (4 * fastest)))


def explained(limit_bytes: int, peak_bytes: int, others_bytes: int) -> bool:
    """Return True if lack of memory is the probable reason for the kill of a process. Always False if the memory limit is unknown.

    Args:
        limit_bytes: Memory limit of the sandbox in bytes; 0 if unknown.
        peak_bytes: Largest resident memory of the killed process in bytes.
        others_bytes: Memory in bytes that all other processes of the sandbox use now.
    """
    if LARGE_SHARE * peak_bytes >= limit_bytes or not limit_bytes:
        return limit_bytes > 0
    return MIN_VICTIM_SHARE * peak_bytes >= limit_bytes and peak_bytes + others_bytes >= limit_bytes - limit_bytes // FULL_SHARE


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, including shared memory; 0 if the process has ended."""
    return _pages(pid)[0] * PAGE


def own_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, without files and shared memory; 0 if the process has ended."""
    resident, shared = _pages(pid)
    return (resident - shared) * PAGE


def find_largest(pids: list[int], least_bytes: int) -> int:
    """Return the pid of the process that uses the most memory; 0 if no process uses ``least_bytes``. For gVisor.

    Files that a process has mapped count as resident, but not as memory. At most ``MAX_EXAMINED`` processes are examined, those with the most
    resident memory first.

    Args:
        pids: Processes to choose from.
        least_bytes: Smallest memory in bytes of the process to return.
    """
    largest = 0
    for resident, pid in sorted(((resident_bytes(pid), pid) for pid in pids), reverse=True)[:MAX_EXAMINED]:
        if resident < least_bytes:
            break
        memory = resident - mapped_files_bytes(pid)
        if memory >= least_bytes:
            largest, least_bytes = pid, memory
    return largest


def mapped_files_bytes(pid: int) -> int:
    """Return the bytes of mapped files in the resident memory of a process; 0 if the process has ended.

    Files in memory, and pages that the process has copied by writing to a private mapping, are not included.
    """
    try:
        with open(f"/proc/{pid}/smaps", "rb") as file:
            return sum_mapped_files(file.read(MAX_MAPS_BYTES))
    except OSError:
        return 0


def sum_mapped_files(text: bytes) -> int:
    """Return the bytes of resident pages that belong to files which are not in memory.

    Args:
        text: Content of /proc/PID/smaps (proc(5)), possibly cut off.
    """
    found = resident = 0
    is_file = False
    try:
        for line in text.splitlines():
            fields = line.split(None, 5)
            if fields[0] == b"Rss:":
                resident = int(fields[1]) * KIB
            elif fields[0] == b"Anonymous:" and is_file:
                found += resident - int(fields[1]) * KIB
            elif not fields[0].endswith(b":"):
                is_file = fields[4] != b"0" and not fields[5].startswith(MEMORY_FILES)
    except (IndexError, ValueError):
        return found  # the text is cut off here, or the name of a file contains a line break
    return found


def _pages(pid: int) -> tuple[int, int]:
    """Return how many pages of a process are resident, and how many of these belong to files or are shared (proc(5), statm).

    Both numbers are 0 if the process has ended.
    """
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
