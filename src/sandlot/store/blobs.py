"""The content of the file store: one file for each id in a folder, through obstore.

Invariants:
- A blob is complete or does not exist. It is written under another name (``ID#1``) and renamed, and it is on disk when ``write`` returns. Files
  with such a name that a killed process left are removed when the folder is opened.
- Content is streamed. An upload holds at most ``PARTS`` parts of ``PART_BYTES`` in memory, a download one piece.
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
_INCOMPLETE = "#"


class FolderBlobs:
    """Implements :class:`sandlot.model.repositories.Blobs`. Create one with :func:`open_blobs`.

    Args:
        folder: Folder of the blobs. Nothing else writes there.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = LocalStore(folder)

    async def write(self, file: FileId, chunks: AsyncIterable[bytes]) -> int:
        """Store a blob and return its size in bytes. If the write fails, no blob exists."""
        total = 0
        # obstore requests each piece in a task of its own. If the write is cancelled, that task would wait for ever without this queue.
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
            with self._translated_errors():
                await obstore.put_async(self._store, file, counted(), use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS)
                # obstore renames but does not sync, and the record that is committed next must not outlive the content.
                await asyncio.to_thread(_sync, self._folder, file)
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
            while not pieces.empty():
                pieces.get_nowait()
            pieces.put_nowait(ConnectionAbortedError("the write has ended"))
        return total

    async def read(self, file: FileId) -> AsyncIterator[bytes]:
        """Yield a blob in pieces.

        Raises:
            NotFoundError: There is no such blob; raised at the first piece.
        """
        try:
            found = await obstore.get_async(self._store, file)
        except FileNotFoundError:
            raise NotFoundError(f"The content of file {file} is not stored here.", code=ErrorCode.NOT_FOUND) from None
        with self._translated_errors():
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    async def remove(self, file: FileId) -> None:
        """Remove a blob. Readers can read it to its end. Idempotent."""
        with contextlib.suppress(FileNotFoundError), self._translated_errors():
            await obstore.delete_async(self._store, file)

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all complete blobs."""
        with self._translated_errors():
            return frozenset([FileId(str(each["path"])) async for page in obstore.list(self._store) for each in page])

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise translate_error(error, self._folder) from error


async def open_blobs(folder: Path) -> FolderBlobs:
    """Open the blobs in a folder and remove incomplete ones that a killed process left.

    Args:
        folder: The folder; created if it does not exist. Its parent must exist.

    Raises:
        HostError: The folder cannot be used.
    """
    await asyncio.to_thread(_prepare, folder)
    return FolderBlobs(folder)


def translate_error(error: Exception, folder: Path) -> SandlotError:
    """Translate an error of obstore or of the system. Pure.

    Args:
        error: The error.
        folder: Folder of the blobs, for the message.
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
    """Put chunks into the queue, then None or the error that ended them."""
    end: BaseException | None = None
    try:
        async for chunk in chunks:
            await pieces.put(chunk)
    except Exception as error:  # noqa: BLE001 - raised by the reader of the queue
        end = error
    await pieces.put(end)


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(mode=_PRIVATE, exist_ok=True)
        for incomplete in folder.glob(f"*{_INCOMPLETE}*"):
            incomplete.unlink()
    except OSError as error:
        raise translate_error(error, folder) from error


def _sync(folder: Path, file: FileId) -> None:
    durable.fsync_file(folder / file)
    durable.fsync_folder(folder)
