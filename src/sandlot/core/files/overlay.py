"""Overlays of files: pack all files of a sandbox that differ from its root filesystem image, and apply them to a new sandbox.

A helper program inside the sandbox packs and applies the files (``guest/helpers/overlay.py``). The program runs as root on the guest's own
interpreter, so it does not depend on the image or on the isolation. The host stores the bytes that the program sends. The host also lists
folders of the image when the program asks for them, from the tree or from the index of the image. The sandbox can read the image anyway.

Invariants:
- The file of an overlay gets its final name only when it is complete and synced.
- The guest holds at most one stream window of an overlay in memory. The host holds at most one stream window and ``WRITE_BYTES``.
- The size of an overlay is limited to the disk and memory limits of the sandbox, plus ``SLACK_BYTES``.
- Packing changes nothing in the sandbox. If a program changes a file meanwhile, the file is packed with the content that the helper program reads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

from sandlot.core.concurrency import GeneratorStream
from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.host import durable, image_index
from sandlot.host.blocking import run_blocking
from sandlot.link.client import Link
from sandlot.model.errors import ErrorCode, HostError, LimitError
from sandlot.model.specs import RootFs, User
from sandlot.model.streams import Stream
from sandlot.protocol.helpers import APPLY_OVERLAY, COLLECT_OVERLAY, COPY_OVERLAY, OVERLAY, PACK_OVERLAY

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
WRITE_BYTES = 4 * 1024 * 1024
"""Bytes that are collected in memory before they are written to the disk."""
READ_BYTES = 1024 * 1024
"""Bytes that are read from the disk at once."""
MAX_FOLDERS = 1_000_000
"""Maximum number of folders of the image that the host lists for the helper program while the program packs one overlay."""
MAX_NAMES = 5000
"""Maximum number of names in one message to the helper program. Each name takes at most 255 bytes and is sent with one number, so the message does
not exceed the maximum size of a message."""
SLACK_BYTES = 256 * 1024 * 1024
"""Bytes that an overlay may have in addition to the disk and memory limits of the sandbox: for names, and for files that programs write while
the overlay is packed."""


async def pack_overlay(sandbox: Sandbox, into: Path, root: RootFs, link: Link | None = None) -> int:
    """Pack the files of a sandbox that differ from its image.

    Args:
        sandbox: Live sandbox. It keeps running.
        into: File to write. The file must not exist, but its folder must.
        root: Root file system from which the sandbox was booted.
        link: Link to the guest of a sandbox that clients cannot reach now. None: the sandbox's connection.

    Returns:
        Number of bytes that the file takes on the disk.

    Raises:
        LimitError: The overlay exceeds its maximum size (``limit_exceeded``), or the host's disk is full (``node_disk_full``).
        HostError: The host's disk failed, or the index of the image is damaged. The incomplete file is removed.
    """
    max_bytes = sandbox.spec.limits.disk_bytes + sandbox.spec.limits.memory_bytes + SLACK_BYTES
    helper = await helpers.start(sandbox, OVERLAY, {"do": PACK_OVERLAY}, user=User.ROOT, link=link)
    draft = OverlayDraft(into.with_name(into.name + ".part"), max_bytes)
    try:
        await draft.open()
        async for data in _packed(helper, root):
            await draft.write(data)
        return await draft.finish(into)
    finally:
        helper.close()
        await draft.close()


async def stream_changes(sandbox: Sandbox, root: RootFs) -> Stream[bytes]:
    """Pack the files of a sandbox that differ from its image, as :func:`pack_overlay`, and return the overlay as a stream.

    Args:
        sandbox: Live sandbox. It keeps running.
        root: Root file system from which the sandbox was booted.
    """
    return GeneratorStream(_packed(await helpers.start(sandbox, OVERLAY, {"do": PACK_OVERLAY}, user=User.ROOT), root))


async def collect(sandbox: Sandbox, paths: Sequence[str]) -> Stream[bytes]:
    """Pack files and folders of a sandbox with their owners and attributes, in the format of an overlay, and return them as a stream.

    Args:
        sandbox: Live sandbox. It keeps running.
        paths: Absolute paths without symbolic links.
    """
    request = {"do": COLLECT_OVERLAY, "paths": [os.fsencode(sandbox.absolute_path(path)) for path in paths]}
    return GeneratorStream(_packed(await helpers.start(sandbox, OVERLAY, request, user=User.ROOT), None))


async def copy_files(sandbox: Sandbox, chunks: AsyncIterable[bytes], *, owner: str) -> None:
    """Copy files in the format of an overlay into a sandbox. Existing folders keep their owner, mode and other entries.

    Args:
        sandbox: Live sandbox.
        chunks: The overlay.
        owner: Owner of all copied files, as ``USER[:GROUP]``; empty: the owners in the overlay.

    Raises:
        InvalidRequestError: The sandbox has no such owner, or a file would replace a folder.
        LimitError: The disk of the sandbox is full (``disk_full``).
    """
    helper = await helpers.start(sandbox, OVERLAY, {"do": COPY_OVERLAY, "owner": owner}, user=User.ROOT)
    await helper.feed(chunks)


async def _packed(helper: GuestHelper, root: RootFs | None) -> AsyncGenerator[bytes]:
    """Yield what a helper packs, and list folders of the image for it. None: the helper needs no list."""
    folders = 0
    try:
        async for item in helper:
            if isinstance(item, bytes):
                yield item
                continue
            folders += 1
            known = root is not None and folders <= MAX_FOLDERS
            for message in await run_blocking(describe_folder, root, item.get("folder")) if known and root is not None else [{"missing": True}]:
                await helper.tell(message)
        await helper.result()
    finally:
        helper.close()


async def apply_overlay(sandbox: Sandbox, file: Path, link: Link | None = None) -> None:
    """Apply an overlay to a sandbox.

    Args:
        sandbox: New sandbox. Its root filesystem image must be the image of the sandbox that was packed, or a later build of this image. If this
            function fails, the new sandbox has only some of the files and must be ended.
        file: File that :func:`pack_overlay` wrote.
        link: Link to the guest of a sandbox that clients cannot reach yet. None: the sandbox's connection.

    Raises:
        ConflictError: The overlay is damaged.
        LimitError: The overlay needs more space than the sandbox's disk has (``disk_full``).
    """
    helper = await helpers.start(sandbox, OVERLAY, {"do": APPLY_OVERLAY}, user=User.ROOT, link=link)
    await helper.feed(_chunks(file))


class OverlayDraft:
    """A file on the host that gets its final name only when it is complete.

    Args:
        path: Temporary name of the file.
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
        """Create the file under its temporary name.

        Raises:
            LimitError: The disk is full (``node_disk_full``).
        """
        await _on_disk(self._open)

    async def write(self, data: bytes) -> None:
        """Append bytes to the file.

        Raises:
            LimitError: The file would exceed its maximum size (``limit_exceeded``), or the disk is full (``node_disk_full``).
        """
        self._size += len(data)
        if self._size > self._max_bytes:
            raise LimitError(
                f"The files of the sandbox take more than {self._max_bytes} bytes, the maximum for a sandbox with these limits.",
                hint="Remove files from the sandbox, and retry.",
            )
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= WRITE_BYTES:
            await self._flush()

    async def finish(self, into: Path) -> int:
        """Sync the file, rename it to its final name, and return the number of bytes that it takes on the disk.

        Args:
            into: Final name, in the same folder.

        Raises:
            LimitError: The disk is full (``node_disk_full``).
        """
        await self._flush()
        return await _on_disk(self._finish, into)

    async def close(self) -> None:
        """Close the file, and remove it if it does not have its final name. Idempotent."""
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


