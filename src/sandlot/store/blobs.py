"""The bytes of the file store: one file for each id in a folder, through obstore.

Laws:
- A blob is there whole or not at all: it is written under another name (``ID#1``) and renamed; it is on disk when ``write`` returns. What
  a killed process left under such a name is removed when the folder is opened.
- Bytes pass through in pieces: one upload holds at most ``PARTS`` parts of ``PART_BYTES``, one download one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore

from sandlot.host import durable
from sandlot.model.errors import ErrorCode, HostError, LimitError, NotFoundError, SandlotError
from sandlot.model.records import FileId

PART_BYTES: Final = 1024 * 1024
PARTS: Final = 2
PIECE_BYTES: Final = 256 * 1024
_PRIVATE = 0o700
_STAGED = "#"


class FolderBlobs:
    """Fills :class:`sandlot.model.storage.Blobs`. Make one with :func:`open_blobs`.

    Args:
        folder: Where they are; nobody else writes there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = LocalStore(folder)

    async def write(self, file: FileId, chunks: AsyncIterable[bytes]) -> int:
        """Keep some; how many bytes they were. What breaks off leaves nothing that can be read."""
        total = 0
        # obstore asks for the next piece by a task of its own, which a cancelled write would leave waiting for ever.
        pieces: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(maxsize=1)

        async def counted() -> AsyncIterator[bytes]:
            nonlocal total
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                total += len(piece)
                yield piece

        feeding = asyncio.create_task(_feed(chunks, pieces))
        try:
            with self._explained():
                await obstore.put_async(self._store, file, counted(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS)
                # obstore renames but does not sync, and the record that is committed next must not outlive the bytes.
                await asyncio.to_thread(_sync, self._folder, file)
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
            while not pieces.empty():
                pieces.get_nowait()
            pieces.put_nowait(ConnectionAbortedError("nobody writes any more"))
        return total

    async def read(self, file: FileId) -> AsyncIterator[bytes]:
        """They, piece by piece.

        Raises:
            NotFoundError: There are none; at the first piece.
        """
        try:
            found = await obstore.get_async(self._store, file)
        except FileNotFoundError:
            raise NotFoundError(f"The bytes of {file} are not here.", code=ErrorCode.NOT_FOUND) from None
        with self._explained():
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    async def remove(self, file: FileId) -> None:
        """Drop them. Idempotent; who reads them meanwhile reads them to the end."""
        with contextlib.suppress(FileNotFoundError), self._explained():
            await obstore.delete_async(self._store, file)

    async def ids(self) -> frozenset[FileId]:
        """All that there are, half written ones excepted."""
        with self._explained():
            return frozenset([FileId(str(each["path"])) async for page in obstore.list(self._store) for each in page])

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise explained(error, self._folder) from error


async def open_blobs(folder: Path) -> FolderBlobs:
    """The blobs of a folder; it is made where it is not there, and what a killed process left half-written in it is removed.

    Args:
        folder: In a folder that is there.

    Raises:
        HostError: It cannot be used.
    """
    await asyncio.to_thread(_prepare, folder)
    return FolderBlobs(folder)


def explained(error: Exception, folder: Path) -> SandlotError:
    """What obstore's error, or the system's, is to us. Pure.

    Args:
        error: It.
        folder: Where.
    """
    if getattr(error, "errno", None) == errno.ENOSPC or f"os error {errno.ENOSPC})" in str(error):
        return LimitError(
            f"The disk of {folder} is full.", code=ErrorCode.DISK_FULL, hint="Remove files from the file store, or free space on the server."
        )
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0][:300]
    return HostError(
        f"The files in {folder} cannot be used: {reason}.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Make the folder and its file system readable and writable, or set SANDLOT_DATA_DIR to another directory.",
    )


async def _feed(chunks: AsyncIterable[bytes], pieces: asyncio.Queue[bytes | BaseException | None]) -> None:
    """Hand chunks on, one at a time, and then how they ended."""
    end: BaseException | None = None
    try:
        async for chunk in chunks:
            await pieces.put(chunk)
    except Exception as error:  # noqa: BLE001 - it is raised where the chunks are taken
        end = error
    await pieces.put(end)


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
        for half in folder.glob(f"*{_STAGED}*"):
            half.unlink()
    except OSError as error:
        raise explained(error, folder) from error


def _sync(folder: Path, file: FileId) -> None:
    durable.fsync_file(folder / file)
    durable.fsync_folder(folder)
