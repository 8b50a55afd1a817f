"""The service's own place on the host: a control group that sandboxes cannot starve, and a low out-of-memory score.

What for: a node whose sandboxes take every core must still answer, and the kernel, out of memory, must take a sandbox (score
900) before the service that would have to clean up after it.

Laws:
- The group is ``/sandlot/service-NNNN``, beside ``/sandlot/NNNN`` with the node's sandboxes: no ref, so no sweep takes it for one,
  and its weight counts against all sandboxes together, however many there are.
- It bounds nothing: a service that is killed for its memory protects nobody. It has no ``memory.low`` either, which
  would be worth nothing unless every group above claimed as much (cgroup-v2.rst); the reserve that admission keeps does it.
- What was there before is there afterwards: the groups, the score, and no empty group. One that a killed service left is
  taken over by the next one of its node, and removed when that ends, or any other.
- It may fail in every part: then the service runs as it was started, and says so.

The children keep neither: stages set their own score and enter their sandbox's group, others are let go of by :func:`let_go`.
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
from sandlot.host.cgroups import detect_layout
from sandlot.host.hierarchies import GIVEN_TO_CHILDREN, GROUPS, Hierarchy, Layout
from sandlot.model.ids import NODE_ID, NodeId

PREFIX = "service-"
OOM_SCORE = -500
"""Half-way to never (proc(5)): below everything ordinary (0), above what keeps the machine itself reachable (sshd: -1,000)."""
WEIGHT = 10
"""Times that of all sandboxes of the node together, where both want more processor time than there is."""

_SHARES_V1, _WEIGHT_V2 = 1024, 100
_REMOVE_ATTEMPTS, _REMOVE_PAUSE_S = 10, 0.05
"""What a group has by default (sched-design-CFS, cgroup-v2.rst)."""
_CONTROLLERS = ("cpu", "memory", "pids")
"""Version 1: the service stays where it was in all other hierarchies; systemd's is how that knows it."""
_SELF = Path("/proc/self")
_RACED = 20
_BELOW = GROUPS.relative_to("/")
_BEFORE = "trusted.sandlot.before"
"""Of the service's own group: the one that it came from (xattr(7)). With the group, so that whoever is let go of is found its way by
the group alone."""


@dataclass(frozen=True, slots=True)
class Move:
    """One hierarchy in which the service goes to its own group.

    Args:
        mount: Where the hierarchy is mounted.
        group: Its own group, relative.
        before: The group that it comes from, relative.
    """

    mount: Path
    group: PurePosixPath
    before: Path

    @property
    def folder(self) -> Path:
        """Its own group."""
        return self.mount / self.group


@dataclass(frozen=True, slots=True)
class Setting:
    """A file of the group and what is written to it."""

    file: str
    value: str


def moves(layout: Layout, node: NodeId, cgroup: str) -> tuple[Move, ...]:
    """Which hierarchies the service moves in. Pure.

    Args:
        layout: Where they are.
        node: The service's.
        cgroup: The text of ``/proc/self/cgroup``.
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
    """What gives the group its part of the processors. Pure."""
    if version == 1:
        return Setting("cpu.shares", str(WEIGHT * _SHARES_V1))
    return Setting("cpu.weight", str(WEIGHT * _WEIGHT_V2))


@contextlib.contextmanager
def protected(layout: Layout | None, node: NodeId) -> Iterator[tuple[str, ...]]:
    """Be in the service's own place for as long as the context is open. Blocks for some ten milliseconds at both ends.

    Args:
        layout: Where the control groups are; None where the host has none.
        node: The service's.

    Yields:
        What could not be had, and why; empty where everything could.
    """
    score = _lower_score()
    planned: tuple[Move, ...] = ()
    missing: list[str] = [] if score is not None else [f"an out-of-memory score of {OOM_SCORE}: that takes root (CAP_SYS_RESOURCE)"]
    if layout is None:
        missing.append("a control group: the host has none")
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


def let_go(pid: int) -> None:
    """Let a child that was just started be an ordinary process: back in the group that the service came from, with the usual score.

    For work that takes long or much (building an image), which must be neither safer nor faster than sandboxes. What the
    child itself started before stays; a program that was exec'd a moment ago has not.
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
                    _move_back(pid, mount, _came_from(mount / _BELOW / own.name))


def read_score(process: Path) -> int | None:
    """A process's own part of its out-of-memory score; None where it has ended."""
    try:
        return int((process / "oom_score_adj").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _is_own(group: PurePosixPath) -> bool:
    """Whether a group is a service's own. By its last two parts: a container may see the host's above it."""
    return group.parent.name == _BELOW.name and group.name.startswith(PREFIX) and NODE_ID.fullmatch(group.name.removeprefix(PREFIX)) is not None


def _came_from(own: Path) -> Path:
    try:
        return Path(os.fsdecode(os.getxattr(own, _BEFORE)))
    except OSError:
        return Path()


def _hierarchy(layout: Layout, controller: str) -> Hierarchy | None:
    if layout.version == 2:  # noqa: PLR2004 - the version
        return layout.hierarchies[0]
    return next((each for each in layout.hierarchies if controller in each.controllers), None)


def _mounts_of(controllers: str) -> Iterator[Path]:
    layout = detect_layout()
    if not controllers and layout.version == 2:  # noqa: PLR2004 - the version
        yield layout.hierarchies[0].mount
    for hierarchy in layout.hierarchies:
        if hierarchy.controllers & set(controllers.split(",")):
            yield hierarchy.mount


def _enter(move: Move, version: int) -> None:
    # Another service's end takes away groups that are empty for a moment.
    for attempt in range(_RACED):
        try:
            parent = move.mount / _BELOW
            parent.mkdir(exist_ok=True)
            if version == 2:  # noqa: PLR2004 - the version
                for level in (move.mount, parent):
                    (level / "cgroup.subtree_control").write_text(GIVEN_TO_CHILDREN, encoding="ascii")
            move.folder.mkdir(exist_ok=True)
            setting = weight(version)
            if (move.folder / setting.file).exists():
                (move.folder / setting.file).write_text(setting.value, encoding="ascii")
            with contextlib.suppress(OSError):  # what is let go of goes to the top then
                os.setxattr(move.folder, _BEFORE, os.fsencode(move.before))
            _move(os.getpid(), move.folder)
            return
        except OSError as error:
            # ENODEV: removed between being opened and being written.
            if error.errno not in {errno.ENOENT, errno.ENODEV} or attempt == _RACED - 1:
                raise


def _leave(move: Move) -> None:
    """Back to where it came from, with whatever it started; to the top where that is gone."""
    with contextlib.suppress(OSError):
        for pid in (move.folder / "cgroup.procs").read_text(encoding="ascii").split():
            _move_back(int(pid), move.mount, move.before)


def _leave_and_remove(move: Move) -> None:
    """Leave the group and remove it, for at most half a second: a child that was just started, or that is just ending, keeps the group busy."""
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
    with contextlib.suppress(OSError):  # others are in it, or below it
        group.rmdir()


def _lower_score() -> int | None:
    """Take the low score unless it is lower already; what it was, or None where it cannot be had."""
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
