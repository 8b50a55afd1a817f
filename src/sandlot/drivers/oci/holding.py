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
import os
import shutil
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.places import VIEW_IDS, VIEW_VOLUMES, Folder
from sandlot.drivers.oci.record import Record, Step
from sandlot.host import disks
from sandlot.host.cgroups import Cgroup
from sandlot.host.fifos import make_pipes
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.idranges import IdRanges
from sandlot.host.launch import Stage
from sandlot.host.threads import run_apart, run_blocking
from sandlot.host.volumes import attach, detach
from sandlot.model.errors import ErrorCode, HostError, InternalError, SandlotError
from sandlot.model.ports import Attachment
from sandlot.model.specs import Limits

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_PATIENCE_S = 30.0
"""How long a killed task may take to leave: one that waits for a disk cannot be killed."""
_LOOP_PATIENCE_S = 5.0
_FREEZE_PATIENCE_S = 10.0
HEADROOM_BYTES = 256 * 1024 * 1024
"""What a sandbox may take at least beyond its memory limit while it is written down or read, in which nothing of the tenant's runs."""
_RETRY_PAUSES_S = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Between tries to give back what nobody asks about any more; after that it is the next sweep's."""


class Holding:
    """One sandbox's folder, control group and stage.

    Args:
        folder: Its folder; need not exist yet, or any more.
        cgroup: Its control group; likewise.
        forget: Called once everything has been given back.
    """

    __slots__ = ("_forget", "_narrowing", "_release", "_retries", "_writing", "cgroup", "folder", "limiting", "moving", "own_ids", "record", "stage")

    def __init__(self, folder: Folder, cgroup: Cgroup, forget: Callable[[str], None] = lambda _ref: None) -> None:
        self.folder = folder
        self.cgroup = cgroup
        self.record: Record | None = None
        self.stage: Stage | None = None
        self._forget = forget
        self._release: asyncio.Task[None] | None = None
        self._narrowing: asyncio.Task[None] | None = None
        self._retries: asyncio.Task[None] | None = None
        self._writing = threading.Lock()
        self.limiting = threading.Lock()
        """Held while its limits are written down and set: what is recorded is what holds."""
        self.own_ids = False
        """Whether its users are other ones on the host."""
        self.moving = threading.Lock()
        """Held while something is moved out of its folder, or the folder removed: what appears elsewhere is whole."""

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
            if record.step is not Step.DESTROY:
                self._check_kept()
            records.write(self.folder.record, record)
            self.record = record

    def draft(self, record: Record) -> None:
        """Write down what is going to be so, without saying it yet; nothing else may be intended until :meth:`issue`. Blocks for a moment."""
        with self._writing:
            self._check_kept()
            records.draft(self.folder.record, record)

    def issue(self, record: Record) -> None:
        """Say what was drafted: one rename.

        Raises:
            FileNotFoundError: It is being given back.
        """
        with self._writing:
            self._check_kept()
            records.issue(self.folder.record)
            self.record = record

    def _check_kept(self) -> None:
        if self.is_doomed() or (self.record is not None and self.record.step is Step.DESTROY):
            raise FileNotFoundError(errno.ENOENT, "the sandbox is being given back", str(self.folder.record))

    def make_folder(self, record: Record) -> None:
        """The folder, which appears with the record in it: no other driver's sweep takes it for nobody's. Blocks for a moment."""
        path = self.folder.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_name(f"{new_folders(record.driver)}{path.name}")
        beside.mkdir(mode=0o700)
        records.write(beside / self.folder.record.name, record)
        with self._writing:
            if self.is_doomed():
                shutil.rmtree(beside)
                raise FileNotFoundError(errno.ENOENT, "the sandbox is being given back", str(path))
            beside.rename(path)
            self.record = record

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

    async def attach(self, process: int, volumes: Sequence[Attachment]) -> None:
        """Mount volumes in its view; they are gone with it.

        Args:
            process: A descriptor of a process in that view, which is closed.
            volumes: Which.

        Raises:
            OSError: The kernel refused, or the process has ended.
        """
        ids = VIEW_IDS if self.own_ids else None
        try:
            for volume in volumes:
                await run_apart(attach, process, VIEW_VOLUMES, volume, ids)
        finally:
            os.close(process)

    async def detach(self, process: int, slots: Sequence[int]) -> None:
        """Take volumes away from its view.

        Args:
            process: A descriptor of a process in that view, which is closed.
            slots: Whose.

        Raises:
            OSError: EBUSY: one is in use; or the process has ended.
        """
        try:
            for slot in slots:
                await run_apart(detach, process, VIEW_VOLUMES, slot)
        finally:
            os.close(process)

    async def freeze(self) -> None:
        """Stop every process of it, the runtime's and the keeper included; returns once all have stopped.

        Raises:
            InternalError: One did not; all go on.
            FileNotFoundError: It is gone.
        """
        try:
            async with asyncio.timeout(_FREEZE_PATIENCE_S):
                self.cgroup.freeze()
                while not self.cgroup.is_frozen():
                    await asyncio.sleep(_FIRST_PAUSE_S)
                    # Version 1 can miss a task that forks meanwhile; asking again helps (cgroup-v1/freezer-subsystem.rst).
                    self.cgroup.freeze()
        except TimeoutError:
            self.cgroup.thaw()
            raise InternalError(f"Sandbox {self.ref} did not freeze.", hint="A process of it most likely waits for a disk.") from None
        except BaseException:
            self.cgroup.thaw()
            raise

    @contextlib.asynccontextmanager
    async def headroom(self, group_limits: Callable[[Limits], GroupLimits]) -> AsyncIterator[None]:
        """More memory and processors than its limits, for a moment in which nothing of it runs but the runtime, which writes it or reads it.

        Without, one that uses nearly all that it may would end of being written down. gVisor's kernel takes up to twice what it holds
        (measured: 124 MiB for 20,000 files, 96 for 100 processes; 6 for a shell), and the images in the page cache count as well. A
        restore takes 50 ms of processor time at least, which half a processor has in 100 ms.
        Afterwards the limit is as it was; where the kernel cannot have the memory back at once, it is tried again for some minutes: Go
        gives back what it does not need every two.

        Args:
            group_limits: What a group is limited to for a sandbox's limits.

        Raises:
            FileNotFoundError: It is gone.
        """
        narrow = partial(self._narrow, group_limits)
        if self._narrowing is not None:
            self._narrowing.cancel()
        # Here and not in a thread, each way: the kernel has nothing to reclaim, and a thread's turn takes longer than the writing.
        if self.record is not None:
            limits = group_limits(self.record.limits)
            more = limits.memory_bytes + max(limits.memory_bytes, HEADROOM_BYTES)
            self.cgroup.change(replace(limits, memory_bytes=more, cpus=max(limits.cpus, os.cpu_count() or 1)))
        try:
            yield
        finally:
            if not narrow(at_once=True):
                self.narrow_later(group_limits)

    def narrow_later(self, group_limits: Callable[[Limits], GroupLimits]) -> None:
        """Bring its memory limit to what is recorded, in the background. A mark in its folder says so meanwhile, for whoever adopts it."""
        with contextlib.suppress(OSError):
            self.folder.roomy.touch(mode=0o600)
        self._narrowing = asyncio.ensure_future(self._narrow_until_done(partial(self._narrow, group_limits)))

    async def _narrow_until_done(self, narrow: Callable[[], bool]) -> None:
        for pause_s in _RETRY_PAUSES_S:
            if await run_apart(narrow):
                self.folder.roomy.unlink(missing_ok=True)
                return
            await asyncio.sleep(pause_s)

    def _narrow(self, group_limits: Callable[[Limits], GroupLimits], *, at_once: bool = False) -> bool:
        """Whether its limit is as it is recorded. Blocks as long as the kernel has to make room, but not if it is to be at once."""
        if self.record is None or self.is_doomed():
            return True
        if not self.limiting.acquire(blocking=not at_once):
            return False
        try:
            limits = group_limits(self.record.limits)
            if at_once and self.cgroup.charged_bytes() > limits.memory_bytes:
                self.cgroup.change(replace(limits, memory_bytes=self.cgroup.limits().memory_bytes))
                return False
            self.cgroup.change(limits)
        except FileNotFoundError:
            return True
        except (SandlotError, OSError, ValueError):
            return False
        finally:
            self.limiting.release()
        return True

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

    async def discard(self) -> Exception | None:
        """Give everything back, where nobody will ask about it again: what fails is the next sweep's. What went wrong."""
        try:
            await self.release()
        except Exception as failure:  # noqa: BLE001 - told
            self.abandon()
            return failure
        return None

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
            if self._narrowing is not None:
                self._narrowing.cancel()
            await self._end_processes()
            await self._free_loops()
            await run_blocking(IdRanges().release, str(self.cgroup.name))
            await run_apart(self._remove_folder)
        except BaseException:
            self._release = None  # so that it can be tried again
            raise
        self._forget(self.ref)

    def _remove_folder(self) -> None:
        with self.moving, contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder.path)

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


def not_attached(error: Exception) -> HostError:
    """A volume could not be attached to a sandbox.

    Args:
        error: Why.
    """
    return HostError(
        f"The host could not attach a volume: {error}.",
        code=ErrorCode.HOST_NOT_READY,
        hint="A kernel of version 5.12 or newer is needed; see its log (dmesg).",
    )


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


def new_folders(driver: str) -> str:
    """How the names of a driver's folders begin that have no record yet."""
    return f".new-{driver}-"
