"""All that one sandbox holds on the host, how it is made and how it is given back.

Promises:
- What is intended is recorded before it is done, and everything is found by the ref alone: giving back works on a holding
  that was made half, by this service or by one that was killed.
- Giving back is one shared, shielded task: any number of callers, cancelled or not, get one complete removal. It does not
  ask the runtime (``runsc delete`` takes 1.3 to 2 s on Debian's build): all processes are ours to kill, all mounts are
  theirs alone.
- What nobody will ask about again is not left lying because it could not be given back at once: it is tried for some minutes more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.places import Folder, sandboxes_folder
from sandlot.drivers.oci.record import Record, Step
from sandlot.host import disks
from sandlot.host.cgroups import Cgroup
from sandlot.host.fifos import make_pipes
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.idranges import IdRanges
from sandlot.host.launch import Stage
from sandlot.host.threads import run_blocking
from sandlot.model.errors import InternalError

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_PATIENCE_S = 30.0
"""How long a killed task may take to leave: one that waits for a disk cannot be killed."""
_LOOP_PATIENCE_S = 5.0
_RETRY_PAUSES_S = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Between tries to give back what nobody asks about any more; after that it is the next sweep's."""


class Holding:
    """One sandbox's folder, control group and stage.

    Args:
        folder: Its folder; need not exist yet, or any more.
        cgroup: Its control group; likewise.
        forget: Called once everything has been given back.
    """

    __slots__ = ("_forget", "_release", "_retries", "_writing", "cgroup", "folder", "record", "stage")

    def __init__(self, folder: Folder, cgroup: Cgroup, forget: Callable[[str], None] = lambda _ref: None) -> None:
        self.folder = folder
        self.cgroup = cgroup
        self.record: Record | None = None
        self.stage: Stage | None = None
        self._forget = forget
        self._release: asyncio.Task[None] | None = None
        self._retries: asyncio.Task[None] | None = None
        self._writing = threading.Lock()

    @property
    def ref(self) -> str:
        """The sandbox's ref."""
        return self.folder.ref

    def is_doomed(self) -> bool:
        """Whether it is being given back, or was."""
        return self._release is not None

    def intend(self, record: Record) -> None:
        """Write down what comes next. Blocks for a moment. Any thread may call it.

        Raises:
            FileNotFoundError: It is being given back: nothing else is intended any more.
        """
        with self._writing:
            given_back = self.is_doomed() or (self.record is not None and self.record.step is Step.DESTROY)
            if given_back and record.step is not Step.DESTROY:
                raise FileNotFoundError(errno.ENOENT, "the sandbox is being given back", str(self.folder.record))
            records.write(self.folder.record, record)
            self.record = record

    def make_folder(self, record: Record) -> None:
        """The folder, with the record as the first thing in it. Blocks for a moment."""
        parent = sandboxes_folder(self.folder.path.parent.parent)
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.path.mkdir(mode=0o700)
        self.intend(record)

    def furnish(self, limits: GroupLimits, disk: disks.DiskTemplate | None) -> None:
        """Everything that the stage needs: the control group, the pipes, the disk. Blocks for a millisecond.

        Args:
            limits: What the group is limited to.
            disk: What an empty disk consists of; None where the runtime limits a folder.
        """
        self.cgroup.create(limits)
        make_pipes(self.folder.path)
        self.folder.config.parent.mkdir(mode=0o700)
        self.folder.runtime.mkdir(mode=0o700)
        # runsc puts a tmpfs, charged to the memory limit, over a /tmp that is empty; one that holds what it holds on any
        # Linux host stays where it is, on the disk.
        (self.folder.tmp / ".X11-unix").mkdir(mode=0o700, parents=True)
        for shared in (self.folder.tmp, self.folder.tmp / ".X11-unix"):
            shared.chmod(0o1777)
        if disk is None:
            self.folder.disk.mkdir(mode=0o700)
        else:
            disks.stamp(disk, self.folder.disk_image)

    async def release(self) -> None:
        """Give everything back. Idempotent; a caller that is cancelled leaves it going on.

        Raises:
            InternalError: A process cannot be killed; the next sweep tries again.
        """
        if self._release is None:
            self._release = asyncio.ensure_future(self._give_back())
        await asyncio.shield(self._release)

    def abandon(self) -> None:
        """Nobody answers for it any more: whatever is left of it is a stray, for the next sweep."""
        self._forget(self.ref)

    async def let_go(self) -> None:
        """Give everything back, for one that was never handed out: what fails is tried again in the background."""
        try:
            await self.release()
        except Exception:  # noqa: BLE001 - what is told is why it was not handed out
            self._retries = asyncio.ensure_future(self._retry())

    async def _retry(self) -> None:
        for pause_s in _RETRY_PAUSES_S:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(Exception):
                await self.release()
                return
        self.abandon()

    async def _give_back(self) -> None:
        try:
            if self.record is not None and self.folder.path.is_dir():
                with contextlib.suppress(OSError):  # a full disk; it goes all the same
                    self.intend(replace(self.record, step=Step.DESTROY))
            await self._end_processes()
            await self._free_loops()
            await run_blocking(IdRanges().release, str(self.cgroup.name))
            await run_blocking(_remove_folder, self.folder.path)
        except BaseException:
            self._release = None  # so that it can be tried again
            raise
        self._forget(self.ref)

    async def _end_processes(self) -> None:
        if self.stage is not None:
            # It may not have entered the group yet. If it has, and is frozen with it, it dies only thawed.
            self.stage.kill()
            await run_blocking(self.cgroup.thaw)
            await self.stage.ended
        pauses = _Pauses(_PATIENCE_S)
        while await run_blocking(self._kill_and_remove):
            if not await pauses.next():
                raise InternalError(
                    f"Sandbox {self.ref} has processes that do not end.",
                    hint="They most likely wait for a disk; look at the host's kernel log. The next sweep tries again.",
                    fields={"ref": self.ref, "pids": sorted(self.cgroup.pids())},
                )

    def _kill_and_remove(self) -> bool:
        """Whether something is left."""
        if self.cgroup.kill_once():
            return True
        return not self.cgroup.remove()

    async def _free_loops(self) -> None:
        # The device clears itself when the kernel has taken down the dead processes' mount, which is a moment after they
        # left their group.
        if not await run_blocking(self.folder.disk_image.exists):
            return
        pauses = _Pauses(_LOOP_PATIENCE_S)
        while left := await run_blocking(disks.loops_below, self.folder.path):
            if not await pauses.next():
                for device in left:
                    await run_blocking(disks.detach, device)
                return


class _Pauses:
    """Pauses that grow, until patience ends."""

    def __init__(self, patience_s: float) -> None:
        self._end = time.monotonic() + patience_s
        self._pause_s = _FIRST_PAUSE_S

    async def next(self) -> bool:
        """Pause; False once patience is at its end."""
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return time.monotonic() < self._end


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)
