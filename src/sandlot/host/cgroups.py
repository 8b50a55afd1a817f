"""One control group of the host: created, limited, read, frozen, killed and removed.

Invariants:
- Everything is derived from the group's name. After a crash the same name finds everything that is left, in every hierarchy.
- :meth:`Cgroup.kill_once` signals only processes that are in the group at that moment. It opens pidfds and reads the group again before it sends a
  signal, so a process with a reused pid is never hit (pidfd_open(2)).
- The caller removes a group in a loop: a group cannot be removed while a task is in it, and a killed task leaves it only after a while.

The methods block for microseconds, :meth:`Cgroup.change` as long as the kernel reclaims memory. None of them waits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sandlot.host.cgroup_layout import (
    CHILD_CONTROLLERS,
    MEMORY_HIGH,
    UNIFIED,
    GroupLimits,
    Layout,
    Setting,
    change_settings,
    create_settings,
    parse_flat_keyed,
    parse_layout,
)
from sandlot.model.errors import ConflictError, HostError

MOUNTINFO = Path("/proc/self/mountinfo")
_MAX_ATTEMPTS = 20
"""Attempts to create a folder whose empty parent another process removes."""


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """Resources that a group has used so far.

    Args:
        cpu_s: Seconds of processor time, user and system.
        memory_bytes: Memory in use now, without the page cache that the kernel can drop at once.
        memory_peak_bytes: Largest memory use so far, including page cache. 0: the kernel does not count it.
        pids: Tasks of the host in the group now.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    pids: int


def detect_layout(mountinfo: Path = MOUNTINFO) -> Layout:
    """Return the layout of this host's control groups.

    Raises:
        HostError: No hierarchy has the memory controller.
    """
    text = mountinfo.read_text(encoding="utf-8", errors="surrogateescape")
    unified: dict[str, str] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            mount = before.split()[4]
            with contextlib.suppress(OSError):
                unified[mount] = Path(mount, "cgroup.controllers").read_text(encoding="ascii")
    return parse_layout(text, unified)


