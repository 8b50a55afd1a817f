"""The limit of memory: who comes near it with a greedy cell loses that kernel, not the whole sandbox.

Where a container's own kernel keeps the limit, it kills the greediest process at the limit, and nothing has to be done here but to
tell such an end from others. gVisor has no such killer: the host's kernel ends the sandbox as a whole. So while a cell runs there,
what is left is looked at, sooner the less there is and the faster it goes, and the greediest process is killed before nothing is.

Laws:
- Looked at only while a cell runs, and once after it, and only where ``/proc/meminfo`` speaks of this sandbox.
- A cell that begins while there is room is first looked at when it has run for ``LEAST_S``: most are over by then.
- One is killed at a time, and only if that gives back something.
"""

from __future__ import annotations

import os
import time

from sandlot.guest.process.procfs import all_pids, kill_tree, send_signal
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.kernels.service import Kernels
    from sandlot.guest.kernels.services import KernelServices

MIB = 1 << 20
FLOOR_BYTES = 24 * MIB
FLOOR_SHARE = 12
"""One part in so many of the limit."""
FLOOR_MOST_BYTES = 192 * MIB
"""What must be left, by what the sandbox sees: gVisor's own memory counts as well and is not seen (26 MiB more after 32 processes, measured)."""
HORIZON_S = 0.06
"""So far ahead: a look, a kill and what the scheduler adds."""
RATE_BYTES = 1024 * MIB
"""Per second, what one core fills in gVisor at most, about (measured: 1.0 to 1.1 GiB)."""
NEAR_BYTES = 64 * MIB
LEAST_S, MOST_S = 0.005, 0.1
SLACK_BYTES = 8 * MIB
"""MemTotal may differ so much from the limit that it shows."""
WORTH = 8
"""One part in so many of the limit is the least for which somebody is killed."""
SHARE = 2
"""Who was killed from outside, and had taken one part in so many of the limit, was killed for memory."""
FULL = 4
"""Memory was full where at most one part in so many of the limit cannot be accounted for."""
DYING_S = 2.0
PAGE = os.sysconf("SC_PAGE_SIZE")
KIB = 1024


