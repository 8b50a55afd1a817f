"""Overlays: the files of a sandbox that differ from its image, kept as one file on the host and applied to the same image again.

A program inside the sandbox packs and applies the files (``guest/helpers/overlay.py``). It runs as root on the guest's own interpreter, so it
does not depend on the image or the isolation. The host only passes its bytes on. The host tells the program which files the image has; the
sandbox can see these anyway.

Invariants:
- An overlay appears under its name complete and synced, or not at all.
- Neither side holds more of an overlay than one stream window. On the host an overlay takes no more space than the sandbox may use.
- Packing changes nothing in the sandbox. A live sandbox is packed file by file, as each file is found.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from sandlot.core.execution import helpers
from sandlot.core.sandbox import Sandbox
from sandlot.host import durable
from sandlot.host.blocking import run_blocking
from sandlot.model.errors import ErrorCode, HostError, LimitError
from sandlot.model.specs import User

PROGRAM = "overlay"
P = ParamSpec("P")
ResultT = TypeVar("ResultT")
WRITE_BYTES = 4 * 1024 * 1024
"""Bytes collected before they are written to the disk."""
READ_BYTES = 1024 * 1024
FOLDERS = 1_000_000
"""Maximum number of folders that one packing may ask about."""
ANSWER_NAMES = 5000
"""Names in one message. With 255 bytes and a number each, the message stays within a program's limit."""
SLACK_BYTES = 256 * 1024 * 1024
"""Size allowed above the sandbox's disk and memory: for names, and for files that are written during the packing."""


async def pack_layer(sandbox: Sandbox, into: Path, root: Path) -> int:
    """Pack the files of a sandbox that differ from its image.

    Args:
        sandbox: Live sandbox; it keeps running.
        into: File to write; must not exist. Its folder exists.
        root: Root filesystem image of the sandbox on this host.

    Returns:
        Bytes that the file takes on the disk.

    Raises:
        LimitError: ``limit_exceeded``: the overlay is larger than the sandbox may be; ``disk_full``: the host's disk is full.
        HostError: The host's disk failed; nothing is left there.
        SandlotError: A file in the sandbox could not be read, or the sandbox has ended.
    """
    max_bytes = sandbox.spec.limits.disk_bytes + sandbox.spec.limits.memory_bytes + SLACK_BYTES
    helper = await helpers.start(sandbox, PROGRAM, {"do": "pack"}, user=User.ROOT)
    draft = OverlayDraft(into.with_name(into.name + ".part"), max_bytes)
    try:
        await draft.open()
        folders = 0
        async for item in helper:
            if isinstance(item, bytes):
                await draft.write(item)
                continue
            folders += 1
            for message in await run_blocking(describe_folder, root, item.get("folder")) if folders <= FOLDERS else [{"missing": True}]:
                await helper.tell(message)
        await helper.result()
        return await draft.finish(into)
    finally:
        helper.close()
        await draft.close()


async def apply_layer(sandbox: Sandbox, layer: Path) -> None:
    """Apply an overlay to a sandbox.

    Args:
        sandbox: New sandbox of the image that the overlay was packed from, or of a similar image. If this call raises, discard the sandbox.
        layer: File that :func:`pack_layer` wrote.

    Raises:
        ConflictError: The overlay is damaged.
        LimitError: ``disk_full``: the sandbox's disk is smaller than the overlay needs.
        HostError: The overlay cannot be read.
        SandlotError: The sandbox has ended, or a file in it could not be written.
    """
    helper = await helpers.start(sandbox, PROGRAM, {"do": "apply"}, user=User.ROOT)
    await helper.feed(_chunks(layer))


class OverlayDraft:
    """A file on the host that gets its final name only when it is complete.

    Args:
        path: Temporary name of the file.
        max_bytes: Maximum size of the file.
    """

    __slots__ = ("_fd", "_max_bytes", "_path", "_pending", "_pending_bytes", "_size")

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._fd = -1
        self._size = 0
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    async def open(self) -> None:
        """Create the file.

        Raises:
            LimitError: ``disk_full``.
            HostError: The disk failed.
        """
        await _on_disk(self._open)

    async def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            LimitError: The file would exceed its maximum size; or ``disk_full``.
            HostError: The disk failed.
        """
        self._size += len(data)
        if self._size > self._max_bytes:
            raise LimitError(
                f"The sandbox's files take more than {self._max_bytes:,} bytes, the maximum for its limits.",
                code=ErrorCode.LIMIT_EXCEEDED,
                hint="Remove files from the sandbox, and try again.",
            )
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= WRITE_BYTES:
            await self._flush()

    async def finish(self, into: Path) -> int:
        """Sync the file, give it its final name, and return the bytes that it takes on the disk.

        Raises:
            LimitError: ``disk_full``.
            HostError: The disk failed.
        """
        await self._flush()
        return await _on_disk(self._finish, into)

    async def close(self) -> None:
        """Remove the file unless it has its final name. Idempotent."""
        await run_blocking(self._close)

    async def _flush(self) -> None:
        data, self._pending, self._pending_bytes = self._pending, [], 0
        await _on_disk(_write_all, self._fd, data)

    def _open(self) -> None:
        self._path.unlink(missing_ok=True)
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _finish(self, into: Path) -> int:
        os.fsync(self._fd)
        size_bytes = os.fstat(self._fd).st_blocks * 512
        self._path.rename(into)
        durable.fsync_folder(into.parent)
        return size_bytes

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
            self._path.unlink(missing_ok=True)


def describe_folder(root: Path, folder: object) -> Sequence[Mapping[str, object]]:
    """Return the messages that tell a program inside which entries a folder of the image has.

    Args:
        root: Root filesystem image.
        folder: Absolute path in the image, as bytes. The program may send any value; everything else counts as a missing folder.
    """
    try:
        fd = _open_folder(root, folder if isinstance(folder, bytes) else b"")
    except (OSError, ValueError):
        return [{"missing": True}]
    try:
        names = os.listdir(fd)  # noqa: PTH208 - pathlib cannot list an open folder
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


def _open_folder(root: Path, folder: bytes) -> int:
    """Open a folder of the image without following a symbolic link and without leaving the image.

    Raises:
        OSError: The folder does not exist.
        ValueError: The path is not absolute, or contains ``.`` or ``..``.
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


async def _chunks(layer: Path) -> AsyncIterator[bytes]:
    offset = 0
    while chunk := await _on_disk(_read, layer, offset):
        yield chunk
        offset += len(chunk)


def _read(layer: Path, offset: int) -> bytes:
    with layer.open("rb") as file:
        file.seek(offset)
        return file.read(READ_BYTES)


def _write_all(fd: int, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(fd, rest) :]


async def _on_disk(function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Call a function in a thread and turn its OSError into an error of Sandlot."""
    try:
        return await run_blocking(function, *args, **kwargs)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = "Delete snapshots that are no longer needed, or enlarge the disk of the state directory."
            raise LimitError("The disk of the service's host is full.", code=ErrorCode.DISK_FULL, hint=hint) from None
        hint = "Check the disk of the service's state directory."
        raise HostError(
            f"The sandbox's files could not be written or read on the host: {error.strerror}.", code=ErrorCode.HOST_NOT_READY, hint=hint
        ) from None
