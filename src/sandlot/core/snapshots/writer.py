"""Write the memory or the files of a sandbox to the host's disk: reserve the disk space, write, and report a full disk.

Invariants:
- If a write fails, the sandbox keeps running.
- The reservation is released when the files are written, because their size then counts as used disk space.
"""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sandlot.core.lifecycle import suspend
from sandlot.core.resources.reservations import Purpose, Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, HostError, LimitError, SandboxEndedError, SandlotError
from sandlot.model.ports import Resources, Usage
from sandlot.model.specs import SnapshotKind

_FULL = "no space left on device"
"""Text of ENOSPC (strerror(3)), in lower case. A runtime reports a full disk only by an error message that contains this text."""


def max_size_bytes(usage: Usage | None, kind: SnapshotKind) -> int:
    """Return the maximum disk space that a snapshot of a sandbox can take, in bytes.

    Args:
        usage: Current usage of the sandbox. None if the sandbox is hibernated: the snapshot then shares the files of the hibernation image.
        kind: Kind of the snapshot. A memory snapshot contains the files as well.
    """
    if usage is None:
        return 0
    return usage.disk_bytes + (usage.memory_bytes if kind is SnapshotKind.MEMORY else 0)


@asynccontextmanager
async def reserve_disk(reservations: Reservations, sandbox: Sandbox, kind: SnapshotKind) -> AsyncIterator[None]:
    """Reserve the disk space for a snapshot while the block writes it, and report a full disk as ``node_disk_full``.

    Raises:
        UnavailableError: There is not enough disk space now (``busy``).
        LimitError: The disk became full while the block ran (``node_disk_full``).
    """
    usage = await _usage(sandbox)
    needed = Resources(memory_bytes=0, disk_bytes=max(1, max_size_bytes(usage, kind)), pids=0)
    reservation = reservations.reserve(Purpose.SNAPSHOT, needed, await reservations.make_room(needed), owner=sandbox.owner)
    try:
        with explain_full_disk():
            yield
    finally:
        reservation.release()


async def _usage(sandbox: Sandbox) -> Usage | None:
    """Return the usage of a sandbox, or None if it is hibernated."""
    if sandbox.instance is None:
        return None
    try:
        return await sandbox.instance.usage()
    except SandboxEndedError:
        if sandbox.end_requested.is_set():
            raise
        return None  # the processes have ended because the sandbox is being hibernated; an end of another kind ends the operation that writes


async def write_image(sandbox: Sandbox, into: Path, *, durable: bool) -> int:
    """Write an image of a sandbox's memory and files, and return its size in bytes. The sandbox then continues as before.

    A call that is cancelled, or whose sandbox ends, still waits until the driver has stopped writing to the folder.

    Args:
        sandbox: Running, paused or hibernated sandbox.
        into: Folder to create for the image. The folder must not exist.
        durable: True to sync the image to disk, so that it survives a loss of power.
    """
    await sandbox.recovered.wait()
    ended = asyncio.Event()
    try:
        return await sandbox.operations.submit(functools.partial(suspend.write_image, into=into, durable=durable), ended.set)
    finally:
        await ended.wait()


@contextmanager
def explain_full_disk() -> Iterator[None]:
    """Raise a ``LimitError`` instead of the original error if the body of the ``with`` block fails because the disk is full.

    Raises:
        LimitError: The disk is full (``node_disk_full``).
    """
    try:
        yield
    except (HostError, OSError) as error:
        if is_full(error):
            raise LimitError(
                "The snapshot cannot be written: the server's disk is full. The sandbox keeps running.",
                code=ErrorCode.NODE_DISK_FULL,
                hint="Delete snapshots or sandboxes that are no longer needed, or free space on the server.",
            ) from error
        raise


def is_full(error: BaseException) -> bool:
    """Return True if an error, or an error in its chain of causes, was caused by a full disk."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        if (isinstance(cause, SandlotError) and cause.code is ErrorCode.NODE_DISK_FULL) or _FULL in str(cause).lower():
            return True
        cause = cause.__cause__ or cause.__context__
    return False
