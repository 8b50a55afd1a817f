"""A live sandbox: connect, configure, pause, snapshot, wait for its end, destroy.

One task waits for the end of the sandbox's process and determines why it ended. Any number of callers share this result, also after the
sandbox was destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from sandlot.drivers.oci.exit_reason import DESTROYED, SAVED, Evidence, explain, has_failed
from sandlot.drivers.oci.headroom import freeze, kill_all
from sandlot.drivers.oci.host_resources import SandboxHostResources, attach_error
from sandlot.drivers.oci.record import Record
from sandlot.drivers.oci.runtime import Engine, EngineError, LastSnapshot, Program, RunningOciRuntime, Runtime
from sandlot.drivers.oci.snapshots import image_files
from sandlot.drivers.oci.snapshots.take import SnapshotRequest, take_snapshot
from sandlot.host.blocking import finished, run_blocking
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.disk_images import written_bytes
from sandlot.host.durable import state_dir_error
from sandlot.host.launcher import Started
from sandlot.host.link_pipes import PipeStream
from sandlot.host.process_identity import is_ending, open_process, wait_ended, wait_ended_within
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ports import ByteStream, Change, DriverCapability, Exit, HeadroomRange, Usage
from sandlot.model.specs import MAX_PIDS, MIN_PIDS, Limits

FIXED_DISK = "the size of the file system is fixed when the sandbox is created"
_KEEPER_TIMEOUT_S = 2.0
_PANIC_BYTES = 16 * 1024
_FULL_SHARE = 0.98
"""A disk counts as full when this share of its image is written. Because of metadata and fragments, the image never reaches its full size."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot that was taken of a sandbox: the size of the runtime's objects in it, the sandbox's disk space before, and the time after."""

    state_bytes: int
    disk_bytes: int
    at_s: float


