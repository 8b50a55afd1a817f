"""Folders in and out of a sandbox as streamed tar archives.

Programs inside the sandbox do the work (``guest/helpers/{pack,unpack}.py``), so it does not depend on the image. Unpacked files take
space on the sandbox's own disk, which limits them.

Invariants:
- Neither side holds more of an archive than one stream window.
- A client that disconnects ends the program inside. Files that were unpacked before remain; no file is half written.
- An archive that cannot be packed completely is cut off without an end marker.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.model.specs import User, check_path

ENTRIES = 100_000
"""Maximum number of entries of an archive. Each entry takes an inode of the sandbox's disk, however small the file is."""
_MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Result of unpacking an archive.

    Args:
        files: Number of regular files.
        folders: Number of folders that the archive names.
        links: Number of symbolic and hard links.
        size_bytes: Total size of the files.
    """

    files: int
    folders: int
    links: int
    size_bytes: int


class Packed:
    """A stream of an archive that is being packed. Iterate it, then close it.

    Args:
        helper: Program that packs the archive.
    """

    __slots__ = ("_helper",)

    def __init__(self, helper: GuestHelper) -> None:
        self._helper = helper

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the archive in pieces. While nothing is read, at most one stream window is held.

        Raises:
            SandlotError: A file could not be read, or the sandbox has ended. The pieces so far are not a complete archive.
        """
        async for piece in self._helper:
            if isinstance(piece, bytes):
                yield piece

    async def aclose(self) -> None:
        """Stop packing. Idempotent."""
        self._helper.close()


async def pack(sandbox: Sandbox, path: str, *, user: User, compress: bool = False) -> Packed:
    """Start to pack a folder or a single file.

    Args:
        sandbox: Sandbox that has the folder.
        path: Absolute path. A symbolic link at its end is followed.
        user: User that reads the files.
        compress: Compress the archive with gzip.

    Raises:
        NotFoundError: ``path_not_found``.
        ForbiddenError: ``permission_denied``.
        InvalidRequestError: The path is neither a file nor a folder.
        SandlotError: The sandbox has ended, or cannot start another process.
    """
    check_path(path)
    helper = await helpers.start(sandbox, "pack", {"path": path, "gzip": compress}, user=user)
    try:
        async with sandbox.connection():
            await anext(helper, None)  # the program's first message: the path is open
    except BaseException:
        helper.close()
        raise
    return Packed(helper)


async def unpack(sandbox: Sandbox, path: str, chunks: AsyncIterable[bytes], *, user: User) -> Unpacked:
    """Unpack an archive, plain or compressed with gzip, in a folder.

    Args:
        sandbox: Sandbox to unpack in.
        path: Absolute path of the folder; created with its parents if it is missing.
        chunks: The archive, read as fast as the sandbox takes it.
        user: User that writes and owns the files.

    Raises:
        InvalidRequestError: The data is no archive, is damaged, or leads out of the folder; the message names the entry.
        LimitError: ``disk_full``, or ``too_large``: more than 100,000 entries.
        ForbiddenError: ``permission_denied``.
        SandlotError: The sandbox has ended. Exceptions of ``chunks`` are passed on.
    """
    check_path(path)
    helper = await helpers.start(sandbox, "unpack", {"path": path, "entries": ENTRIES}, user=user)
    result = await helper.feed(chunks)
    return Unpacked(*(_number(result.get(name)) for name in ("files", "folders", "links", "bytes")))


def _number(value: object) -> int:
    """Return a number that the guest sent; 0 if it is not one, because the guest may be hostile."""
    return value if type(value) is int and 0 <= value <= _MAX_NUMBER else 0
