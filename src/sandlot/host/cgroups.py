"""One control group of the host: created, limited, read, frozen, killed and removed.

Invariants:
- All paths of a group are derived from its name. After a crash, the name is enough to find what is left of the group in every hierarchy.
- :meth:`Cgroup.kill_once` signals only processes that are in the group at that moment. It opens pidfds and reads the group again before it sends
  signals, so no signal reaches a process with a reused pid (pidfd_open(2)).
- The caller must remove a group in a loop: a group cannot be removed while a task is in it, and a killed task leaves its group only after a while.

The methods block for microseconds, except :meth:`Cgroup.change` and :meth:`Cgroup.lower_memory`, which block as long as the kernel reclaims memory.
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
    memory_settings,
    parse_flat_keyed,
    parse_layout,
    step_down,
)
from sandlot.model.errors import ConflictError, HostError

MOUNTINFO = Path("/proc/self/mountinfo")
_MAX_ATTEMPTS = 20
"""Attempts to create a group. An attempt fails if another process removes an empty parent of the group at the same moment."""


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """Processor time, memory and tasks of a control group.

    Args:
        cpu_s: Processor time that was used until now, user and system, in seconds.
        memory_bytes: Bytes of memory in use now, without the page cache that the kernel can drop at once.
        memory_peak_bytes: Largest memory use until now in bytes, including page cache. 0 if the kernel does not record the peak.
        pids: Number of host tasks in the group now.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Memory of a control group by kind, in bytes.

    Args:
        charged_bytes: Memory that counts against the memory limit, including page cache.
        anonymous_bytes: Memory that the processes have allocated for themselves.
        shared_bytes: Shared memory: tmpfs and memfd_create(2). Like anonymous memory, it cannot be reclaimed without swap.
    """

    charged_bytes: int
    anonymous_bytes: int
    shared_bytes: int


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
        """Folders of the group, one in each hierarchy."""
        return tuple(hierarchy.mount / self._relative for hierarchy in self._layout.hierarchies)

    @property
    def entry_files(self) -> tuple[Path, ...]:
        """Files through which a process with one thread enters the group. The process must write ``0`` to each of the files.

        In version 1 these files are named ``tasks``. A thread that moves itself through ``tasks`` takes no lock over all processes of the host. A
        thread that moves itself through ``cgroup.procs`` waits 5 to 17 ms (measured) for an RCU grace period.
        """
        file = "tasks" if self._layout.version == 1 else "cgroup.procs"
        return tuple(folder / file for folder in self.folders)

    def exists(self) -> bool:
        """Return whether the group exists in any hierarchy."""
        return any(folder.is_dir() for folder in self.folders)

    def create(self, limits: GroupLimits) -> None:
        """Create the group and set its limits. No process may enter the group before this method returns.

        Raises:
            HostError: The kernel refused an operation; the message contains the error of the kernel.
        """
        try:
            for hierarchy in self._layout.hierarchies:
                self._make(hierarchy.mount, "cpuset" in hierarchy.controllers)
            for setting in create_settings(self._layout.version, limits):
                self._write(setting.controller, setting.file, setting.value, optional=setting.optional)
        except OSError as error:
            raise HostError(
                f"The host could not create the control group {self.name}: {error.strerror} ({error.filename}).",
                hint="Run the service as root on a host whose /sys/fs/cgroup is writable. `sandlot doctor` lists what the host lacks.",
            ) from error

    def change(self, limits: GroupLimits, *, keep_memory: bool = False) -> None:
        """Change all limits of a group with processes, or none of them. Blocks as long as the kernel needs to reclaim memory.

        Args:
            limits: New limits.
            keep_memory: If True, the memory limit in force is not changed, whatever ``limits`` says.

        Raises:
            ConflictError: The group uses more memory or tasks than the new limits allow; no limit was changed.
            HostError: The kernel refused a new limit; no limit was changed. The message contains the error of the kernel.
            FileNotFoundError: The group is gone.
        """
        tasks = int(self._read("pids", "pids.current"))
        if tasks > limits.pids:
            raise _in_use_error("pids", tasks, limits.pids, "tasks of the host")
        done: list[Setting] = []
        try:
            for setting in change_settings(self._layout.version, limits, raised=limits.memory_bytes > self.memory_limit()):
                if not (keep_memory and setting.controller == "memory"):
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
                hint="Run `sandlot doctor` to see what the host lacks.",
            ) from error

    def lower_memory(self, memory_bytes: int, slack_bytes: int) -> int:
        """Lower the memory limit as far as possible without ending a process, and return the limit in force. Blocks while the kernel reclaims memory.

        If the group uses more than ``memory_bytes`` and the kernel cannot reclaim the difference, the limit becomes the memory in use plus
        ``slack_bytes``. The limit never becomes higher than it is. In version 2, ``memory.high`` then stays at ``memory_bytes``, so that the kernel
        reclaims memory while the group runs.

        Raises:
            OSError: The kernel refused a value. FileNotFoundError: the group is gone.
        """
        if self._layout.version == UNIFIED:
            # Writing memory.high reclaims memory. The kernel would end processes to enforce memory.max, so memory.max follows what was reclaimed.
            self._write("memory", MEMORY_HIGH, str(memory_bytes))
        elif self._try_limit(memory_bytes):
            return memory_bytes
        charged_bytes = self.charged_bytes()
        step = step_down(current_bytes=self.memory_limit(), wanted_bytes=memory_bytes, charged_bytes=charged_bytes, slack_bytes=slack_bytes)
        if self._layout.version != UNIFIED:
            self._try_limit(step)
        elif charged_bytes > memory_bytes:
            self._write("memory", "memory.max", str(step))
        else:
            self._write("memory", "memory.max", str(memory_bytes))
            self._write("memory", MEMORY_HIGH, "max")
        return self.memory_limit()

    def _try_limit(self, memory_bytes: int) -> bool:
        """Set the memory limit in version 1. Return False if the kernel cannot reclaim enough memory."""
        try:
            for setting in memory_settings(1, memory_bytes):
                self._write(setting.controller, setting.file, setting.value, optional=setting.optional)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def limits(self) -> GroupLimits:
        """Return the current limits of the group.

        Raises:
            FileNotFoundError: The group is gone.
            ValueError: The number of tasks or, in version 2, the processor time of the group is not limited.
        """
        if self._layout.version == 1:
            quota, period = (self._read("cpu", f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        else:
            quota, period = self._read("cpu", "cpu.max").split()
        return GroupLimits(memory_bytes=self.memory_limit(), cpus=int(quota) / int(period), pids=int(self._read("pids", "pids.max")))

    def charged_bytes(self) -> int:
        """Return the bytes of memory that the kernel now counts against the group's memory limit, including page cache.

        Raises:
            FileNotFoundError: The group is gone.
        """
        return int(self._read("memory", "memory.usage_in_bytes" if self._layout.version == 1 else "memory.current"))

    def memory(self) -> GroupMemory:
        """Return the memory of the group by kind.

        Raises:
            FileNotFoundError: The group is gone.
        """
        stat = parse_flat_keyed(self._read("memory", "memory.stat"))
        anonymous, shared = ("total_rss", "total_shmem") if self._layout.version == 1 else ("anon", "shmem")
        return GroupMemory(charged_bytes=self.charged_bytes(), anonymous_bytes=stat.get(anonymous, 0), shared_bytes=stat.get(shared, 0))

    def memory_limit(self) -> int:
        """Return the memory limit of the group in bytes, or the largest number if there is none.

        Raises:
            FileNotFoundError: The group is gone.
        """
        text = self._read("memory", "memory.limit_in_bytes" if self._layout.version == 1 else "memory.max").strip()
        return int(text) if text.isdigit() else sys.maxsize

    def pids(self) -> set[int]:
        """Return the pids of the processes that are in the group in at least one hierarchy.

        A process that died while it entered the group may be in some hierarchies only.
        """
        found: set[int] = set()
        for folder in self.folders:
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in (folder / "cgroup.procs").read_text(encoding="ascii").split())
        found.discard(0)  # the kernel shows a process of another pid namespace as 0
        return found

    def kill_once(self) -> int:
        """Thaw the group, forbid new tasks, send SIGKILL to the group's processes, and return the number of these processes.

        The group is thawed because in version 1 a frozen task does not die. To end all processes, call this method until the result is 0.
        """
        self.thaw()
        if self._layout.version == UNIFIED:
            # cgroup.kill exists since Linux 5.14. It also kills processes that are forked at the same moment.
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
        """Ask the kernel to suspend every task of the group. All tasks are suspended once :meth:`is_frozen` returns True."""
        self._set_frozen(frozen=True)

    def thaw(self) -> None:
        """Let every task of the group continue. Errors are ignored, for example if the group has been removed."""
        with contextlib.suppress(FileNotFoundError, OSError):
            self._set_frozen(frozen=False)

    def is_frozen(self) -> bool:
        """Return whether every task of the group is suspended."""
        if self._layout.version == 1:
            return self._read("freezer", "freezer.state").strip() == "FROZEN"
        return parse_flat_keyed(self._read("freezer", "cgroup.events")).get("frozen") == 1

    def usage(self) -> GroupUsage:
        """Return the processor time, memory and tasks of the group.

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
        with contextlib.suppress(FileNotFoundError):  # memory.peak exists since Linux 5.19
            peak = int(self._read("memory", "memory.peak"))
        return GroupUsage(
            cpu_s=parse_flat_keyed(self._read("cpu", "cpu.stat")).get("usage_usec", 0) / 1e6,
            memory_bytes=max(0, int(self._read("memory", "memory.current")) - stat.get("inactive_file", 0)),
            memory_peak_bytes=peak,
            pids=int(self._read("pids", "pids.current")),
        )

    def oom_kills(self) -> int:
        """Return the number of tasks that the kernel killed because of the group's memory limit, or 0 if the group is gone."""
        file = "memory.oom_control" if self._layout.version == 1 else "memory.events"
        try:
            return parse_flat_keyed(self._read("memory", file)).get("oom_kill", 0)
        except OSError:
            return 0

    def remove(self) -> bool:
        """Remove the group and each parent that is empty without it. Return False if tasks are still in the group: the caller must then try again."""
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
        # An attempt fails if another process removes the parent group before this group is created in it: empty parents are removed.
        for attempt in range(_MAX_ATTEMPTS):
            try:
                folder = mount
                for part in self._relative.parts:
                    parent, folder = folder, folder / part
                    with contextlib.suppress(FileExistsError):
                        folder.mkdir()
                    if is_cpuset and self._layout.version == 1:
                        # In version 1 a new group may use no processors and accepts no process, until it gets the cpuset of its parent.
                        for file in ("cpuset.cpus", "cpuset.mems"):
                            (folder / file).write_text((parent / file).read_text(encoding="ascii"), encoding="ascii")
                    elif self._layout.version == UNIFIED and folder.name != self._relative.name:
                        _delegate(folder)
                return
            except OSError as error:
                # ENOENT: a parent was removed before its file was opened. ENODEV: a parent was removed after that. Other errors are not retried.
                if error.errno not in {errno.ENOENT, errno.ENODEV} or attempt == _MAX_ATTEMPTS - 1:
                    raise

    def _change(self, setting: Setting, done: list[Setting]) -> None:
        """Write one setting of a group that contains processes, and append a setting with the former value to ``done``."""
        try:
            before = self._read(setting.controller, setting.file).strip()
        except FileNotFoundError:
            if setting.optional:
                return
            raise
        if before == setting.value:
            return
        # memory.high is reset to "max", not to its former value, which may be a temporary value that a killed service left.
        done.append(replace(setting, value="max" if setting.file == MEMORY_HIGH else before))
        self._write(setting.controller, setting.file, setting.value)
        if setting.file == MEMORY_HIGH and setting.value != "max" and int(self._read("memory", "memory.current")) > int(setting.value):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), setting.file)

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
            # O_CREAT is not passed: only the kernel creates files in a control group.
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
    """Return the names of all groups that are directly below the group ``parent`` in any hierarchy."""
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
    # A child group has only the controllers that its parent has enabled for its children (cgroup-v2.rst).
    for level in (folder.parent, folder):
        (level / "cgroup.subtree_control").write_text(CHILD_CONTROLLERS, encoding="ascii")
