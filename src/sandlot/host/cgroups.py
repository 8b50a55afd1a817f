"""One control group of the host: made, limited, limited anew, counted, frozen, killed and removed.

Promises:
- Everything is derived from the group's name: after a crash the same name finds all that is left, in every hierarchy.
- :meth:`Cgroup.kill_once` signals only processes that are in the group at that moment: pids are turned into pidfds and
  looked at again before a signal is sent, so that a recycled pid is never hit (pidfd_open(2)).
- Removing is done in a loop by the caller: a group cannot be removed while a task is in it, and tasks leave late.

The methods block for microseconds, :meth:`Cgroup.change` for as long as the kernel reclaims; nothing here waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sandlot.host.hierarchies import GIVEN_TO_CHILDREN, SQUEEZE, GroupLimits, Layout, Setting, read_layout, read_pairs, resettings, settings
from sandlot.model.errors import ConflictError, ErrorCode, HostError

MOUNTINFO = Path("/proc/self/mountinfo")
_RACED = 20
"""How often a folder is made again after somebody removed its empty parent."""


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What a group has used so far.

    Args:
        cpu_s: Seconds of processor time, user and system.
        memory_bytes: What it holds now, without the page cache that the kernel can drop at once.
        memory_peak_bytes: The most that it ever held, page cache included; 0 where the kernel does not count it.
        pids: Host tasks in it now.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    pids: int


def detect_layout(mountinfo: Path = MOUNTINFO) -> Layout:
    """Where this host's controllers are.

    Raises:
        HostError: There is none for memory.
    """
    text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    unified: dict[str, str] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            mount = before.split()[4]
            with contextlib.suppress(OSError):
                unified[mount] = Path(mount, "cgroup.controllers").read_text(encoding="ascii")
    return read_layout(text, unified)


class Cgroup:
    """One group, by its name below every hierarchy.

    Args:
        layout: Where the hierarchies are.
        name: Its path below each of them, for example ``/sandlot/abcd/abcd-xxxxxxxxxxxxxxxx``.
    """

    __slots__ = ("_layout", "_relative", "name")

    def __init__(self, layout: Layout, name: PurePosixPath) -> None:
        self.name = name
        self._layout = layout
        self._relative = name.relative_to("/")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its folder in every hierarchy."""
        return tuple(hierarchy.mount / self._relative for hierarchy in self._layout.hierarchies)

    @property
    def doors(self) -> tuple[Path, ...]:
        """The files that take in a process of one thread: write ``0`` to each for oneself.

        In version 1 that is ``tasks``: a thread that moves itself needs no lock over all processes of the host, which
        costs 5 to 17 ms (measured) of waiting for an RCU grace period with ``cgroup.procs``.
        """
        file = "tasks" if self._layout.version == 1 else "cgroup.procs"
        return tuple(folder / file for folder in self.folders)

    def exists(self) -> bool:
        """Whether any of it is there."""
        return any(folder.is_dir() for folder in self.folders)

    def create(self, limits: GroupLimits) -> None:
        """Make it and set its limits, before anybody is in it.

        Raises:
            HostError: The kernel refused; the message has its words.
        """
        try:
            for hierarchy in self._layout.hierarchies:
                self._make(hierarchy.mount, "cpuset" in hierarchy.controllers)
            for setting in settings(self._layout.version, limits):
                self._write(setting.controller, setting.file, setting.value, optional=setting.optional)
        except OSError as error:
            raise HostError(
                f"The host refused to make the control group {self.name}: {error.strerror} ({error.filename}).",
                code=ErrorCode.HOST_NOT_READY,
                hint="The service must run as root on a host whose /sys/fs/cgroup is writable; `sandlot doctor` says what is missing.",
            ) from error

    def change(self, limits: GroupLimits) -> None:
        """Move the limits of a group that is in use: all of them, or none. Takes as long as the kernel needs to reclaim.

        Raises:
            ConflictError: It holds more than it would be allowed; nothing was changed.
            HostError: The kernel refused; nothing was changed, the message has its words.
            FileNotFoundError: It is gone.
        """
        tasks = int(self._read("pids", "pids.current"))
        if tasks > limits.pids:
            raise _in_use("pids", tasks, limits.pids, "tasks of the host")
        done: list[Setting] = []
        try:
            for setting in resettings(self._layout.version, limits, raised=limits.memory_bytes > self._memory_limit()):
                self._reset(setting, done)
        except OSError as error:
            for setting in reversed(done):
                with contextlib.suppress(OSError):
                    self._write(setting.controller, setting.file, setting.value)
            if isinstance(error, FileNotFoundError):
                raise
            if error.errno == errno.EBUSY:
                raise _in_use("memory_bytes", self.usage().memory_bytes, limits.memory_bytes, "bytes of memory") from None
            raise HostError(
                f"The host refused to change the limits of the control group {self.name}: {error.strerror} ({error.filename}).",
                code=ErrorCode.HOST_NOT_READY,
                hint="`sandlot doctor` says what is missing.",
            ) from error

    def limits(self) -> GroupLimits:
        """What it is limited to now.

        Raises:
            FileNotFoundError: It is gone.
            ValueError: It is not limited at all.
        """
        if self._layout.version == 1:
            quota, period = (self._read("cpu", f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        else:
            quota, period = self._read("cpu", "cpu.max").split()
        return GroupLimits(memory_bytes=self._memory_limit(), cpus=int(quota) / int(period), pids=int(self._read("pids", "pids.max")))

    def charged_bytes(self) -> int:
        """What counts against its memory limit now, page cache included.

        Raises:
            FileNotFoundError: It is gone.
        """
        return int(self._read("memory", "memory.usage_in_bytes" if self._layout.version == 1 else "memory.current"))

    def pids(self) -> set[int]:
        """The processes in it now, over all hierarchies: a process that was stopped half-way may be in some only."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split())
        found.discard(0)  # a process of another pid namespace
        return found

    def kill_once(self) -> int:
        """Thaw it, forbid new tasks and send SIGKILL to all that are in it; how many there were.

        A frozen task of version 1 dies only once thawed. To end it all, call until it answers 0.
        """
        self.thaw()
        if self._layout.version == 2:  # noqa: PLR2004 - the version
            # Since Linux 5.14; it also reaches what forks meanwhile.
            with contextlib.suppress(OSError):
                self._write("pids", "cgroup.kill", "1")
        with contextlib.suppress(OSError):
            self._write("pids", "pids.max", "0")
        handles: dict[int, int] = {}
        try:
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    handles[pid] = os.pidfd_open(pid)
            still_here = self.pids()
            for pid, handle in handles.items():
                if pid in still_here:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            for handle in handles.values():
                os.close(handle)
        return len(handles)

    def freeze(self) -> None:
        """Ask the kernel to stop every task; done when :meth:`is_frozen` says so."""
        self._set_frozen(frozen=True)

    def thaw(self) -> None:
        """Let every task go on; a group that is gone is no error."""
        with contextlib.suppress(FileNotFoundError, OSError):
            self._set_frozen(frozen=False)

    def is_frozen(self) -> bool:
        """Whether every task has stopped."""
        if self._layout.version == 1:
            return self._read("freezer", "freezer.state").strip() == "FROZEN"
        return read_pairs(self._read("freezer", "cgroup.events")).get("frozen") == 1

    def usage(self) -> GroupUsage:
        """What it has used so far.

        Raises:
            FileNotFoundError: It is gone.
        """
        stat = read_pairs(self._read("memory", "memory.stat"))
        if self._layout.version == 1:
            return GroupUsage(
                cpu_s=int(self._read("cpuacct", "cpuacct.usage")) / 1e9,
                memory_bytes=max(0, int(self._read("memory", "memory.usage_in_bytes")) - stat.get("total_inactive_file", 0)),
                memory_peak_bytes=int(self._read("memory", "memory.max_usage_in_bytes")),
                pids=int(self._read("pids", "pids.current")),
            )
        peak = 0
        with contextlib.suppress(FileNotFoundError):  # since Linux 5.19
            peak = int(self._read("memory", "memory.peak"))
        return GroupUsage(
            cpu_s=read_pairs(self._read("cpu", "cpu.stat")).get("usage_usec", 0) / 1e6,
            memory_bytes=max(0, int(self._read("memory", "memory.current")) - stat.get("inactive_file", 0)),
            memory_peak_bytes=peak,
            pids=int(self._read("pids", "pids.current")),
        )

    def oom_kills(self) -> int:
        """How many of its tasks the kernel killed for its memory limit; 0 once it is gone."""
        file = "memory.oom_control" if self._layout.version == 1 else "memory.events"
        try:
            return read_pairs(self._read("memory", file)).get("oom_kill", 0)
        except OSError:
            return 0

    def remove(self) -> bool:
        """Remove it and each parent that is empty then; whether it is gone. Call again while it is not: tasks leave late."""
        gone = True
        for folder in self.folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in {errno.EBUSY, errno.ENOTEMPTY}:
                    raise
                gone = False
        if gone:
            for hierarchy in self._layout.hierarchies:
                for parent in self._relative.parents[:-1]:
                    with contextlib.suppress(OSError):
                        (hierarchy.mount / parent).rmdir()
        return gone

    def _make(self, mount: Path, is_cpuset: bool) -> None:  # noqa: FBT001 - private
        # Another group's removal takes away a parent that is empty for a moment.
        for attempt in range(_RACED):
            try:
                folder = mount
                for part in self._relative.parts:
                    parent, folder = folder, folder / part
                    with contextlib.suppress(FileExistsError):
                        folder.mkdir()
                    if is_cpuset and self._layout.version == 1:
                        # A new cpuset is empty and takes no process; version 2 inherits.
                        for file in ("cpuset.cpus", "cpuset.mems"):
                            (folder / file).write_text((parent / file).read_text(encoding="ascii"), encoding="ascii")
                    elif self._layout.version == 2 and folder.name != self._relative.name:  # noqa: PLR2004 - the version
                        _delegate(folder)
                return
            except OSError as error:
                # ENODEV: removed between being opened and being written.
                if error.errno not in {errno.ENOENT, errno.ENODEV} or attempt == _RACED - 1:
                    raise

    def _reset(self, setting: Setting, done: list[Setting]) -> None:
        """Write one file of a group in use; what was in it before goes into ``done``."""
        try:
            before = self._read(setting.controller, setting.file).strip()
        except FileNotFoundError:
            if setting.optional:
                return
            raise
        if before == setting.value:
            return
        # A service that was killed may have left a squeeze: that is nothing to go back to.
        done.append(replace(setting, value="max" if setting.file == SQUEEZE else before))
        self._write(setting.controller, setting.file, setting.value)
        if setting.file == SQUEEZE and setting.value != "max" and int(self._read("memory", "memory.current")) > int(setting.value):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), setting.file)

    def _memory_limit(self) -> int:
        text = self._read("memory", "memory.limit_in_bytes" if self._layout.version == 1 else "memory.max").strip()
        return int(text) if text.isdigit() else sys.maxsize

    def _set_frozen(self, *, frozen: bool) -> None:
        if self._layout.version == 1:
            self._write("freezer", "freezer.state", "FROZEN" if frozen else "THAWED")
        else:
            self._write("freezer", "cgroup.freeze", "1" if frozen else "0")

    def _folder(self, controller: str) -> Path:
        return self._layout.home(controller) / self._relative

    def _read(self, controller: str, file: str) -> str:
        return (self._folder(controller) / file).read_text(encoding="ascii")

    def _write(self, controller: str, file: str, value: str, *, optional: bool = False) -> None:
        path = self._folder(controller) / file
        try:
            # No O_CREAT: the files are the kernel's.
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            if optional:
                return
            raise
        try:
            os.write(handle, value.encode("ascii"))
        except OSError as error:
            error.filename = str(path)
            raise
        finally:
            os.close(handle)


def group_names(layout: Layout, parent: PurePosixPath) -> set[str]:
    """The names of all groups right below one, over all hierarchies."""
    names: set[str] = set()
    for hierarchy in layout.hierarchies:
        with contextlib.suppress(FileNotFoundError), os.scandir(hierarchy.mount / parent.relative_to("/")) as entries:
            names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return names


def _in_use(limit: str, used: int, wanted: int, what: str) -> ConflictError:
    return ConflictError(
        f"The sandbox holds {used} {what}, and would be allowed {wanted}.",
        code=ErrorCode.CONFLICT,
        hint="End some of what runs in it first, or leave it more.",
        fields={"field": limit, "in_use": used, "wanted": wanted},
    )


def _delegate(folder: Path) -> None:
    # cgroup-v2.rst: a controller is there for children only once the parent enabled it for them.
    for level in (folder.parent, folder):
        (level / "cgroup.subtree_control").write_text(GIVEN_TO_CHILDREN, encoding="ascii")
