"""The service's own control group and out-of-memory score.

The service must respond to requests even if its sandboxes use every core. If the host runs out of memory, the kernel must kill a sandbox
(oom_score_adj 900) before the service, which cleans up after killed sandboxes.

Invariants:
- The group is ``/sandlot/service-NNNN``, beside the group ``/sandlot/NNNN`` of the node's sandboxes; NNNN is the id of the node. No sweep of
  sandboxes removes the service's group, because its name is not that of a sandbox. The processor weight of the group is relative to the weight of all
  sandboxes together, whatever their number.
- The group has no limits: a memory limit could only cause the kernel to kill the service. ``memory.low`` is not set either: it has an effect only if
  every group above it has at least the same value (cgroup-v2.rst). Admission keeps a reserve of memory instead.
- When the service ends, its process returns to its former groups and score, and no empty group is left. The next service of the same node uses the
  group that a killed service left. If such a group contains no processes, any other service of the host removes the group when that service ends.
- A failure to set the score or the group is reported. The service then runs with its former score or group.

Child processes keep neither the group nor the score. A stage sets its own score and enters the group of its sandbox. All other child processes are
moved out of the group with :func:`leave_service_cgroup`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sandlot.host.capacity import group_of
from sandlot.host.cgroup_layout import CHILD_CONTROLLERS, GROUPS, UNIFIED, Hierarchy, Layout
from sandlot.host.cgroups import detect_layout
from sandlot.model.ids import NODE_ID, NodeId

PREFIX = "service-"
"""Prefix of the name of a service's control group; the id of the node follows."""
OOM_SCORE = -500
"""Value of oom_score_adj (proc(5)) for the service: lower than that of ordinary processes (0), higher than that of sshd (-1,000)."""
WEIGHT = 10
"""Share of processor time that the service gets when time is scarce, relative to 1 for all sandboxes of the node together."""

_SHARES_V1, _WEIGHT_V2 = 1024, 100
"""Default processor weight of a group: cpu.shares of version 1 (sched-design-CFS), and cpu.weight of version 2 (cgroup-v2.rst)."""
_REMOVE_ATTEMPTS, _REMOVE_PAUSE_S = 10, 0.05
_CONTROLLERS = ("cpu", "memory", "pids")
"""Controllers in whose hierarchies the service changes its group. In version 1 the service keeps its groups in all other hierarchies, because systemd
identifies a service by its group in systemd's named hierarchy."""
_SELF = Path("/proc/self")
_MAX_ATTEMPTS = 20
"""Attempts to create the group. An attempt fails if another service removes the empty parent at the same moment."""
_BELOW = GROUPS.relative_to("/")
_BEFORE = "trusted.sandlot.before"
"""Extended attribute of the service's group with the path of the former group (xattr(7)). The attribute remains if the service is killed."""


@dataclass(frozen=True, slots=True)
class Move:
    """Move of the service to its own group, in one hierarchy.

    Args:
        mount: Mount point of the hierarchy.
        group: The service's own group, relative to the mount point.
        before: The group of the process before the move, relative to the mount point.
    """

    mount: Path
    group: PurePosixPath
    before: Path

    @property
    def folder(self) -> Path:
        """Path of the folder of the service's own group."""
        return self.mount / self.group


@dataclass(frozen=True, slots=True)
class Setting:
    """Name of a file of a control group, and the value to write to the file."""

    file: str
    value: str


def moves(layout: Layout, node: NodeId, cgroup: str) -> tuple[Move, ...]:
    """Return the moves of the service to its own control group, one for each hierarchy. Pure.

    Args:
        layout: Layout of the host's control groups.
        node: Id of the service's node.
        cgroup: Text of ``/proc/self/cgroup``.
    """
    group = _BELOW / f"{PREFIX}{node}"
    mounts: dict[Path, Move] = {}
    for controller in _CONTROLLERS:
        hierarchy = _hierarchy(layout, controller)
        if hierarchy is not None and hierarchy.mount not in mounts:
            before = group_of(cgroup, controller)
            mounts[hierarchy.mount] = Move(hierarchy.mount, group, Path() if _is_own(PurePosixPath(before)) else before)
    return tuple(mounts.values())


def weight(version: int) -> Setting:
    """Return the setting that gives the service's group its processor weight. ``version`` is the version of control groups, 1 or 2. Pure."""
    if version == 1:
        return Setting("cpu.shares", str(WEIGHT * _SHARES_V1))
    return Setting("cpu.weight", str(WEIGHT * _WEIGHT_V2))


@contextlib.contextmanager
def service_cgroup(layout: Layout | None, node: NodeId) -> Iterator[tuple[str, ...]]:
    """Give this process the service's control group and out-of-memory score until the context ends.

    Entering and leaving the context block for some tens of milliseconds each.

    Args:
        layout: Layout of the host's control groups. None: the host has no control groups.
        node: Id of the service's node.

    Yields:
        One description for each control group or score that could not be set, with the reason. Empty if everything was set.
    """
    score = _lower_score()
    planned: tuple[Move, ...] = ()
    missing: list[str] = [] if score is not None else [f"an out-of-memory score of {OOM_SCORE}: only root (CAP_SYS_RESOURCE) can set it"]
    if layout is None:
        missing.append("a control group: the host has no control groups")
    else:
        planned = moves(layout, node, (_SELF / "cgroup").read_text(encoding="utf-8", errors="surrogateescape"))
    try:
        for move in planned:
            try:
                _enter(move, layout.version if layout is not None else 0)
            except OSError as error:
                missing.append(f"the control group {move.folder}: {error.strerror or error}")
        yield tuple(missing)
    finally:
        for move in planned:
            _leave_and_remove(move)
            for other in sorted((move.mount / _BELOW).glob(f"{PREFIX}*")):
                _remove(other)
            _remove(move.mount / _BELOW)
        if score is not None:
            _set_score(_SELF, score)