def describe_folder(root: RootFs, folder: object) -> Sequence[Mapping[str, object]]:
    """Return the messages that list the entries of one folder of the image for the helper program.

    Args:
        root: Root file system.
        folder: Absolute path in the image, as bytes. The sandbox sends this value, so it can be anything. If it is not the path of a folder, the
            folder counts as missing.

    Raises:
        HostError: The index of the image is damaged.
    """
    names = _names(folder)
    found = None if names is None else _list_indexed(root.index, names) if root.index is not None else _list_tree(root.tree, names)
    if found is None:
        return [{"missing": True}]
    parts = [found[at : at + MAX_NAMES] for at in range(0, len(found), MAX_NAMES)] or [[]]
    return [
        {"names": [name for name, _ in part], "ctimes": [ctime for _, ctime in part], "more": number < len(parts) - 1}
        for number, part in enumerate(parts)
    ]


def _names(folder: object) -> Sequence[bytes] | None:
    """Return the names in the path of a folder, or None if the path is not absolute, contains ``.`` or ``..``, or is no path."""
    if not isinstance(folder, bytes) or not folder.startswith(b"/") or b"\0" in folder:
        return None
    names = [name for name in folder.split(b"/") if name]
    return None if b".." in names or b"." in names else names


def _list_indexed(index: Path, names: Sequence[bytes]) -> Sequence[tuple[bytes, int]] | None:
    try:
        return image_index.read_folder(index, b"/" + b"/".join(names))
    except (image_index.DamagedIndexError, OSError) as error:
        raise HostError(
            f"The list of the files of the template's image cannot be used: {error}.", hint="Build the template again, or take a memory snapshot."
        ) from None


def _list_tree(root: Path | None, names: Sequence[bytes]) -> Sequence[tuple[bytes, int]] | None:
    if root is None:
        return None
    try:
        fd = _open_folder(root, names)
    except OSError:
        return None
    try:
        entries = os.listdir(fd)  # noqa: PTH208 - pathlib cannot list an open folder
        return [(os.fsencode(name), os.stat(name, dir_fd=fd, follow_symlinks=False).st_ctime_ns) for name in entries]
    except OSError:  # the image is being removed
        return None
    finally:
        os.close(fd)


def _open_folder(root: Path, names: Sequence[bytes]) -> int:
    """Open a folder of the image without following a symbolic link and without leaving the image.

    Raises:
        OSError: The folder does not exist.
    """
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


async def _chunks(file: Path) -> AsyncIterator[bytes]:
    offset = 0
    while chunk := await _on_disk(_read, file, offset):
        yield chunk
        offset += len(chunk)


def _read(file: Path, offset: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(READ_BYTES)


def _write_all(fd: int, pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(fd, rest) :]


async def _on_disk(function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Call a function in a thread, and replace its OSError by a SandlotError.

    Raises:
        LimitError: The disk is full (``node_disk_full``).
        HostError: The disk failed.
    """
    try:
        return await run_blocking(function, *args, **kwargs)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise LimitError(
                "The disk of the service's host is full.",
                code=ErrorCode.NODE_DISK_FULL,
                hint="Delete snapshots that are no longer needed, or enlarge the disk of the data directory.",
            ) from None
        raise HostError(
            f"The host's disk failed while the sandbox's files were copied: {error.strerror}.",
            hint="Check the disk of the service's data directory.",
        ) from None
