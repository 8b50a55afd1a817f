"""What is written of a sandbox to the host's disk: room for it is promised first, and a disk that is full is said in words.

Law: Whatever fails, the sandbox goes on; what was promised is given up once the bytes are there, and then they count as what they are.
"""

from __future__ import annotations

import asyncio
import errno
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sandlot.core.lifecycle import suspend
from sandlot.core.node.reservations import Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, HostError, LimitError, SandlotError
from sandlot.model.ports import Resources, Usage
from sandlot.model.specs import SnapshotKind

_FULL = "no space left on device"
"""What a runtime says, which tells its errors in words alone (strerror(3))."""


def most_bytes(usage: Usage | None, kind: SnapshotKind) -> int:
    """The most that what is written of a sandbox can take on the disk. Pure.

    Args:
        usage: What it uses now; None where nothing of it runs: its image is there already, and is shared.
        kind: What is written. Its files are in an image of its memory as well.
    """
    if usage is None:
        return 0
    return usage.disk_bytes + (usage.memory_bytes if kind is SnapshotKind.MEMORY else 0)


@asynccontextmanager
async def room(reservations: Reservations, sandbox: Sandbox, holder: str, kind: SnapshotKind) -> AsyncIterator[None]:
    """Around writing something of a sandbox: the disk that it can take is promised to nobody else meanwhile.

    Args:
        reservations: Reservations of this node.
        sandbox: What is written.
        holder: The id of what it becomes.
        kind: What is written.

    Raises:
        UnavailableError: ``busy``: there is no room now; says how much is needed.
        InvalidRequestError: There never will be.
        LimitError: ``disk_full``: it became full meanwhile.
    """
    usage = None if sandbox.instance is None else await sandbox.instance.usage()
    takes = Resources(memory_bytes=0, disk_bytes=max(1, most_bytes(usage, kind)), pids=0)
    reservations.reserve(holder, takes, await reservations.make_room(takes))
    try:
        with explained():
            yield
    finally:
        reservations.release(holder)


async def image(sandbox: Sandbox, into: Path, *, durable: bool) -> int:
    """Write a sandbox's memory and files; it goes on as it was. How many bytes they are.

    Whoever is cancelled meanwhile comes back when that is done, and nobody writes into the folder any more.

    Args:
        sandbox: It: running, paused or hibernated.
        into: A folder that does not exist.
        durable: Whether it is to survive a loss of power.

    Raises:
        SandlotError: It cannot be written.
    """
    await sandbox.recovered.wait()
    task = asyncio.ensure_future(sandbox.operations.submit(functools.partial(suspend.write_image, into=into, durable=durable)))
    try:
        return await asyncio.shield(task)
    finally:
        if not task.done():
            await asyncio.wait({task})


@contextmanager
def explained() -> Iterator[None]:
    """Around writing: a full disk is ``disk_full``, whoever noticed it.

    Raises:
        LimitError: ``disk_full``.
    """
    try:
        yield
    except (HostError, OSError) as error:
        if is_full(error):
            raise LimitError(
                "The server's disk is full, so that nothing of this sandbox could be kept; it goes on as before.",
                code=ErrorCode.DISK_FULL,
                hint="Delete snapshots or sandboxes that are not needed, or free space on the server.",
            ) from error
        raise


def is_full(error: BaseException) -> bool:
    """Whether an error comes of a disk that is full. Pure."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.errno in {errno.ENOSPC, errno.EDQUOT}:
            return True
        if (isinstance(seen, SandlotError) and seen.code is ErrorCode.DISK_FULL) or _FULL in str(seen).lower():
            return True
        seen = seen.__cause__ or seen.__context__
    return False