class Memory:
    """What is left of it.

    Args:
        guest: The guest.
        kernels: Whose cells are watched.
    """

    __slots__ = ("_before", "_dying", "_dying_since_s", "_fd", "_guest", "_has_room", "_kernels", "_watching", "limit_bytes")

    def __init__(self, guest: KernelServices, kernels: Kernels) -> None:
        self._guest = guest
        self._kernels = kernels
        self._fd = -1
        self._watching = False
        self._has_room = False
        self._before = (0.0, 0)
        self._dying = 0
        self._dying_since_s = 0.0
        self.limit_bytes = 0

    def set(self, limit_bytes: int | None) -> None:
        """The sandbox begins a life under a limit; None is one that nobody has told."""
        self.limit_bytes = limit_bytes or 0
        if self._fd < 0:
            try:
                self._fd = os.open("/proc/meminfo", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return
        found = figures(self._text())
        if found is None or abs(found[0] - self.limit_bytes) > SLACK_BYTES:
            os.close(self._fd)
            self._fd = -1

    def change(self, limit_bytes: int) -> None:
        """Another limit from now on; what the sandbox sees of its memory stays (gVisor)."""
        self.limit_bytes = limit_bytes

    @property
    def is_seen(self) -> bool:
        """Whether the sandbox sees how much of its limit is left."""
        return self._fd >= 0

    def watch(self) -> None:
        """A cell runs: look from now on, until none does."""
        if not self._watching and self._fd >= 0:
            self._watching = True
            self._before = (0.0, 0)
            if self._has_room:
                self._guest.loop.call_later(LEAST_S, self._look)
            else:
                self._look()

    def explains(self, peak_bytes: int) -> bool:
        """Whether a process that somebody has killed was killed for memory, by what it had taken and what others have.

        A container is not told what its kernel's killer did: it sees neither its control group nor the host's counters.
        """
        if self.is_seen:  # it was not the guest, and there is no other killer
            return explained(self.limit_bytes, peak_bytes, 0)
        return explained(self.limit_bytes, peak_bytes, sum(own_bytes(pid) for pid in all_pids() if pid != 1))

    def _look(self) -> None:
        found = figures(self._text())
        if found is None:
            self._watching = self._has_room = False
            return
        now_s, used = time.monotonic(), found[0] - found[1]
        room = self.limit_bytes - used - floor_bytes(self.limit_bytes)
        self._has_room = room > NEAR_BYTES
        if not self._kernels.is_busy():
            self._watching = False
            return
        then_s, before = self._before
        self._before = (now_s, used)
        rate = max(0.0, (used - before) / max(now_s - then_s, 0.001)) if then_s else 0.0
        if room < rate * HORIZON_S:
            self._end_the_greediest()
        self._guest.loop.call_later(pause_s(room, rate), self._look)

    def _text(self) -> bytes:
        try:
            return os.pread(self._fd, 1024, 0)
        except OSError:
            return b""

    def _end_the_greediest(self) -> None:
        now_s = time.monotonic()
        if self._dying and now_s - self._dying_since_s < DYING_S and os.path.exists(f"/proc/{self._dying}"):
            return  # its memory is being given back
        pid = self._greediest()
        if pid:
            self._dying, self._dying_since_s = pid, now_s
            send_signal(pid, signal.SIGKILL)  # at once; what belongs to it follows
            if pid in self._guest.children:
                kill_tree(pid, signal.SIGKILL)
            self._guest.children.report_kill(pid, "oom")

    def _greediest(self) -> int:
        """Who has most; 0 where nobody has enough. Kernels that run a cell are looked at first: one look, where it is one of them."""
        least = self.limit_bytes // WORTH
        busy = self._kernels.busy_pids()
        worst = max(busy, key=resident_bytes, default=0)
        if worst and resident_bytes(worst) * SHARE > self.limit_bytes:
            return worst
        worst = max((pid for pid in all_pids() if pid != 1), key=resident_bytes, default=0)
        return worst if worst and resident_bytes(worst) >= least else 0


def figures(text: bytes) -> tuple[int, int] | None:
    """MemTotal and MemFree in bytes of proc(5)'s meminfo, which begins with them; None where it does not. Pure."""
    fields = text.split(None, 5)
    try:
        if fields[0] != b"MemTotal:" or fields[3] != b"MemFree:":
            return None
        return int(fields[1]) * KIB, int(fields[4]) * KIB
    except (IndexError, ValueError):
        return None


def floor_bytes(limit_bytes: int) -> int:
    """What must be left of a limit. Pure."""
    return FLOOR_BYTES + min(FLOOR_MOST_BYTES, limit_bytes // FLOOR_SHARE)


def pause_s(room: int, rate: float) -> float:
    """How long it can be until the next look. Pure.

    Args:
        room: Bytes until somebody must be killed.
        rate: Bytes per second that they became fewer by.
    """
    # Four looks until then, should it go as fast as it can at worst; near to it, as it goes, or half as fast as it could.
    fastest = RATE_BYTES if room > NEAR_BYTES else max(RATE_BYTES // 2, rate)
    return min(MOST_S, max(LEAST_S, room / (4 * fastest)))


def explained(limit_bytes: int, peak_bytes: int, others_bytes: int) -> bool:
    """Whether memory explains that somebody killed a process. Pure.

    Args:
        limit_bytes: Of all together; 0 where nobody has told it.
        peak_bytes: The most that it had.
        others_bytes: What those have that live.
    """
    if SHARE * peak_bytes >= limit_bytes or not limit_bytes:
        return limit_bytes > 0
    return WORTH * peak_bytes >= limit_bytes and peak_bytes + others_bytes >= limit_bytes - limit_bytes // FULL


def resident_bytes(pid: int) -> int:
    """What a process has in memory, shared or not; 0 where it is gone."""
    return _pages(pid)[0] * PAGE


def own_bytes(pid: int) -> int:
    """What a process has in memory that is in no file; 0 where it is gone."""
    resident, shared = _pages(pid)
    return (resident - shared) * PAGE


def _pages(pid: int) -> tuple[int, int]:
    """Resident pages, and those of them that are files' or shared (proc(5), statm)."""
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
