"""A sandbox that runs: connected to, limited anew, counted, frozen, awaited.

How it ended is found out once, by one task that waits for the end of the runtime's process; any number of callers share
the answer, also after the sandbox was destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandlot.drivers.oci.checkpoint import images
from sandlot.drivers.oci.checkpoint.taking import Taking, take
from sandlot.drivers.oci.exits import DESTROYED, SAVED, Evidence, explain
from sandlot.drivers.oci.holding import Holding, not_attached
from sandlot.drivers.oci.record import Record
from sandlot.drivers.oci.runtime import Engine, EngineError, Live, Program, Runtime
from sandlot.host.fifos import PipeStream
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.launch import Started
from sandlot.host.processes import Identity, ended, ended_within, open_process
from sandlot.host.threads import finished, run_blocking
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ports import ByteStream, Change, DriverCapability, Exit, Usage
from sandlot.model.specs import PIDS_LEAST, PIDS_MOST, Limits

FIXED_DISK = "its file system is made once, in the size that was asked for"
_KEEPER_PATIENCE_S = 2.0
_STOP_PAUSE_S = 0.001
_PANIC_BYTES = 16 * 1024
_FULL_SHARE = 0.98
"""A disk counts as full when so much of its image is taken: metadata and fragments keep it from reaching all."""


class OciInstance:
    """One live sandbox; made by the driver.

    Args:
        holding: All that it holds.
        record: What it was made from.
        started: Its processes.
        runtime: What is particular to its runtime.
        program: Finds the program that it runs on; may block, and raise HostError.
    """

    __slots__ = ("_changing", "_end", "_holding", "_program", "_record", "_runtime", "_saved", "_started", "_stream", "ref")

    def __init__(self, holding: Holding, record: Record, started: Started, runtime: Runtime, program: Callable[[], Program]) -> None:
        self.ref = holding.ref
        self._holding = holding
        self._record = record
        self._started = started
        self._runtime = runtime
        self._program = program
        self._saved = False
        self._stream: PipeStream | None = None
        self._changing = asyncio.Lock()
        self._end: asyncio.Task[Exit] = asyncio.get_running_loop().create_task(self._watch())

    @property
    def limits(self) -> Limits:
        """What it may use now."""
        return self._record.limits

    async def connect(self) -> ByteStream:
        """A new byte stream to the guest.

        Raises:
            ConflictError: The stream before is still open.
            SandboxEndedError: It has ended.
        """
        if self._stream is not None and not self._stream.closed:
            raise ConflictError("The sandbox is already connected.", code=ErrorCode.CONFLICT, hint="Close the other stream first.")
        await self._check_live()
        self._stream = PipeStream.open(self._holding.folder.path)
        return self._stream

    async def configure(self, change: Change) -> None:
        """Change its limits while it runs: all that is asked, or nothing. What is so already is no change.

        Raises:
            InvalidRequestError: Out of bounds.
            UnsupportedError: The disk, which cannot be changed; or volumes, where the runtime settles them once.
            ConflictError: It uses more than it would be allowed, or a volume is in use, or it is paused.
            HostError: The kernel refused, or it cannot be written down.
            SandboxEndedError: It has ended.
        """
        await self._check_live()
        async with self._changing:
            if DriverCapability.CONFIGURE_VOLUMES in change.needs(self._record.limits):
                await self._move(change)
            limits = change.over(self._record.limits)
            if DriverCapability.CONFIGURE_DISK in change.needs(self._record.limits):
                message = f"The disk limit of a live sandbox cannot be changed: {FIXED_DISK}."
                raise UnsupportedError(message, code=ErrorCode.UNSUPPORTED, fields={"reason": FIXED_DISK})
            if limits == self._record.limits:
                return
            try:
                if await run_blocking(self._holding.cgroup.is_frozen):
                    raise ConflictError("The sandbox is paused.", code=ErrorCode.CONFLICT, hint="Resume it first.")
                await run_blocking(self._limit, replace(self._record, limits=limits))
            except FileNotFoundError:
                raise await self._ended_error() from None
            except OSError as error:
                raise HostError(
                    f"The host could not write down what the sandbox may use: {error.strerror} ({error.filename}).",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="Free some space where the service keeps its state (SANDLOT_DATA_DIR).",
                ) from error

    @property
    def hub(self) -> str | None:
        """Where its volumes are inside, to be bound to their places by the guest; None where the runtime has put them there."""
        return self._runtime.hub

    async def _move(self, change: Change) -> None:
        if reason := self._runtime.absent.get(DriverCapability.CONFIGURE_VOLUMES, ""):
            message = f"The volumes of a sandbox that runs cannot be changed: {reason}."
            raise UnsupportedError(message, code=ErrorCode.UNSUPPORTED, fields={"reason": reason})
        try:
            await self._holding.detach(self._keeper(), change.without)
            await self._holding.attach(self._keeper(), change.volumes)
        except ProcessLookupError:
            raise await self._ended_error() from None
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise ConflictError("A volume is in use inside.", code=ErrorCode.CONFLICT, hint="End what has files of it open.") from error
            raise not_attached(error) from error

    def _keeper(self) -> int:
        """A descriptor of the process in whose view its volumes are."""
        keeper = open_process(self._started.keeper)
        if keeper is None:
            raise ProcessLookupError
        return keeper

    async def settle(self) -> None:
        """Finish what a service began that was killed: what is recorded was meant to be.

        Limits that cannot be are not: what holds is recorded, so that they can be asked for again. What was paused and is not, for a
        snapshot, is paused again.
        """
        if self._holding.folder.refreeze.exists():
            with contextlib.suppress(SandlotError, OSError):
                await self._holding.freeze()
                self._holding.folder.refreeze.unlink(missing_ok=True)
        had_room = self._holding.folder.image.exists() or self._holding.folder.roomy.exists()
        await run_blocking(images.discard, self._holding.folder.image)
        try:
            await run_blocking(self._holding.cgroup.change, self._runtime.group_limits(self._record.limits))
        except (SandlotError, OSError):
            if had_room:
                self._holding.narrow_later(self._runtime.group_limits)
                return
            with contextlib.suppress(SandlotError, OSError, ValueError):  # it has ended meanwhile, or the host's disk is full
                await run_blocking(self._record_what_holds)

    async def pause(self) -> None:
        """Freeze every process of it, the runtime's included; returns once all have stopped.

        Raises:
            SandboxEndedError: It has ended.
        """
        await self._check_live()
        async with self._changing:
            try:
                await self._holding.freeze()
            except FileNotFoundError:
                raise await self._ended_error() from None

    async def resume(self) -> None:
        """Thaw it; one that was not frozen goes on as it is.

        Raises:
            SandboxEndedError: It has ended.
        """
        await self._check_live()
        async with self._changing:
            self._holding.cgroup.thaw()

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True) -> int:
        """Write it down (``checkpoint/taking.py``). One after the other, and not while it is changed or paused.

        A caller that is cancelled is told so when it is over; what was written is gone then.

        Raises:
            UnsupportedError: Its runtime knows of no snapshots.
            ConflictError: There is something under that name.
            HostError: The disk is full, or the runtime failed; the sandbox goes on.
            SandboxEndedError: It has ended.
        """
        engine = self._runtime.engine(await run_blocking(self._program))
        await self._check_live()
        work = asyncio.ensure_future(self._snapshot(engine, into, keep_running=keep_running, durable=durable))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await finished(work)
            if not keep_running or work.cancelled() or work.exception() is not None:
                raise  # what ended for it is not to be lost
            await run_blocking(images.discard, into)
            raise

    async def _snapshot(self, engine: Engine, into: Path, *, keep_running: bool, durable: bool) -> int:
        async with self._changing:
            await self._check_live()
            live = Live(self._holding.folder, self._started, self._program())
            try:
                how = Taking(self._record, self._runtime.group_limits, goes_on=keep_running, durable=durable)
                size = await take(self._holding, live, engine, into, how)
            except (EngineError, OSError) as error:
                if _has_ended(self._started.sandbox) or self._holding.is_doomed():
                    raise await self._ended_error() from error
                raise not_written(error) from error
            if not keep_running:
                self._saved = True
                await self._stop()
            return size

    async def _stop(self) -> None:
        """End it, and give its memory back; all else is still there."""
        while await run_blocking(self._holding.cgroup.kill_once):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_STOP_PAUSE_S)
        await self.wait()

    async def usage(self) -> Usage:
        """What it has used so far; ``pids`` are tasks of the host, the runtime's own included.

        Raises:
            SandboxEndedError: It has ended.
        """
        await self._check_live()
        try:
            group = await run_blocking(self._holding.cgroup.usage)
            oom_kills = await run_blocking(self._holding.cgroup.oom_kills)
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
        """Return when it has ended, however. Any number of callers, also afterwards."""
        return await asyncio.shield(self._end)

    async def destroy(self) -> None:
        """End it and remove every trace. Idempotent; goes on when the caller is cancelled."""
        if _has_ended(self._started.sandbox):
            # By itself, a moment ago: what is known about that would go with the rest.
            await self.wait()
        if self._stream is not None:
            await self._stream.aclose()
        await self._holding.release()
        await self.wait()

    async def _watch(self) -> Exit:
        sandbox = open_process(self._started.sandbox)
        if sandbox is not None:
            try:
                await ended(sandbox)
            finally:
                os.close(sandbox)
        # The keeper writes how it ended and leaves; unless it is dead, or being killed.
        keeper = open_process(self._started.keeper)
        if keeper is not None:
            try:
                await ended_within(keeper, _KEEPER_PATIENCE_S)
            finally:
                os.close(keeper)
        return await run_blocking(self._explain)

    def _explain(self) -> Exit:
        folder = self._holding.folder
        status, panic, disk_full = None, "", False
        with contextlib.suppress(OSError, ValueError):
            status = int(folder.exit.read_text(encoding="ascii"))
        with contextlib.suppress(OSError), folder.panic_log.open("rb") as log:
            panic = log.read(_PANIC_BYTES).decode(errors="replace")
        with contextlib.suppress(OSError):
            stat = folder.disk_image.stat()
            disk_full = stat.st_blocks * 512 >= _FULL_SHARE * stat.st_size
        return explain(
            Evidence(
                status=status,
                ended_for=SAVED if self._saved else DESTROYED if self._holding.is_doomed() else "",
                oom_kills=self._holding.cgroup.oom_kills(),
                panic=panic,
                disk_full=disk_full,
                memory_bytes=self._record.limits.memory_bytes,
                oom_statuses=self._runtime.oom_statuses,
            )
        )

    def _limit(self, record: Record) -> None:
        with self._holding.limiting:
            self._holding.intend(record)
            try:
                self._holding.cgroup.change(self._runtime.group_limits(record.limits))
            except BaseException:
                with contextlib.suppress(OSError):  # it is being given back, or the host's disk is full
                    self._holding.intend(self._record)
                raise
            self._record = record

    def _record_what_holds(self) -> None:
        holds = limits_of(self._holding.cgroup.limits(), self._record.limits, self._runtime.group_limits)
        self._record = replace(self._record, limits=holds)
        self._holding.intend(self._record)

    async def _check_live(self) -> None:
        if self._end.done() or self._holding.is_doomed():
            raise await self._ended_error()

    async def _ended_error(self) -> SandboxEndedError:
        end = await self.wait()
        return SandboxEndedError(
            f"The sandbox has ended ({end.reason}).", code=ErrorCode.SANDBOX_ENDED, fields={"reason": end.reason.value, "detail": end.detail}
        )


def limits_of(group: GroupLimits, known: Limits, group_limits: Callable[[Limits], GroupLimits]) -> Limits:
    """A sandbox's limits by those of its group. Pure.

    Args:
        group: What its group is limited to.
        known: Limits of it, for what the group does not limit.
        group_limits: What a group is limited to for a sandbox's limits.

    Raises:
        InvalidRequestError: No sandbox has such a group.
    """
    # More of the sandbox's are more of the group's, whatever the runtime adds.
    pids = bisect_left(range(PIDS_MOST), group.pids, lo=PIDS_LEAST, key=lambda count: group_limits(replace(known, pids=count)).pids)
    return replace(known, memory_bytes=group.memory_bytes, cpus=group.cpus, pids=pids)


def not_written(error: Exception) -> SandlotError:
    """Why there is no snapshot, for people."""
    fields = {"reason": str(error)}
    if "no space left" in str(error).lower():
        return LimitError(
            "The snapshot could not be written: the disk of the host is full. The sandbox goes on.",
            code=ErrorCode.DISK_FULL,
            hint="Free some space where the service keeps its state (SANDLOT_DATA_DIR): delete snapshots or sandboxes that are not needed.",
            fields=fields,
        )
    return HostError(
        f"The snapshot could not be written: {error}. The sandbox goes on.",
        code=ErrorCode.HOST_NOT_READY,
        hint="`sandlot doctor` says what is missing.",
        fields=fields,
    )


def _has_ended(identity: Identity) -> bool:
    handle = open_process(identity)
    if handle is None:
        return True
    try:
        return bool(select.select([handle], [], [], 0)[0])
    finally:
        os.close(handle)
