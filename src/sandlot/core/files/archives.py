"""Copy folders out of a sandbox and into it, as streamed tar archives.

Programs of Sandlot inside the sandbox pack and unpack (``guest/helpers/{pack,unpack}.py``), so the image needs no tar. The disk limit of
the sandbox limits what can be unpacked.

Invariants:
- Neither the service nor the guest holds more of an archive than one stream window.
- If the client disconnects, the program inside ends. Files that are unpacked already remain, and no file is half written.
- If an archive cannot be packed completely, the stream ends without the end marker of a tar archive.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.model.specs import User, check_path

MAX_ENTRIES = 100_000
"""Maximum number of entries of an archive to unpack. Each entry takes an inode of the sandbox's disk, however small the file is."""
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


class ArchiveStream:
    """An archive that is being packed. Iterate over its bytes, then close the stream.

    Args:
        helper: Program that packs the archive.
    """

    __slots__ = ("_helper",)

    def __init__(self, helper: GuestHelper) -> None:
        self._helper = helper

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the archive in pieces. While the caller does not read, at most one stream window is held.

        Raises:
            SandlotError: A file could not be read, or the sandbox has ended. The archive is incomplete.
        """
        async for piece in self._helper:
            if isinstance(piece, bytes):
                yield piece

    async def aclose(self) -> None:
        """Stop packing. Idempotent."""
        self._helper.close()


async def pack(sandbox: Sandbox, path: str, *, user: User, compress: bool = False) -> ArchiveStream:
    """Start to pack a folder or a single file.

    Args:
        sandbox: Sandbox that has the folder or file.
        path: Absolute path. If the last part of the path is a symbolic link, the link is followed.
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
            await anext(helper, None)  # the first message of the program says that the path is open; its error is raised here
    except BaseException:
        helper.close()
        raise
    return ArchiveStream(helper)


async def unpack(sandbox: Sandbox, path: str, chunks: AsyncIterable[bytes], *, user: User) -> Unpacked:
    """Unpack an archive, plain or compressed with gzip, in a folder.

    Args:
        sandbox: Sandbox to unpack in.
        path: Absolute path of the folder. The folder and its parents are created if they do not exist.
        chunks: Bytes of the archive, read as fast as the sandbox writes.
        user: User that writes and owns the files.

    Raises:
        InvalidRequestError: The data is no archive, is damaged, or has an entry outside of the folder; the message names the entry.
        LimitError: ``disk_full``, or ``too_large``: more than 100,000 entries.
        ForbiddenError: ``permission_denied``.
        SandlotError: The sandbox has ended. Exceptions of ``chunks`` are passed on.
    """
    check_path(path)
    helper = await helpers.start(sandbox, "unpack", {"path": path, "entries": MAX_ENTRIES}, user=user)
    result = await helper.feed(chunks)
    return Unpacked(*(_number(result.get(name)) for name in ("files", "folders", "links", "bytes")))


def _number(value: object) -> int:
    """Return a number that the guest sent, or 0 if the value is no valid number: the guest may be hostile."""
    return value if type(value) is int and 0 <= value <= _MAX_NUMBER else 0