class Cgroup:
    """One control group, which has the same name in every hierarchy.

    Args:
        layout: Layout of the host's control groups.
        name: Path below the root of each hierarchy, for example ``/sandlot/abcd/abcd-xxxxxxxxxxxxxxxx``.
    """

    __slots__ = ("_layout", "_relative", "name")

    def __init__(self, layout: Layout, name: PurePosixPath) -> None:
        self.name = name
        self._layout = layout
        self._relative = name.relative_to("/")

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folder of the group in each hierarchy."""
        return tuple(hierarchy.mount / self._relative for hierarchy in self._layout.hierarchies)

    @property
    def entry_files(self) -> tuple[Path, ...]:
        """Files through which a process with one thread enters the group, by writing ``0`` to each.

        In version 1 the file is ``tasks``. A thread that moves itself through ``tasks`` takes no lock over all processes of the host. Through
        ``cgroup.procs`` it would wait 5 to 17 ms (measured) for an RCU grace period.
        """
        file = "tasks" if self._layout.version == 1 else "cgroup.procs"
        return tuple(folder / file for folder in self.folders)

    def exists(self) -> bool:
        """Return whether the group exists in any hierarchy."""
        return any(folder.is_dir() for folder in self.folders)

    def create(self, limits: GroupLimits) -> None:
        """Create the group and set its limits, before a process enters it.

        Raises:
            HostError: The kernel refused; the message contains its error.
        """
        try:
            for hierarchy in self._layout.hierarchies:
                self._make(hierarchy.mount, "cpuset" in hierarchy.controllers)
            for setting in create_settings(self._layout.version, limits):
                self._write(setting.controller, setting.file, setting.value, optional=setting.optional)
        except OSError as error:
            raise HostError(
                f"The host could not create the control group {self.name}: {error.strerror} ({error.filename}).",
                hint="Run the service as root on a host whose /sys/fs/cgroup is writable; `sandlot doctor` reports what the host lacks.",
            ) from error

    def change(self, limits: GroupLimits) -> None:
        """Change the limits of a group in use: all of them, or none. Takes as long as the kernel needs to reclaim memory.

        Raises:
            ConflictError: The group uses more than the new limits; nothing was changed.
            HostError: The kernel refused; nothing was changed, and the message contains its error.
            FileNotFoundError: The group is gone.
        """
        tasks = int(self._read("pids", "pids.current"))
        if tasks > limits.pids:
            raise _in_use_error("pids", tasks, limits.pids, "tasks of the host")
        done: list[Setting] = []
        try:
            for setting in change_settings(self._layout.version, limits, raised=limits.memory_bytes > self._memory_limit()):
                self._change(setting, done)
        except OSError as error:
            for setting in reversed(done):
                with contextlib.suppress(OSError):
                    self._write(setting.controller, setting.file, setting.value)
            if isinstance(error, FileNotFoundError):
                raise
            if error.errno == errno.EBUSY:
                raise _in_use_error("memory_bytes", self.usage().memory_bytes, limits.memory_bytes, "bytes of memory") from None
            raise HostError(
                f"The host could not change the limits of the control group {self.name}: {error.strerror} ({error.filename}).",
                hint="`sandlot doctor` reports what the host lacks.",
            ) from error

    def limits(self) -> GroupLimits:
        """Return the current limits.

        Raises:
            FileNotFoundError: The group is gone.
            ValueError: The group has no limits.
        """
        if self._layout.version == 1:
            quota, period = (self._read("cpu", f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        else:
            quota, period = self._read("cpu", "cpu.max").split()
        return GroupLimits(memory_bytes=self._memory_limit(), cpus=int(quota) / int(period), pids=int(self._read("pids", "pids.max")))

    def charged_bytes(self) -> int:
        """Return the bytes that count against the memory limit now, including page cache.

        Raises:
            FileNotFoundError: The group is gone.
        """
        return int(self._read("memory", "memory.usage_in_bytes" if self._layout.version == 1 else "memory.current"))

    def pids(self) -> set[int]:
        """Return the processes in the group, over all hierarchies. A process that died while it entered the group may be in some hierarchies only."""
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split())
        found.discard(0)  # a process of another pid namespace
        return found

    def kill_once(self) -> int:
        """Thaw the group, forbid new tasks, send SIGKILL to its processes, and return their number.

        A frozen task of version 1 dies only after thawing. To end all processes, call this until it returns 0.
        """
        self.thaw()
        if self._layout.version == UNIFIED:
            # Since Linux 5.14. It also kills processes that are forked meanwhile.
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
        """Ask the kernel to stop every task. All tasks have stopped when :meth:`is_frozen` returns True."""
        self._set_frozen(frozen=True)

    def thaw(self) -> None:
        """Let every task continue. Does nothing if the group is gone."""
        with contextlib.suppress(FileNotFoundError, OSError):
            self._set_frozen(frozen=False)

    def is_frozen(self) -> bool:
        """Return whether every task has stopped."""
        if self._layout.version == 1:
            return self._read("freezer", "freezer.state").strip() == "FROZEN"
        return parse_flat_keyed(self._read("freezer", "cgroup.events")).get("frozen") == 1

    def usage(self) -> GroupUsage:
        """Return the resources that the group has used so far.

        Raises:
            FileNotFoundError: The group is gone.
        """
        stat = parse_flat_keyed(self._read("memory", "memory.stat"))
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
            cpu_s=parse_flat_keyed(self._read("cpu", "cpu.stat")).get("usage_usec", 0) / 1e6,
            memory_bytes=max(0, int(self._read("memory", "memory.current")) - stat.get("inactive_file", 0)),
            memory_peak_bytes=peak,
            pids=int(self._read("pids", "pids.current")),
        )

    def oom_kills(self) -> int:
        """Return the number of tasks that the kernel killed because of the memory limit, or 0 if the group is gone."""
        file = "memory.oom_control" if self._layout.version == 1 else "memory.events"
        try:
            return parse_flat_keyed(self._read("memory", file)).get("oom_kill", 0)
        except OSError:
            return 0

    def remove(self) -> bool:
        """Remove the group and each parent that is then empty. Return False if tasks are still in it: then call again."""
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
        # The removal of another group may remove a parent that is empty for a moment.
        for attempt in range(_MAX_ATTEMPTS):
            try:
                folder = mount
                for part in self._relative.parts:
                    parent, folder = folder, folder / part
                    with contextlib.suppress(FileExistsError):
                        folder.mkdir()
                    if is_cpuset and self._layout.version == 1:
                        # A new cpuset is empty and accepts no process. In version 2 a group inherits the cpuset of its parent.
                        for file in ("cpuset.cpus", "cpuset.mems"):
                            (folder / file).write_text((parent / file).read_text(encoding="ascii"), encoding="ascii")
                    elif self._layout.version == UNIFIED and folder.name != self._relative.name:
                        _delegate(folder)
                return
            except OSError as error:
                # ENODEV: the group was removed after the file was opened.
                if error.errno not in {errno.ENOENT, errno.ENODEV} or attempt == _MAX_ATTEMPTS - 1:
                    raise

    def _change(self, setting: Setting, done: list[Setting]) -> None:
        """Write one file of a group in use, and append its former value to ``done``."""
        try:
            before = self._read(setting.controller, setting.file).strip()
        except FileNotFoundError:
            if setting.optional:
                return
            raise
        if before == setting.value:
            return
        # A killed service may have left a value of memory.high, which must not be restored.
        done.append(replace(setting, value="max" if setting.file == MEMORY_HIGH else before))
        self._write(setting.controller, setting.file, setting.value)
        if setting.file == MEMORY_HIGH and setting.value != "max" and int(self._read("memory", "memory.current")) > int(setting.value):
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
            # Without O_CREAT: the files belong to the kernel.
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
    """Return the names of all groups directly below a group, over all hierarchies."""
    names: set[str] = set()
    for hierarchy in layout.hierarchies:
        with contextlib.suppress(FileNotFoundError), os.scandir(hierarchy.mount / parent.relative_to("/")) as entries:
            names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    return names


def _in_use_error(limit: str, used: int, wanted: int, what: str) -> ConflictError:
    return ConflictError(
        f"The sandbox uses {used} {what}; the new limit is {wanted}.",
        hint="End some of its processes first, or set a higher limit.",
        fields={"field": limit, "in_use": used, "wanted": wanted},
    )


def _delegate(folder: Path) -> None:
    # cgroup-v2.rst: children have a controller only after the parent has enabled it for them.
    for level in (folder.parent, folder):
        (level / "cgroup.subtree_control").write_text(CHILD_CONTROLLERS, encoding="ascii")
