"""Where this machine keeps its cgroup controllers, and which files say what: pure, for version 1 and version 2.

Laws:
- A host is *version 1* where the memory controller has a hierarchy of its own, whatever else is mounted (systemd's
  "hybrid" hosts have a version 2 mount without controllers), and *version 2* where it belongs to the unified hierarchy.
- Version 1 groups are made in **every** mounted hierarchy, not only in those that limit something: a runtime that finds
  its group everywhere makes none itself, so that all that is there can be derived from the name alone.

Sources: cgroups(7); the kernel's ``Documentation/admin-guide/cgroup-v1/`` and ``cgroup-v2.rst``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sandlot.model.errors import ErrorCode, HostError

NEEDED = ("memory", "cpu", "pids", "freezer")
"""Controllers without which no sandbox is limited; version 2 has the freezer built in."""

CPU_PERIOD_US = 100_000
"""The kernel's default."""
GROUPS = PurePosixPath("/sandlot")
"""Below every hierarchy: where all groups of all services are. For sandboxes the node comes next."""
GIVEN_TO_CHILDREN = "+memory +cpu +pids"
"""Of version 2: what a group's ``cgroup.subtree_control`` is told, so that its children have those controllers (cgroup-v2.rst)."""
SQUEEZE = "memory.high"
"""Of version 2: beyond it memory is reclaimed, and nobody killed."""
_LEAST_QUOTA_US = 1000
"""What the kernel takes at least (scheduler/sched-bwc.rst)."""

_CONTROLLERS = frozenset(
    ("blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb", "memory", "misc", "net_cls", "net_prio", "perf_event", "pids", "rdma")
)


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted tree of groups.

    Args:
        mount: Where it is mounted.
        controllers: What it controls; a named one (systemd's) controls nothing.
    """

    mount: Path
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class Layout:
    """All trees that a sandbox's group is made in.

    Args:
        version: 1 or 2.
        hierarchies: One for version 2, several for version 1.
    """

    version: int
    hierarchies: tuple[Hierarchy, ...]

    def home(self, controller: str) -> Path:
        """Where the hierarchy of a controller is mounted.

        Raises:
            HostError: This host does not have it.
        """
        if self.version == 2:  # noqa: PLR2004 - the version
            return self.hierarchies[0].mount
        for hierarchy in self.hierarchies:
            if controller in hierarchy.controllers:
                return hierarchy.mount
        raise HostError(
            f"The {controller} cgroup controller is not mounted.",
            code=ErrorCode.HOST_NOT_READY,
            hint=f"Mount it: mount -t cgroup -o {controller} cgroup /sys/fs/cgroup/{controller}",
        )


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a whole group may use; the unit is the host's, not the guest's.

    Args:
        memory_bytes: Memory, page cache included; swap is not given.
        cpus: Cores; fractions are a share of one core's time.
        pids: Host tasks.
    """

    memory_bytes: int
    cpus: float
    pids: int


@dataclass(frozen=True, slots=True)
class Setting:
    """One file to write.

    Args:
        controller: Whose hierarchy the file is in.
        file: Its name.
        value: What to write.
        optional: Whether a kernel may be without it (swap accounting is a boot option).
    """

    controller: str
    file: str
    value: str
    optional: bool = False


def cpu_quota_us(cpus: float) -> int:
    """How many microseconds of processor time in each period those cores are."""
    return max(_LEAST_QUOTA_US, round(cpus * CPU_PERIOD_US))


def settings(version: int, limits: GroupLimits) -> tuple[Setting, ...]:
    """The files that set the limits of a new group, in the order in which they must be written."""
    return (*_memory(version, limits.memory_bytes), *_others(version, limits))


def resettings(version: int, limits: GroupLimits, *, raised: bool) -> tuple[Setting, ...]:
    """The files that move the limits of a group in use, in the order in which they must be written.

    What the kernel may refuse comes first, so that little has to be taken back: less memory than is in use. More memory
    comes last, because it could be in use a moment later.

    Args:
        version: 1 or 2.
        limits: What they are to be.
        raised: Whether that is more memory than now.
    """
    memory = _memory(version, limits.memory_bytes)
    others = _others(version, limits)
    if version == 1:
        return (*others, *reversed(memory)) if raised else (*memory, *others)
    # Version 2 kills for a lower memory.max what it cannot reclaim. memory.high reclaims and kills nobody (cgroup-v2.rst), so
    # it tells whether there is room; and it holds until memory.max does.
    high = Setting("memory", SQUEEZE, str(limits.memory_bytes))
    none = replace(high, value="max")
    # Also where it is not needed: a service that was killed meanwhile has left it.
    return (*others, *reversed(memory), none) if raised else (high, *memory, none, *others)


def _memory(version: int, memory_bytes: int) -> tuple[Setting, ...]:
    if version == 1:
        return (
            Setting("memory", "memory.limit_in_bytes", str(memory_bytes)),
            # Memory and swap together: it may never be the lower of the two, so it is lowered after the other and raised before.
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


def read_layout(mountinfo: str, unified_controllers: Mapping[str, str]) -> Layout:
    """Where the controllers are.

    Args:
        mountinfo: The text of ``/proc/self/mountinfo``, proc(5).
        unified_controllers: Mount point of a version 2 hierarchy -> the text of its ``cgroup.controllers``.

    Raises:
        HostError: No hierarchy has the memory controller.
    """
    separate: list[Hierarchy] = []
    unified: list[Hierarchy] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(kind) < 3 or len(fields) < 5:  # noqa: PLR2004 - type, source and options; ids, root and mount point
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
        "No cgroup hierarchy with the memory controller is mounted, so that no sandbox could be limited.",
        code=ErrorCode.HOST_NOT_READY,
        hint="On a plain Debian host systemd mounts it; inside of a container, start that with a writable /sys/fs/cgroup.",
    )


def missing(layout: Layout) -> tuple[str, ...]:
    """Controllers that are needed and not there."""
    present = frozenset[str]().union(*(hierarchy.controllers for hierarchy in layout.hierarchies))
    if layout.version == 2:  # noqa: PLR2004 - the version
        present |= {"freezer"}
    return tuple(controller for controller in NEEDED if controller not in present)


def read_pairs(text: str) -> dict[str, int]:
    """The numbers of a "flat keyed" file, such as ``memory.stat``: name -> number."""
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