def leave_service_cgroup(pid: int) -> None:
    """Move a child process out of the service's control group into the service's former group, and set the child's out-of-memory score to 0.

    Use this for long or large work such as building an image, which must have no advantage over sandboxes. Call it just after the child was started:
    processes that the child has started itself are not moved.

    Args:
        pid: Process id of the child.
    """
    score = read_score(Path(f"/proc/{pid}"))
    if score is not None and score < 0:
        _set_score(Path(f"/proc/{pid}"), 0)
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            _, controllers, group = line.split(":", 2)
            own = PurePosixPath(group)
            if _is_own(own):
                for mount in _mounts_of(controllers):
                    _move_back(pid, mount, _former_group(mount / _BELOW / own.name))


def read_score(process: Path) -> int | None:
    """Return the oom_score_adj of a process, or None if the value cannot be read, for example because the process has ended.

    Args:
        process: Folder of the process, ``/proc/PID``.
    """
    try:
        return int((process / "oom_score_adj").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _is_own(group: PurePosixPath) -> bool:
    """Return whether a group belongs to a service. Only the last two parts of the path are compared: a container may see more parts before them."""
    return group.parent.name == _BELOW.name and group.name.startswith(PREFIX) and NODE_ID.fullmatch(group.name.removeprefix(PREFIX)) is not None


def _former_group(own: Path) -> Path:
    try:
        return Path(os.fsdecode(os.getxattr(own, _BEFORE)))
    except OSError:
        return Path()


def _hierarchy(layout: Layout, controller: str) -> Hierarchy | None:
    if layout.version == UNIFIED:
        return layout.hierarchies[0]
    return next((each for each in layout.hierarchies if controller in each.controllers), None)


def _mounts_of(controllers: str) -> Iterator[Path]:
    layout = detect_layout()
    if not controllers and layout.version == UNIFIED:
        yield layout.hierarchies[0].mount
    for hierarchy in layout.hierarchies:
        if hierarchy.controllers & set(controllers.split(",")):
            yield hierarchy.mount


def _enter(move: Move, version: int) -> None:
    # An attempt fails if another service ends meanwhile and removes the parent group, which may be empty until this group is created in it.
    for attempt in range(_MAX_ATTEMPTS):
        try:
            parent = move.mount / _BELOW
            parent.mkdir(exist_ok=True)
            if version == UNIFIED:
                for level in (move.mount, parent):
                    (level / "cgroup.subtree_control").write_text(CHILD_CONTROLLERS, encoding="ascii")
            move.folder.mkdir(exist_ok=True)
            setting = weight(version)
            if (move.folder / setting.file).exists():
                (move.folder / setting.file).write_text(setting.value, encoding="ascii")
            with contextlib.suppress(OSError):  # if the attribute cannot be set, leave_service_cgroup moves child processes to the root group
                os.setxattr(move.folder, _BEFORE, os.fsencode(move.before))
            _move(os.getpid(), move.folder)
            return
        except OSError as error:
            # ENOENT: a group was removed before its file was opened. ENODEV: a group was removed after that. Other errors are not retried.
            if error.errno not in {errno.ENOENT, errno.ENODEV} or attempt == _MAX_ATTEMPTS - 1:
                raise


def _leave(move: Move) -> None:
    """Move all processes out of the service's group, into the service's former group or, if that group was removed, into the root group."""
    with contextlib.suppress(OSError):
        for pid in (move.folder / "cgroup.procs").read_text(encoding="ascii").split():
            _move_back(int(pid), move.mount, move.before)


def _leave_and_remove(move: Move) -> None:
    """Move all processes out of the service's group and remove the group. Retries for half a second: child processes may start or end meanwhile."""
    for _ in range(_REMOVE_ATTEMPTS):
        _leave(move)
        try:
            move.folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
        else:
            return
        time.sleep(_REMOVE_PAUSE_S)


def _move_back(pid: int, mount: Path, before: Path) -> None:
    for target in (mount / before, mount):
        with contextlib.suppress(OSError):
            _move(pid, target)
            return


def _move(pid: int, group: Path) -> None:
    (group / "cgroup.procs").write_text(str(pid), encoding="ascii")


def _remove(group: Path) -> None:
    with contextlib.suppress(OSError):  # the group contains other processes or groups
        group.rmdir()


def _lower_score() -> int | None:
    """Set the oom_score_adj of this process to ``OOM_SCORE``, unless the score is lower already. Return the former score, or None on failure."""
    before = read_score(_SELF)
    if before is None:
        return None
    if before <= OOM_SCORE:
        return before
    return before if _set_score(_SELF, OOM_SCORE) else None


def _set_score(process: Path, score: int) -> bool:
    try:
        (process / "oom_score_adj").write_text(str(score), encoding="ascii")
    except OSError:
        return False
    return True