class OciInstance:
    """One live sandbox; created by the driver.

    Args:
        resources: Host resources of the sandbox.
        record: Record of the sandbox.
        started: Processes of the sandbox on the host.
        runtime: Runtime of the sandbox.
        find_program: Function that returns the program of the runtime. It may block, and may raise HostError.
    """

    __slots__ = (
        "_changing",
        "_end",
        "_find_program",
        "_has_sparse_disk",
        "_record",
        "_resources",
        "_runtime",
        "_saved",
        "_started",
        "_stream",
        "_taken",
        "ref",
    )

    def __init__(
        self, resources: SandboxHostResources, record: Record, started: Started, runtime: Runtime, find_program: Callable[[], Program]
    ) -> None:
        self.ref = resources.ref
        self._resources = resources
        self._record = record
        self._started = started
        self._runtime = runtime
        self._find_program = find_program
        self._has_sparse_disk = not resources.has_allocated_disk()
        self._saved = False
        self._taken: _Taken | None = None
        self._stream: PipeStream | None = None
        self._changing = asyncio.Lock()
        self._end: asyncio.Task[Exit] = asyncio.get_running_loop().create_task(self._watch())

    @property
    def limits(self) -> Limits:
        """Current limits of the sandbox."""
        return self._record.limits

    @property
    def hub(self) -> str | None:
        """Directory inside the sandbox from which the guest binds volumes to their paths. None: the runtime itself mounts volumes at their paths."""
        return self._runtime.hub

    @property
    def has_sparse_disk(self) -> bool:
        """True if the disk is a sparse image, or a file of the runtime in a folder."""
        return self._has_sparse_disk

    async def connect(self) -> ByteStream:
        """Return a new byte stream to the guest.

        Raises:
            ConflictError: The previous stream is still open.
            SandboxEndedError: The sandbox has ended.
        """
        if self._stream is not None and not self._stream.closed:
            raise ConflictError("The sandbox has an open stream already.", code=ErrorCode.CONFLICT, hint="Close the other stream first.")
        await self._check_live()
        self._stream = PipeStream.open(self._resources.folder.path)
        return self._stream

    async def configure(self, change: Change) -> None:
        """Change the limits or the volumes of the live sandbox. Either all limits of the change apply, or none of them.

        A limit that keeps its value needs no capability.

        Raises:
            InvalidRequestError: A value is out of range.
            UnsupportedError: The disk limit cannot be changed, or the runtime cannot change volumes.
            ConflictError: The sandbox uses more than the new limits, uses a volume that would be detached, or is paused.
            HostError: The kernel refused the change, or the limits cannot be recorded.
            LimitError: The limits cannot be recorded, because the disk is full (``node_disk_full``).
            SandboxEndedError: The sandbox has ended.
        """
        await self._check_live()
        async with self._changing:
            if change.changes_volumes:
                await self._change_volumes(change)
                return
            limits = change.over(self._record.limits)
            if DriverCapability.CONFIGURE_DISK in change.needs(self._record.limits):
                message = f"The disk limit of a live sandbox cannot be changed: {FIXED_DISK}."
                raise UnsupportedError(message, code=ErrorCode.UNSUPPORTED, fields={"reason": FIXED_DISK})
            if limits == self._record.limits:
                return
            try:
                if await run_blocking(self._resources.cgroup.is_frozen):
                    raise ConflictError("The limits of a paused sandbox cannot change.", code=ErrorCode.CONFLICT, hint="Resume the sandbox first.")
                await run_blocking(self._resources.change_limits, limits)
                self._record = replace(self._record, limits=limits)
            except FileNotFoundError:
                raise await self._ended_error() from None
            except OSError as error:
                raise state_dir_error("The new limits could not be recorded", error) from error

    async def _change_volumes(self, change: Change) -> None:
        if reason := self._runtime.unsupported.get(DriverCapability.CONFIGURE_VOLUMES, ""):
            message = f"The volumes of a live sandbox cannot be changed: {reason}."
            raise UnsupportedError(message, code=ErrorCode.UNSUPPORTED, fields={"reason": reason})
        try:
            await self._resources.detach_volumes(self._open_keeper(), change.without)
            await self._resources.attach_volumes(self._open_keeper(), change.volumes)
        except ProcessLookupError:
            raise await self._ended_error() from None
        except OSError as error:
            if error.errno == errno.EBUSY:
                hint = "End the processes that have files of the volume open."
                raise ConflictError("A volume is in use inside the sandbox.", code=ErrorCode.CONFLICT, hint=hint) from error
            raise attach_error(error) from error

    def _open_keeper(self) -> int:
        """Return a new file descriptor of the keeper, the process in whose mount namespace the volumes are mounted."""
        keeper = open_process(self._started.keeper)
        if keeper is None:
            raise ProcessLookupError
        return keeper

    async def recover(self) -> None:
        """Complete or undo the operations on this sandbox that a killed service had begun.

        A paused sandbox that was thawed for a snapshot is frozen again, and an incomplete snapshot is removed. Headroom of a snapshot or restore is
        withdrawn. Otherwise the recorded limits are set. If the kernel refuses them, the limits in force are recorded, so that a client can request
        the change again.
        """
        if self._resources.folder.refreeze.exists():
            with contextlib.suppress(SandlotError, OSError):
                await freeze(self._resources.cgroup)
                self._resources.folder.refreeze.unlink(missing_ok=True)
        await run_blocking(image_files.discard, self._resources.folder.image)
        with contextlib.suppress(FileNotFoundError):  # the sandbox has ended meanwhile
            if await self._resources.headroom.recover():
                return
        try:
            await run_blocking(self._resources.cgroup.change, self._runtime.group_limits(self._record.limits))
        except (SandlotError, OSError):
            with contextlib.suppress(SandlotError, OSError, ValueError):  # the sandbox has ended meanwhile, or the host's disk is full
                await run_blocking(self._record_actual_limits)

    def abandon(self) -> None:
        """Stop watching the sandbox, which is not adopted after all. The sandbox stays as it is."""
        self._end.cancel()
        self._resources.headroom.cancel()

    async def pause(self) -> None:
        """Freeze all processes of the sandbox, including the runtime's, and return when all are frozen.

        Raises:
            SandboxEndedError: The sandbox has ended.
        """
        await self._check_live()
        async with self._changing:
            try:
                await freeze(self._resources.cgroup)
            except FileNotFoundError:
                raise await self._ended_error() from None

    async def resume(self) -> None:
        """Thaw all processes of the sandbox. Does nothing if the sandbox is not paused.

        Raises:
            SandboxEndedError: The sandbox has ended.
        """
        await self._check_live()
        async with self._changing:
            self._resources.cgroup.thaw()

    async def snapshot_headroom(self) -> HeadroomRange:
        """Return the headroom for a snapshot of the sandbox as it is now, from the figures of its control group.

        Raises:
            SandboxEndedError: The sandbox has ended.
        """
        await self._check_live()
        try:
            memory = await run_blocking(self._resources.cgroup.memory)
        except FileNotFoundError:
            raise await self._ended_error() from None
        last = None
        if (taken := self._taken) is not None:
            written_bytes = await run_blocking(self._runtime.disk_bytes, self._started) - taken.disk_bytes
            last = LastSnapshot(taken.state_bytes, max(0, written_bytes), time.monotonic() - taken.at_s)
        needed = self._runtime.snapshot_headroom(memory, self._runtime.group_limits(self._record.limits).memory_bytes, last)
        left = self.headroom_bytes
        return HeadroomRange(max(needed.least_bytes, left), max(needed.most_bytes, left))

    @property
    def headroom_bytes(self) -> int:
        """Bytes of memory above the recorded limit that the sandbox may use now."""
        return 0 if self._end.done() else self._resources.headroom.granted_bytes

    async def wait_headroom_withdrawn(self) -> None:
        """Wait until the recorded memory limit is in force, or the sandbox has ended or was destroyed."""
        withdrawn = asyncio.ensure_future(self._resources.headroom.wait_withdrawn())
        try:
            await asyncio.wait((withdrawn, self._end), return_when=asyncio.FIRST_COMPLETED)
        finally:
            withdrawn.cancel()

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True, headroom_bytes: int) -> int:
        """Write a snapshot (``snapshots/take.py``) into the folder ``into``. Waits until other snapshots and changes of the sandbox are complete.

        If the caller is cancelled, the snapshot is completed first. The snapshot is then removed, unless ``keep_running`` is False.

        Raises:
            UnsupportedError: The runtime does not support snapshots.
            ConflictError: ``into`` exists.
            LimitError: The disk of the host is full. The sandbox continues.
            HostError: The runtime failed. The sandbox continues.
            SandboxEndedError: The sandbox has ended.
        """
        engine = self._runtime.engine(await run_blocking(self._find_program))
        await self._check_live()
        request = SnapshotRequest(into, keep_running=keep_running, durable=durable, headroom_bytes=headroom_bytes)
        work = asyncio.ensure_future(self._snapshot(engine, request))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await finished(work)
            if not keep_running or work.cancelled() or work.exception() is not None:
                raise
            await run_blocking(image_files.discard, into)
            raise

    async def _snapshot(self, engine: Engine, request: SnapshotRequest) -> int:
        async with self._changing:
            await self._check_live()
            running = RunningOciRuntime(self._resources.folder, self._started, self._find_program())
            disk_bytes = await run_blocking(self._runtime.disk_bytes, self._started)
            try:
                size = await take_snapshot(self._resources, running, engine, self._record, request)
            except (EngineError, OSError) as error:
                if is_ending(self._started.sandbox) or self._resources.is_releasing():
                    raise await self._ended_error() from error
                raise snapshot_error(error) from error
            if not request.keep_running:
                self._saved = True
                await kill_all(self._resources.cgroup)
                await self.wait()
            elif state_bytes := (await run_blocking(image_files.sizes, request.into)).get(image_files.STATE):
                self._taken = _Taken(state_bytes, disk_bytes, time.monotonic())
            return size

    async def usage(self) -> Usage:
        """Return the resources that the sandbox has used until now. ``pids`` counts tasks of the host, including the runtime's own.

        Raises:
            SandboxEndedError: The sandbox has ended.
        """
        await self._check_live()
        try:
            group = await run_blocking(self._resources.cgroup.usage)
            oom_kills = await run_blocking(self._resources.cgroup.oom_kills)
            disk_bytes = await run_blocking(self._runtime.disk_bytes, self._started)
        except FileNotFoundError:
            raise await self._ended_error() from None
        return Usage(
            cpu_s=group.cpu_s,
            memory_bytes=group.memory_bytes,
            memory_peak_bytes=max(group.memory_peak_bytes, group.memory_bytes),
            pids=group.pids,
            disk_bytes=disk_bytes,
            oom_kills=oom_kills,
        )

    async def wait(self) -> Exit:
        """Wait until the sandbox has ended, and return why it ended. Any number of callers may wait, also after the sandbox has ended."""
        return await asyncio.shield(self._end)

    async def destroy(self) -> None:
        """End the sandbox and release all its resources on the host. Idempotent; continues if the caller is cancelled."""
        if is_ending(self._started.sandbox):
            # If the sandbox ended by itself a moment ago, read the reason before its files are removed.
            await self.wait()
        if self._stream is not None:
            await self._stream.aclose()
        await self._resources.release()
        await self.wait()

    async def _watch(self) -> Exit:
        sandbox = open_process(self._started.sandbox)
        if sandbox is not None:
            try:
                await wait_ended(sandbox)
            finally:
                os.close(sandbox)
        # If the keeper is alive, it writes the exit code to a file and then ends.
        keeper = open_process(self._started.keeper)
        if keeper is not None:
            try:
                await wait_ended_within(keeper, _KEEPER_TIMEOUT_S)
            finally:
                os.close(keeper)
        return await run_blocking(self._explain_end)

    def _explain_end(self) -> Exit:
        folder = self._resources.folder
        status, panic, disk_full = None, "", False
        with contextlib.suppress(OSError, ValueError):
            status = int(folder.exit.read_text(encoding="ascii"))
        with contextlib.suppress(OSError), folder.panic_log.open("rb") as log:
            panic = log.read(_PANIC_BYTES).decode(errors="replace")
        if has_failed(status, panic.strip()):
            with contextlib.suppress(OSError):
                disk_full = written_bytes(folder.disk_image) >= _FULL_SHARE * folder.disk_image.stat().st_size
        return explain(
            Evidence(
                status=status,
                kept_headroom=self._resources.headroom.is_exhausted,
                ended_for=SAVED if self._saved else DESTROYED if self._resources.is_releasing() else "",
                oom_kills=self._resources.cgroup.oom_kills(),
                panic=panic,
                disk_full=disk_full,
                memory_bytes=self._record.limits.memory_bytes,
                oom_statuses=self._runtime.oom_statuses,
            )
        )

    def _record_actual_limits(self) -> None:
        limits = limits_of_group(self._resources.cgroup.limits(), self._record.limits, self._runtime.group_limits)
        self._record = replace(self._record, limits=limits)
        self._resources.write_intent(self._record)

    async def _check_live(self) -> None:
        if self._end.done() or self._resources.is_releasing():
            raise await self._ended_error()

    async def _ended_error(self) -> SandboxEndedError:
        end = await self.wait()
        return SandboxEndedError(
            f"The sandbox has ended ({end.reason}).",
            code=ErrorCode.SANDBOX_ENDED,
            fields={"reason": end.reason.value, "detail": end.detail},
            fault=end.call_fault,
        )


