"""Layers of files: what a sandbox has that its image has not, kept on the host as one file and put over that image again.

The work is done inside (``guest/programs/layer.py``), by root, on the guest's own interpreter, so for every image and isolation. The host
passes bytes on and never looks into them; what it tells is what the image holds, which the sandbox can see for itself.

Laws:
- A layer appears under its name whole and on the disk, or not at all.
- Neither end ever holds more than a window of one. It takes no more room on the host than the sandbox may take.
- A sandbox is no older for it: nothing in it is changed by packing. A live one is packed as it is found, file by file.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.host import durable
from sandlot.host.threads import run_blocking
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, SandlotError
from sandlot.model.specs import User

PROGRAM = "layer"
P = ParamSpec("P")
ResultT = TypeVar("ResultT")
WRITE_BYTES = 4 * 1024 * 1024
"""Written at once."""
READ_BYTES = 1024 * 1024
FOLDERS = 1_000_000
"""That one packing may ask about."""
ANSWER_NAMES = 5000
"""In one message: with 255 bytes and a number each it is no longer than a program takes."""
SLACK_BYTES = 256 * 1024 * 1024
"""What a layer may take beside its sandbox's disk and memory: names, and what is written meanwhile."""


async def pack_layer(sandbox: Sandbox, into: Path, root: Path) -> int:
    """Pack what a sandbox has on top of its image.

    Args:
        sandbox: Live; it goes on meanwhile.
        into: A file that does not exist, in a folder that does.
        root: The image's root file system on this host.

    Returns:
        Bytes that it takes on the disk.

    Raises:
        LimitError: It became larger than the sandbox may be.
        HostError: ``disk_full`` or another error of the host's disk; nothing was left there.
        SandlotError: Something in the sandbox could not be read, or it has ended.
    """
    most = sandbox.spec.limits.disk_bytes + sandbox.spec.limits.memory_bytes + SLACK_BYTES
    helper = await helpers.start(sandbox, PROGRAM, {"do": "pack"}, user=User.ROOT)
    temporary = into.with_name(into.name + ".part")
    writing = Writing(temporary, most)
    try:
        await writing.open()
        asked = 0
        async for item in helper:
            if isinstance(item, bytes):
                await writing.put(item)
                continue
            asked += 1
            for answer in await run_blocking(answers, root, item.get("folder")) if asked <= FOLDERS else [{"missing": True}]:
                await helper.tell(answer)
        await helper.result()
        return await writing.finish(into)
    finally:
        helper.close()
        await writing.close()


async def apply_layer(sandbox: Sandbox, layer: Path) -> None:
    """Put a layer over a sandbox's image.

    Args:
        sandbox: A new one, of the image that the layer was packed over, or one that is like it. Where this raises, it is to be thrown away.
        layer: What :func:`pack_layer` wrote.

    Raises:
        ConflictError: The layer is not whole.
        LimitError: ``disk_full``: the sandbox has less room than the layer needs.
        HostError: The layer cannot be read.
        SandlotError: The sandbox has ended, or something in it could not be written.
    """
    helper = await helpers.start(sandbox, PROGRAM, {"do": "apply"}, user=User.ROOT)
    feeding = asyncio.ensure_future(_feed(helper, layer))
    ending = asyncio.ensure_future(helper.result())
    try:
        await asyncio.wait({feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            # It ended between two pieces: how, it says itself.
            with suppress(ConflictError):
                feeding.result()
        await ending
    finally:
        for task in (feeding, ending):
            task.cancel()
        await asyncio.wait({feeding, ending})
        helper.close()


class Writing:
    """A file of the host that appears whole, or not at all.

    Args:
        path: Its name until it is whole.
        most: Bytes that it may have.
    """

    __slots__ = ("_fd", "_most", "_path", "_size", "_waiting", "_waiting_bytes")

    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._fd = -1
        self._size = 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    async def open(self) -> None:
        """Make it.

        Raises:
            HostError: The disk says no.
        """
        await _on_disk(self._open)

    async def put(self, data: bytes) -> None:
        """The next bytes.

        Raises:
            LimitError: They are too many.
            HostError: The disk says no.
        """
        self._size += len(data)
        if self._size > self._most:
            raise LimitError(
                f"The sandbox's files take more than {self._most:,} bytes, which is more than it may have.",
                code=ErrorCode.LIMIT_EXCEEDED,
                hint="Remove what is not needed, and try again.",
            )
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= WRITE_BYTES:
            await self._write()

    async def finish(self, into: Path) -> int:
        """It is whole: give it its name, for good. How many bytes it takes.

        Raises:
            HostError: The disk says no.
        """
        await self._write()
        return await _on_disk(self._finish, into)

    async def close(self) -> None:
        """Leave nothing of what is not whole. Idempotent."""
        await run_blocking(self._close)

    async def _write(self) -> None:
        data, self._waiting, self._waiting_bytes = self._waiting, [], 0
        await _on_disk(_write_all, self._fd, data)

    def _open(self) -> None:
        self._path.unlink(missing_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _finish(self, into: Path) -> int:
        os.fsync(self._fd)
        taken = os.fstat(self._fd).st_blocks * 512
        self._path.rename(into)
        durable.fsync_folder(into.parent)
        return taken

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._path.unlink(missing_ok=True)


def answers(root: Path, folder: object) -> Sequence[Mapping[str, object]]:
    """What a program inside is told of a folder of the image; it may ask anything.

    Args:
        root: The image's root file system.
        folder: An absolute path in it, as bytes.
    """
    try:
        fd = _enter(root, folder if isinstance(folder, bytes) else b"")
    except (OSError, ValueError):
        return [{"missing": True}]
    try:
        names = os.listdir(fd)  # noqa: PTH208 - of what is open
        found = [(os.fsencode(name), os.stat(name, dir_fd=fd, follow_symlinks=False).st_ctime_ns) for name in names]
    except OSError:  # an image that is being removed
        return [{"missing": True}]
    finally:
        os.close(fd)
    parts = [found[at : at + ANSWER_NAMES] for at in range(0, len(found), ANSWER_NAMES)] or [[]]
    return [
        {"names": [name for name, _ in part], "ctimes": [ctime for _, ctime in part], "more": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]


def _enter(root: Path, folder: bytes) -> int:
    """Open a folder of the image, without following any link, nor any way up.

    Raises:
        OSError: There is none.
        ValueError: That is no path in it.
    """
    names = [name for name in folder.split(b"/") if name]
    if not folder.startswith(b"/") or b".." in names or b"." in names:
        raise ValueError(folder)
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


async def _feed(helper: GuestHelper, layer: Path) -> None:
    async for piece in _pieces(layer):
        await helper.send(piece)
    with suppress(SandlotError):
        helper.end_input()


async def _pieces(layer: Path) -> AsyncIterator[bytes]:
    at = 0
    while piece := await _on_disk(_read, layer, at):
        yield piece
        at += len(piece)


def _read(layer: Path, at: int) -> bytes:
    with layer.open("rb") as file:
        file.seek(at)
        return file.read(READ_BYTES)


def _write_all(fd: int, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(fd, rest) :]


async def _on_disk(function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Call what uses the host's disk; what that says as an error of ours."""
    try:
        return await run_blocking(function, *args, **kwargs)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = "Remove snapshots that are not needed, or give the state directory more room."
            raise LimitError("The disk of the service's host is full.", code=ErrorCode.DISK_FULL, hint=hint) from None
        hint = "Look after the disk of the service's state directory."
        raise HostError(f"A layer of files: {error.strerror}.", code=ErrorCode.HOST_NOT_READY, hint=hint) from None
