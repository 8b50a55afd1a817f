"""Checks of control groups: their version and controllers, and whether a group can be created, limited, entered, frozen and removed."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandlot.host.cgroup_layout import GROUPS, UNIFIED, GroupLimits, Layout, missing_controllers
from sandlot.host.cgroups import MOUNTINFO, Cgroup, detect_layout, group_names
from sandlot.host.checks.finding import Finding, Part
from sandlot.host.stage.syscalls import PR_SET_PDEATHSIG, prctl
from sandlot.model.errors import HostError

GROUP = "control groups"
PROC_SWAPS = Path("/proc/swaps")
_PREFIX = "doctor-"
_TRY_LIMITS = GroupLimits(memory_bytes=64 * 1024**2, cpus=1.0, pids=64)
_TIMEOUT_S = 5.0
_SILENCE_S = 0.1


def check_cgroups() -> list[dict[str, Any]]:
    """Run all checks of this module and return their findings as JSON objects. Must run in a child process, because it may block."""
    try:
        layout = detect_layout()
    except HostError as error:
        return [Finding("cgroups", ok=False, detail=error.message, fix=error.hint, group=GROUP).dump(), *(_unknown("the host has no control groups"))]
    found = check_layout(layout, MOUNTINFO.read_text(encoding="utf-8", errors="replace"))
    if os.geteuid() != 0:
        return [found.dump(), *_unknown("only root can run this check")]
    if not found.ok:
        return [found.dump(), *_unknown("the check cgroups failed")]
    return [finding.dump() for finding in (found, *_try(layout))]


def sweep_groups() -> None:
    """Remove control groups that killed checks left behind. Must run in a child process, because it may block.

    The processes in these groups are dead, or die when the group is thawed.
    """
    try:
        layout = detect_layout()
    except HostError:
        return
    for name in group_names(layout, GROUPS):
        pid = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and pid.isdigit() and not Path(f"/proc/{pid}").exists():
            group = Cgroup(layout, GROUPS / name)
            with contextlib.suppress(OSError):  # not root
                group.thaw()
            _remove(group)


def check_layout(layout: Layout, mountinfo: str) -> Finding:
    """Report the version of control groups, and check whether the host has the controllers that limit a sandbox.

    Args:
        layout: Layout of the host's control groups.
        mountinfo: Text of ``/proc/self/mountinfo``.
    """
    controllers = sorted(frozenset[str]().union(*(hierarchy.controllers for hierarchy in layout.hierarchies)))
    both = layout.version != UNIFIED and " - cgroup2 " in mountinfo
    kind = "version 2" if layout.version == UNIFIED else "version 1, and a version 2 tree beside it (hybrid)" if both else "version 1"
    facts = {"version": layout.version, "hybrid": both, "controllers": controllers, "mounts": [str(each.mount) for each in layout.hierarchies]}
    lacking = missing_controllers(layout)
    if hidden := [str(hierarchy.mount) for hierarchy in layout.hierarchies if not hierarchy.mount.is_dir()]:
        detail = f"{kind}, but nothing is visible at {hidden[0]}{f' and {len(hidden) - 1} more' if hidden[1:] else ''}"
        fix = "Unmount what is mounted over this path, or start the container with the host's own /sys/fs/cgroup, writable."
        return Finding("cgroups", ok=False, detail=detail, fix=fix, group=GROUP, facts=facts)
    if not lacking:
        return Finding("cgroups", ok=True, detail=f"{kind}: {', '.join(controllers)}", group=GROUP, facts=facts)
    how = (
        f"echo '{' '.join(f'+{name}' for name in lacking)}' > cgroup.subtree_control of the groups above this one"
        if layout.version == UNIFIED
        else f"mount them, for example: mount -t cgroup -o {lacking[0]} cgroup /sys/fs/cgroup/{lacking[0]}"
    )
    fix = f"Enable {', '.join(lacking)}: {how}; cgroup_disable= or cgroup_no_v1= on the kernel's command line disables them."
    return Finding("cgroups", ok=False, detail=f"{kind}, without {', '.join(lacking)}", fix=fix, group=GROUP, facts=facts)


def delegation_fix(number: int | None, version: int) -> str:
    """Return the action that allows control groups to be created, limited and entered.

    Args:
        number: ``errno`` of the failure. None if the failure has no number.
        version: Version of control groups, 1 or 2.
    """
    if number == errno.EROFS:
        return "/sys/fs/cgroup is read-only. If this is a container, start it with a writable /sys/fs/cgroup (for example docker run --privileged)."
    if number in {errno.EACCES, errno.EPERM}:
        return "Run as root of the host, or set Delegate=yes in the service's unit."
    if version == UNIFIED and number in {errno.EBUSY, errno.ENOENT, errno.EOPNOTSUPP}:
        return (
            "A version 2 group can enable controllers for its child groups only while no process is in it: run the service from a unit with "
            "Delegate=yes, or move the container's own processes to a child group."
        )
    return "Check the kernel's messages (dmesg) and the mounts below /sys/fs/cgroup."


def check_swap(folders: Sequence[Path], swaps: str) -> Part:
    """Check whether the kernel can limit the swap space of a control group. A host without swap space passes.

    Args:
        folders: Folders of an existing group, one in each hierarchy.
        swaps: Text of ``/proc/swaps``.
    """
    counted = any((folder / file).exists() for folder in folders for file in ("memory.memsw.limit_in_bytes", "memory.swap.max"))
    has_swap = len(swaps.splitlines()) > 1
    if counted or not has_swap:
        return Part("swap", ok=True)
    return Part("swap", ok=False, detail="not limited: a sandbox may use all swap beyond its memory limit; boot with swapaccount=1, or swapoff -a")


def _unknown(why: str) -> list[dict[str, Any]]:
    return [Finding(name, ok=None, detail=f"not tried: {why}", group=GROUP).dump() for name in ("cgroup-delegation", "cgroup-freezer")]


def _try(layout: Layout) -> Sequence[Finding]:
    group = Cgroup(layout, GROUPS / f"{_PREFIX}{os.getpid()}")
    pid = 0
    try:
        group.create(_TRY_LIMITS)
        pid, asking, answering = _start_echo(group.entry_files)
        _enter(group, pid, asking, answering)
        parts = (check_swap(group.folders, PROC_SWAPS.read_text(encoding="ascii")),)
        delegation = Finding("cgroup-delegation", ok=True, detail="a group was created, limited and entered", group=GROUP, parts=parts)
        return (delegation, _freeze(group, asking, answering))
    except (OSError, HostError) as error:
        cause = error.__cause__ if isinstance(error, HostError) else error
        number = cause.errno if isinstance(cause, OSError) else None
        fix = delegation_fix(number, layout.version)
        text = error.message if isinstance(error, HostError) else f"{error.strerror or error}"
        freezer = Finding("cgroup-freezer", ok=None, detail="not tried: there is no group to freeze", group=GROUP)
        return (Finding("cgroup-delegation", ok=False, detail=text, fix=fix, group=GROUP), freezer)
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            group.thaw()
            os.waitpid(pid, 0)
        _remove(group)


def _enter(group: Cgroup, pid: int, asking: int, answering: int) -> None:
    os.write(asking, b"a")
    if not _echoed(answering, _TIMEOUT_S) or pid not in group.pids():
        raise OSError(errno.EPERM, "a process could not enter the group")


def _freeze(group: Cgroup, asking: int, answering: int) -> Finding:
    """Check that the echo process does not respond to a byte while its group is frozen, and responds after the group is thawed.

    Args:
        group: Group with the echo process.
        asking: Descriptor to write to the echo process.
        answering: Descriptor to read from the echo process.
    """
    group.freeze()
    end = time.monotonic() + _TIMEOUT_S
    while not group.is_frozen() and time.monotonic() < end:
        time.sleep(0.005)
    frozen = group.is_frozen()
    os.write(asking, b"b")
    silent = not _echoed(answering, _SILENCE_S)
    group.thaw()
    resumed = silent and _echoed(answering, _TIMEOUT_S)
    if frozen and silent and resumed:
        return Finding("cgroup-freezer", ok=True, detail="a frozen process stopped, and continued after thawing", group=GROUP)
    detail = "a group does not freeze" if not frozen or not silent else "a frozen process did not continue"
    return Finding("cgroup-freezer", ok=False, detail=detail, fix="Use another kernel: with this one, sandboxes cannot be paused.", group=GROUP)


def _start_echo(entry_files: Sequence[Path]) -> tuple[int, int, int]:
    """Start a child process that enters a group and then sends back every byte that it receives.

    Args:
        entry_files: Files of the group to which the child writes ``0`` to enter.

    Returns:
        Pid of the child, a descriptor to write bytes to the child, and a descriptor to read them from the child.
    """
    requests, asking = os.pipe()
    answering, responses = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for file in entry_files:
                handle = os.open(file, os.O_WRONLY)
                os.write(handle, b"0")
                os.close(handle)
            while True:
                os.write(responses, os.read(requests, 1))
        finally:
            os._exit(1)
    os.close(requests)
    os.close(responses)
    return pid, asking, answering


def _echoed(answering: int, timeout_s: float) -> bool:
    ready, _, _ = select.select([answering], [], [], timeout_s)
    return bool(ready) and os.read(answering, 1) != b""


def _remove(group: Cgroup) -> None:
    end = time.monotonic() + _TIMEOUT_S
    with contextlib.suppress(OSError):  # the file system of groups is read-only, so no group was created
        while not group.remove() and time.monotonic() < end:
            time.sleep(0.005)
