"""Layout of the host's control groups, and the files with which groups are limited, for version 1 and version 2. Pure.

Invariants:
- A host is *version 1* if the memory controller has its own hierarchy, whatever else is mounted: systemd's "hybrid" hosts have a version 2 mount
  without controllers. A host is *version 2* if the memory controller belongs to the unified hierarchy.
- Groups of version 1 are created in **every** mounted hierarchy, not only in those that limit something. A runtime that finds its group in all
  hierarchies creates no further groups. A group therefore has the same path in all hierarchies, and can be found by its name alone.

Sources: cgroups(7); the kernel's ``Documentation/admin-guide/cgroup-v1/`` and ``cgroup-v2.rst``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sandlot.model.errors import HostError

NEEDED = ("memory", "cpu", "pids", "freezer")
"""Controllers that sandboxes need. In version 2 every group can be frozen without a controller."""

UNIFIED = 2
"""Version of control groups with one unified hierarchy."""
CPU_PERIOD_US = 100_000
"""Period to which a CPU quota applies, in microseconds: the kernel's default."""
GROUPS = PurePosixPath("/sandlot")
"""Control group above all groups of all services, in every hierarchy. The groups of sandboxes are below the group of their node."""
CHILD_CONTROLLERS = "+memory +cpu +pids"
"""Value of ``cgroup.subtree_control`` in version 2 that gives these controllers to child groups (cgroup-v2.rst)."""
MEMORY_HIGH = "memory.high"
"""File of version 2 with a soft memory limit. If a group uses more, the kernel reclaims memory and kills no process."""
SOCKET_BYTES = 32 * 1024**2
"""Limit of the buffers of TCP and UDP sockets of one group in version 1. Without the limit, one process in a container of 256 MiB took 2.2 GiB of the
host's memory with 450 pairs of UDP sockets, and as much with TCP (Linux 6.18)."""
_MIN_QUOTA_US = 1000
"""Least CPU quota that the kernel accepts, in microseconds per period (scheduler/sched-bwc.rst)."""

