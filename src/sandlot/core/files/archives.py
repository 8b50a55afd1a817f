"""Copy folders out of a sandbox and into it, as streamed tar archives.

Helper programs inside the sandbox pack and unpack the archives (``guest/helpers/{pack,unpack}.py``), so the image needs no tar program. The disk
limit of the sandbox limits how much can be unpacked.

Invariants:
- Neither the service nor the guest holds more than one stream window of an archive in memory.
- If the client disconnects, the helper program ends. Files that it has unpacked remain, and no file is half written.
- If an archive cannot be packed completely, the stream ends without the end marker of a tar archive.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Self

from sandlot.core.concurrency import StreamCloser
from sandlot.core.execution import helpers
from sandlot.core.execution.helpers import GuestHelper
from sandlot.core.sandbox import Sandbox
from sandlot.model.files import Unpacked
from sandlot.model.specs import User
from sandlot.protocol.helpers import PACK, UNPACK

MAX_ENTRIES = 100_000
"""Maximum number of entries of an archive to unpack. Each entry takes an inode of the sandbox's disk, however small the file is."""
MAX_SKIPPED = 100
"""Maximum number of skipped links that a result names."""
_MAX_NUMBER = (1 << 63) - 1


class ArchiveStream:
    """An archive that is being packed."""

    __slots__ = ("_closer", "_helper")

    def __init__(self, helper: GuestHelper) -> None:
        self._helper = helper
        self._closer = StreamCloser()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece of the archive. While the caller does not read, at most one stream window is buffered.

        Raises:
            SandlotError: A file could not be read, or the sandbox has ended. The archive is incomplete.
        """
        return await self._closer.wait_next(self._next_piece)

    async def aclose(self) -> None:
        """Stop packing. Idempotent."""
        await self._closer.aclose()
        self._helper.close()

    async def _next_piece(self) -> bytes:
        while not isinstance(piece := await anext(self._helper), bytes):
            pass
        return piece


async def pack(sandbox: Sandbox, path: str, *, user: User, compress: bool = False) -> ArchiveStream:
    """Start to pack a folder or a file of a live sandbox. For arguments and errors see :meth:`sandlot.core.files.files.FileService.pack`."""
    path = sandbox.absolute_path(path)
    helper = await helpers.start(sandbox, PACK, {"path": path, "gzip": compress}, user=user)
    try:
        async with sandbox.connection():
            await anext(helper, None)  # the first message reports that the helper program has opened the path; a failure is raised here
    except BaseException:
        helper.close()
        raise
    return ArchiveStream(helper)


async def unpack(sandbox: Sandbox, path: str, chunks: AsyncIterable[bytes], *, user: User) -> Unpacked:
    """Unpack an archive in a live sandbox: :meth:`sandlot.core.files.files.FileService.unpack`."""
    path = sandbox.absolute_path(path)
    helper = await helpers.start(sandbox, UNPACK, {"path": path, "entries": MAX_ENTRIES}, user=user)
    result = await helper.feed(chunks)
    files, folders, links, size_bytes = (_number(result.get(name)) for name in ("files", "folders", "links", "bytes"))
    return Unpacked(files, folders, links, size_bytes, _names(result.get("skipped")))


def _names(value: object) -> tuple[str, ...]:
    """Return the names that the guest sent. Return none if the value is not a valid list, because a hostile guest can send any value."""
    if not isinstance(value, list) or len(value) > MAX_SKIPPED or not all(isinstance(name, str) for name in value):
        return ()
    return tuple(value)


def _number(value: object) -> int:
    """Return a number that the guest sent. Return 0 if the value is not a valid number, because a hostile guest can send any value."""
    return value if type(value) is int and 0 <= value <= _MAX_NUMBER else 0