def limits_of_group(group: GroupLimits, known: Limits, group_limits: Callable[[Limits], GroupLimits]) -> Limits:
    """Derive the limits of a sandbox from the limits of its control group. Pure.

    Args:
        group: Limits of the control group.
        known: Recorded limits of the sandbox. The disk limit is copied from these, because the control group does not limit the disk.
        group_limits: Function that returns the limits of the control group for given limits of a sandbox.

    Raises:
        InvalidRequestError: No valid limits of a sandbox correspond to the limits of the control group.
    """
    # The task limit of the group grows with the process limit of the sandbox, so a binary search finds the sandbox's limit.
    pids = bisect_left(range(MAX_PIDS), group.pids, lo=MIN_PIDS, key=lambda count: group_limits(replace(known, pids=count)).pids)
    return replace(known, memory_bytes=group.memory_bytes, cpus=group.cpus, pids=pids)


def snapshot_error(error: Exception) -> SandlotError:
    """Return the error for a snapshot that could not be written.

    Args:
        error: Exception that was raised while the snapshot was written.
    """
    fields = {"reason": str(error)}
    if "no space left" in str(error).lower():
        return LimitError(
            "The snapshot could not be written: the disk of the host is full. The sandbox continues.",
            code=ErrorCode.NODE_DISK_FULL,
            hint="Delete snapshots or sandboxes that are not needed, or free space in the state directory (SANDLOT_DATA_DIR).",
            fields=fields,
        )
    return HostError(
        f"The snapshot could not be written: {error}. The sandbox continues.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Run `sandlot doctor` to see what the host lacks.",
        fields=fields,
    )
