"""Host resources of one sandbox: their creation and their release.

Invariants:
- Every step is recorded before it is carried out, and all resources are found by the ref alone. Resources that were created in part, by this
  service or by a killed service, can therefore be released.
- All callers share one shielded release task, so a cancelled caller leaves no partial release. The release does not run the runtime
  (``runsc delete`` takes 1.3 to 2 s with Debian's build): the service kills all processes, and the kernel then removes all mounts.
- If a release fails and no caller will request it again, it is repeated for some minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.headroom import RETRY_PAUSES_S, Headroom
from sandlot.drivers.oci.paths import VIEW_IDS, VIEW_VOLUMES, SandboxFolder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Runtime
from sandlot.host import disk_images
from sandlot.host.blocking import run_blocking, run_in_own_thread
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.cgroups import Cgroup
from sandlot.host.id_ranges import IdRanges
from sandlot.host.launcher import Stage
from sandlot.host.link_pipes import make_pipes
from sandlot.host.stage.operations import is_allocated
from sandlot.host.volume_disks import attach, detach
from sandlot.model.errors import HostError, InternalError
from sandlot.model.ports import Attachment
from sandlot.model.specs import Limits

_FIRST_PAUSE_S: Final = 0.0005
_MAX_PAUSE_S: Final = 0.05
_KILL_TIMEOUT_S: Final = 30.0
"""Time that killed tasks may need to end. A task that waits for a disk cannot be killed."""
_LOOP_TIMEOUT_S: Final = 5.0


class SandboxHostResources:
    """Folder, control group, disk, user ids and processes of one sandbox.

    Args:
        folder: Folder of the sandbox. It need not exist.
        cgroup: Control group of the sandbox. It need not exist.
        runtime: Runtime of the sandbox.
        forget: Function that is called with the ref when all resources were released, or when the next sweep has to release them.

    Attributes:
        record: Current record of the sandbox. None: not known, for example for the remains of a sandbox that are only to be released.
        stage: Process that sets up the sandbox, starts the runtime and then waits for the end of the sandbox. None: not started by this service.
        headroom: Grants and withdraws the headroom of snapshots and restores.
        moving: Lock that is held while a snapshot is moved out of the folder and while the folder is removed. A moved snapshot is therefore complete.
    """

    __slots__ = ("_forget", "_recording", "_release", "_retries", "_runtime", "cgroup", "folder", "headroom", "moving", "record", "stage")

    def __init__(self, folder: SandboxFolder, cgroup: Cgroup, runtime: Runtime, forget: Callable[[str], None] = lambda _ref: None) -> None:
        self.folder = folder
        self.cgroup = cgroup
        self.record: Record | None = None
        self.stage: Stage | None = None
        self.headroom = Headroom(cgroup, folder.roomy, self._recorded_limits, runtime.uncollected_bytes)
        self.moving = threading.Lock()
        self._runtime = runtime
        self._forget = forget
        self._release: asyncio.Task[None] | None = None
        self._retries: asyncio.Task[None] | None = None
        self._recording = threading.Lock()

    @property
    def ref(self) -> str:
        """Ref of the sandbox: the id of its node and 16 random characters."""
        return self.folder.ref

    def is_releasing(self) -> bool:
        """Return whether the release of the resources has begun or is complete."""
        return self._release is not None

    def write_intent(self, record: Record) -> None:
        """Write the record of the next step to the sandbox's folder. Blocks while the file is written; thread-safe.

        Raises:
            FileNotFoundError: The sandbox is being released; only the step ``destroy`` can be recorded.
        """
        with self._recording:
            if record.step is not Step.DESTROY:
                self._check_not_releasing()
            records.write(self.folder.record, record)
            self.record = record

    def stage_intent(self, record: Record) -> None:
        """Write the next record to a second file. No other record may be written until :meth:`commit_intent`. Blocks for a moment.

        Raises:
            FileNotFoundError: The sandbox is being released.
        """
        with self._recording:
            self._check_not_releasing()
            records.stage(self.folder.record, record)

    def commit_intent(self, record: Record) -> None:
        """Replace the current record by the record that :meth:`stage_intent` wrote. The replacement is one rename(2) and therefore atomic.

        Raises:
            FileNotFoundError: The sandbox is being released.
        """
        with self._recording:
            self._check_not_releasing()
            records.commit(self.folder.record)
            self.record = record

    def _check_not_releasing(self) -> None:
        if self.is_releasing() or (self.record is not None and self.record.step is Step.DESTROY):
            raise FileNotFoundError(errno.ENOENT, f"the resources of sandbox {self.ref} are being released", str(self.folder.record))

    def _recorded_limits(self) -> GroupLimits | None:
        return None if self.record is None or self.is_releasing() else self._runtime.group_limits(self.record.limits)

    def create_folder(self, record: Record) -> None:
        """Create the folder and its record with one rename, so that the sweep of another driver never finds a folder without a record.

        Raises:
            FileNotFoundError: The sandbox is being released.
        """
        path = self.folder.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{new_folder_prefix(record.driver)}{path.name}")
        draft.mkdir(mode=0o700)
        records.write(draft / self.folder.record.name, record)
        with self._recording:
            if self.is_releasing():
                shutil.rmtree(draft)
                raise FileNotFoundError(errno.ENOENT, f"the resources of sandbox {self.ref} are being released", str(path))
            draft.rename(path)
            self.record = record

    def create_resources(self, limits: Limits, disk: disk_images.DiskTemplate | None, *, allocated: bool) -> None:
        """Create the control group, the pipes and the disk of the sandbox. Blocks for some milliseconds.

        Args:
            limits: Limits of the sandbox.
            disk: Content of an empty disk. None: the disk is a folder, whose size the runtime limits.
            allocated: True: the whole disk gets its space on the host now.

        Raises:
            HostError: The kernel refused the control group.
            OSError: A file cannot be written.
        """
        self.cgroup.create(self._runtime.group_limits(limits))
        make_pipes(self.folder.path)
        self.folder.config.parent.mkdir(mode=0o700)
        self.folder.runtime.mkdir(mode=0o700)
        # runsc mounts a tmpfs over an empty /tmp, and the content of this tmpfs counts against the memory limit. /tmp therefore gets a folder that
        # exists on most Linux hosts. Because of this folder, /tmp is not empty and stays on the disk.
        (self.folder.tmp / ".X11-unix").mkdir(mode=0o700, parents=True)
        for shared in (self.folder.tmp, self.folder.tmp / ".X11-unix"):
            shared.chmod(0o1777)
        if disk is None:
            self.folder.disk.mkdir(mode=0o700)
        else:
            disk_images.stamp(disk, self.folder.disk_image, allocated=allocated)

    def has_allocated_disk(self) -> bool:
        """Return whether the disk is an image that is allocated in full."""
        with contextlib.suppress(OSError):
            return is_allocated(self.folder.disk_image.stat())
        return False

    def change_limits(self, limits: Limits) -> None:
        """Record new limits and set them in the control group. If the kernel refuses the limits, the old limits are recorded again.

        Blocks as long as the kernel needs to reclaim memory.

        Raises:
            ConflictError: The sandbox uses more than the new limits.
            HostError: The kernel refused the new limits.
            OSError: The limits cannot be recorded. FileNotFoundError: the sandbox is being released, or has ended.
        """
        with self.headroom.lock:
            before = self.record
            if before is None:
                raise InternalError(f"Sandbox {self.ref} has no record.")
            changed = replace(before, limits=limits)
            self.write_intent(changed)
            try:
                self.headroom.change_limits(self._runtime.group_limits(limits))
            except BaseException:
                with self._recording:
                    if self.record is changed:
                        self.record = before
                with contextlib.suppress(OSError):  # the sandbox is being released, or the host's disk is full
                    self.write_intent(before)
                raise

    async def attach_volumes(self, process: int, volumes: Sequence[Attachment]) -> None:
        """Mount volumes in the sandbox's mount namespace. The kernel removes the mounts together with the namespace.

        Args:
            process: File descriptor of a process in the mount namespace (pidfd_open(2)). This method closes the descriptor.
            volumes: Volumes to attach.

        Raises:
            OSError: The kernel refused a mount, or the process has ended.
        """
        ids = VIEW_IDS if self._runtime.own_ids else None
        try:
            for volume in volumes:
                await run_in_own_thread(attach, process, VIEW_VOLUMES, volume, ids)
        finally:
            os.close(process)

    async def detach_volumes(self, process: int, slots: Sequence[int]) -> None:
        """Unmount volumes from the sandbox's mount namespace.

        Args:
            process: File descriptor of a process in the mount namespace (pidfd_open(2)). This method closes the descriptor.
            slots: Slots of the volumes to detach.

        Raises:
            OSError: The process has ended. EBUSY: a volume is in use.
        """
        try:
            for slot in slots:
                await run_in_own_thread(detach, process, VIEW_VOLUMES, slot)
        finally:
            os.close(process)

    async def release(self) -> None:
        """Release all resources of the sandbox. Idempotent; continues if the caller is cancelled.

        Raises:
            InternalError: A process cannot be killed. The next sweep tries the release again.
        """
        if self._release is None:
            self._release = asyncio.ensure_future(self._release_all())
        await asyncio.shield(self._release)

    async def release_in_background(self) -> None:
        """Release all resources. If the release fails, repeat it in the background. Used for a sandbox that was never returned to a caller."""
        try:
            await self.release()
        except Exception:  # noqa: BLE001 - the caller reports why there is no sandbox
            self._retries = asyncio.ensure_future(self._retry_release())

    async def try_release(self) -> Exception | None:
        """Release all resources of the sandbox. If the release fails, return the error; the next sweep then releases the rest."""
        try:
            await self.release()
        except Exception as failure:  # noqa: BLE001 - returned to the caller
            self._forget(self.ref)
            return failure
        return None

    async def _retry_release(self) -> None:
        for pause_s in RETRY_PAUSES_S:
            await asyncio.sleep(pause_s)
            with contextlib.suppress(Exception):
                await self.release()
                return
        self._forget(self.ref)

    async def _release_all(self) -> None:
        try:
            if self.record is not None and self.folder.path.is_dir():
                with contextlib.suppress(OSError):  # the disk is full: release without a record
                    self.write_intent(replace(self.record, step=Step.DESTROY))
            self.headroom.cancel()
            await self._end_processes()
            await self._free_loop_devices()
            await run_blocking(IdRanges().release, str(self.cgroup.name))
            await run_in_own_thread(self._remove_folder)
        except BaseException:
            self._release = None  # so that the release can be repeated
            raise
        self._forget(self.ref)

    def _remove_folder(self) -> None:
        with self.moving, contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder.path)

    async def _end_processes(self) -> None:
        if self.stage is not None:
            # Kill the stage separately, because it may not have entered the group yet. A stage that is frozen with the group dies only after thawing.
            self.stage.kill()
            await run_blocking(self.cgroup.thaw)
            await self.stage.ended
        pauses = _Pauses(_KILL_TIMEOUT_S)
        while not await run_blocking(self._kill_and_remove_group):
            if not await pauses.next():
                raise InternalError(
                    f"Sandbox {self.ref} has processes that do not end.",
                    hint="Look at the host's kernel log; the processes most likely wait for a disk. The next sweep retries the removal.",
                    fields={"ref": self.ref, "pids": sorted(self.cgroup.pids())},
                )

    def _kill_and_remove_group(self) -> bool:
        """Kill the processes of the control group and remove the group. Return True if the group is gone."""
        return self.cgroup.kill_once() == 0 and self.cgroup.remove()

    async def _free_loop_devices(self) -> None:
        # The loop device is freed when the kernel has removed the mounts of the dead processes, a moment after they left their group.
        if not await run_blocking(self.folder.disk_image.exists):
            return
        pauses = _Pauses(_LOOP_TIMEOUT_S)
        while left := await run_blocking(disk_images.loops_below, self.folder.path):
            if not await pauses.next():
                for device in left:
                    await run_blocking(disk_images.detach_loop, device)
                return


def attach_error(error: Exception) -> HostError:
    """Return the error for a volume that could not be attached.

    Args:
        error: Exception that the attachment has raised.
    """
    return HostError(
        f"The host could not attach a volume: {error}.",
        hint="Use Linux 5.12 or newer; the kernel's log (dmesg) may say more.",
    )


class _Pauses:
    """Pauses between attempts: each pause is longer than the one before, until a timeout has passed."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s
        self._pause_s = _FIRST_PAUSE_S

    async def next(self) -> bool:
        """Sleep until the next attempt. Return False if the timeout has passed."""
        await asyncio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        return time.monotonic() < self._end


def new_folder_prefix(driver: str) -> str:
    """Return the prefix of the names of the folders that a driver is still creating."""
    return f".new-{driver}-"