_CONTROLLERS = frozenset(
    ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc", "net_cls", "net_prio", "perf_event", "pids", "rdma")
)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy of groups.

    Args:
        mount: Mount point.
        controllers: Names of the hierarchy's controllers. Empty for a named hierarchy, such as systemd's.
    """

    mount: Path
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Layout:
    """All hierarchies in which groups are created.

    Args:
        version: Version of control groups, 1 or 2.
        hierarchies: The hierarchies: one in version 2, several in version 1.
    """

    version: int
    hierarchies: tuple[Hierarchy, ...]

    def home(self, controller: str) -> Path:
        """Return the mount point of a controller's hierarchy.

        Raises:
            HostError: The host does not have this controller.
        """
        if self.version == UNIFIED:
            return self.hierarchies[0].mount
        for hierarchy in self.hierarchies:
            if controller in hierarchy.controllers:
                return hierarchy.mount
        raise HostError(
            f"The {controller} cgroup controller is not mounted.",
            hint=f"Mount it: mount -t cgroup -o {controller} cgroup /sys/fs/cgroup/{controller}",
        )


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits of a control group.

    Args:
        memory_bytes: Memory in bytes, including page cache. Groups get no swap.
        cpus: Processor time in cores. 0.5 is half of one core's time.
        pids: Number of tasks (processes and threads) of the host.
    """

    memory_bytes: int
    cpus: float
    pids: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A value to write to one file of a control group.

    Args:
        controller: Controller whose hierarchy contains the file.
        file: Name of the file.
        value: Value to write.
        optional: True if the kernel may lack the file, such as the files for swap, which depend on a boot option.
    """

    controller: str
    file: str
    value: str
    optional: bool = False


def cpu_quota_us(cpus: float) -> int:
    """Return the CPU quota for a number of cores, in microseconds of processor time per :data:`CPU_PERIOD_US`."""
    return max(_MIN_QUOTA_US, round(cpus * CPU_PERIOD_US))


def create_settings(version: int, limits: GroupLimits) -> tuple[Setting, ...]:
    """Return the settings that give a new group its limits, in the order in which they must be written. ``version`` is 1 or 2."""
    # Version 2 counts the buffers of TCP and UDP sockets as memory. Version 1 has a limit of its own for them, which is off by default.
    sockets = (Setting("memory", "memory.kmem.tcp.limit_in_bytes", str(SOCKET_BYTES), optional=True),) if version == 1 else ()
    return (*memory_settings(version, limits.memory_bytes), *sockets, *_others(version, limits))


def change_settings(version: int, limits: GroupLimits, *, raised: bool) -> tuple[Setting, ...]:
    """Return the settings that change the limits of a group with processes, in the order in which they must be written.

    A lower memory limit is written first: the kernel may refuse the lower limit, and then no other setting has to be undone. A higher memory limit is
    written last: the group could use the added memory a moment later, and then the higher limit could not be undone.

    Args:
        version: Version of control groups, 1 or 2.
        limits: New limits.
        raised: True if the new memory limit is higher than the current one.
    """
    memory = memory_settings(version, limits.memory_bytes)
    others = _others(version, limits)
    if version == 1:
        return (*others, *reversed(memory)) if raised else (*memory, *others)
    # If memory.max is lowered and the kernel cannot reclaim enough memory, the kernel kills processes. If memory.high is lowered, the kernel kills no
    # process (cgroup-v2.rst). A lower limit is therefore first tried as memory.high. After memory.max was lowered too, memory.high is reset.
    high = Setting("memory", MEMORY_HIGH, str(limits.memory_bytes))
    none = replace(high, value="max")
    # memory.high is reset also if the limit is raised: a service that was killed while it lowered a limit may have left a value.
    return (*others, *reversed(memory), none) if raised else (high, *memory, none, *others)


def step_down(*, current_bytes: int, wanted_bytes: int, charged_bytes: int, slack_bytes: int) -> int:
    """Return the memory limit to set on the way from a higher limit to the wanted one, while the group uses more than is wanted.

    Args:
        current_bytes: Limit in force. The result is never higher.
        wanted_bytes: Limit to reach. The result is never lower.
        charged_bytes: Memory that counts against the limit now.
        slack_bytes: Memory that the group may use in addition, so that its processes can run and return memory.
    """
    return min(current_bytes, max(wanted_bytes, charged_bytes + slack_bytes))


def memory_settings(version: int, memory_bytes: int) -> tuple[Setting, ...]:
    """Return the settings that limit the memory of a group, in the order in which a lower limit must be written."""
    if version == 1:
        return (
            Setting("memory", "memory.limit_in_bytes", str(memory_bytes)),
            # memsw limits memory and swap together, and must never be below the memory limit: it is lowered last. A caller that raises both limits
            # must reverse this order.
            Setting("memory", "memory.memsw.limit_in_bytes", str(memory_bytes), optional=True),
        )
    return (
        Setting("memory", "memory.max", str(memory_bytes)),
        Setting("memory", "memory.swap.max", "0", optional=True),
    )


def _others(version: int, limits: GroupLimits) -> tuple[Setting, ...]:
    quota_us = cpu_quota_us(limits.cpus)
    pids = Setting("pids", "pids.max", str(limits.pids))
    if version == 1:
        return (Setting("cpu", "cpu.cfs_period_us", str(CPU_PERIOD_US)), Setting("cpu", "cpu.cfs_quota_us", str(quota_us)), pids)
    return (Setting("cpu", "cpu.max", f"{quota_us} {CPU_PERIOD_US}"), pids)


def parse_layout(mountinfo: str, unified_controllers: Mapping[str, str]) -> Layout:
    """Return the layout of a host's control groups.

    Args:
        mountinfo: Text of ``/proc/self/mountinfo``, proc(5).
        unified_controllers: Mount point of a version 2 hierarchy -> text of its ``cgroup.controllers``.

    Raises:
        HostError: No hierarchy has the memory controller.
    """
    separate: list[Hierarchy] = []
    unified: list[Hierarchy] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(kind) < 3 or len(fields) < 5:  # noqa: PLR2004 - fields of a complete line: proc(5)
            continue
        mount = Path(_unescape(fields[4]))
        if kind[0] == "cgroup":
            hierarchy = Hierarchy(mount, frozenset(kind[2].split(",")) & _CONTROLLERS)
            if all(hierarchy.mount != other.mount for other in separate):
                separate.append(hierarchy)
        elif kind[0] == "cgroup2":
            unified.append(Hierarchy(mount, frozenset(unified_controllers.get(str(mount), "").split())))
    if any("memory" in hierarchy.controllers for hierarchy in separate):
        return Layout(1, tuple(separate))
    for hierarchy in unified:
        if "memory" in hierarchy.controllers:
            return Layout(2, (hierarchy,))
    raise HostError(
        "No cgroup hierarchy with the memory controller is mounted, so sandboxes cannot be limited.",
        hint="Mount the memory controller, as systemd does. If the service runs in a container, start the container with a writable /sys/fs/cgroup.",
    )


def missing_controllers(layout: Layout) -> tuple[str, ...]:
    """Return the controllers that sandboxes need (:data:`NEEDED`) and the host does not have."""
    present = frozenset[str]().union(*(hierarchy.controllers for hierarchy in layout.hierarchies))
    if layout.version == UNIFIED:
        present |= {"freezer"}
    return tuple(controller for controller in NEEDED if controller not in present)


def parse_flat_keyed(text: str) -> dict[str, int]:
    """Parse the text of a "flat keyed" file of a control group, such as ``memory.stat``: name -> number."""
    pairs: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.strip().isdigit():
            pairs[name] = int(value)
    return pairs


def _unescape(field: str) -> str:
    # proc(5): space, tab, newline and backslash are written as three octal digits.
    for octal, plain in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(octal, plain)
    return field
