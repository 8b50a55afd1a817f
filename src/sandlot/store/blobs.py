"""The content of the files in the file store (blobs): one file on disk for each id, written with obstore.

Invariants:
- A blob is complete or does not exist: it is written under another name (``ID#1``) and then renamed. When the folder is opened, files named ``ID#1``
  that a killed process left are removed.
- A blob is on disk when ``write`` returns.
- Content is streamed. An upload needs memory for at most ``PARTS`` parts of ``PART_BYTES``, a download for one piece of about ``PIECE_BYTES``.
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
    """Implements :class:`sandlot.model.repositories.Blobs`. Use :func:`open_blobs` to create an instance.

    Args:
        folder: Folder that contains the blobs. No other program may write to it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store = LocalStore(folder)

    async def write(self, file: FileId, chunks: AsyncIterable[bytes]) -> int:
        """Store the content of a file and return its size in bytes. If the write fails, nothing is stored.

        Args:
            file: Id of the file.
            chunks: The content, in pieces of any size.

        Raises:
            LimitError: The disk is full.
            HostError: The folder cannot be written to.
        """
        total = 0
        # obstore waits for each piece in a task of its own. If the write is cancelled, the `finally` below ends that task through this queue.
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
                # obstore does not sync. The caller commits the file's record next, and no record may survive a power failure without the content.
                await asyncio.to_thread(_sync, self._folder, file)
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})
            while not pieces.empty():
                pieces.get_nowait()
            pieces.put_nowait(ConnectionAbortedError("writing this file was aborted or failed"))
        return total

    async def read(self, file: FileId) -> AsyncIterator[bytes]:
        """Yield the content of a file in pieces.

        Raises:
            NotFoundError: No content is stored for this file. The error is raised when the first piece is requested.
        """
        try:
            found = await obstore.get_async(self._store, file)
        except FileNotFoundError:
            raise NotFoundError(f"The file store has no content for file {file}.", code=ErrorCode.FILE_NOT_FOUND) from None
        with self._translated_errors():
            async for piece in found.stream(min_chunk_size=PIECE_BYTES):
                yield bytes(piece)

    async def remove(self, file: FileId) -> None:
        """Remove the content of a file. Reads that have begun still get the whole content. Idempotent."""
        with contextlib.suppress(FileNotFoundError), self._translated_errors():
            await obstore.delete_async(self._store, file)

    async def ids(self) -> frozenset[FileId]:
        """Return the ids of all files whose content is stored completely."""
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
    """Open a folder of blobs, and remove incomplete blobs that a killed process left there.

    Args:
        folder: The folder. It is created if it does not exist; its parent must exist.

    Raises:
        HostError: The folder cannot be created or written to.
    """
    await asyncio.to_thread(_prepare, folder)
    return FolderBlobs(folder)


def translate_error(error: Exception, folder: Path) -> SandlotError:
    """Translate an error of obstore or of the operating system into an error of Sandlot. Pure.

    Args:
        error: The error to translate.
        folder: Folder of the blobs, which the message names.
    """
    if getattr(error, "errno", None) == errno.ENOSPC or f"os error {errno.ENOSPC})" in str(error):
        return LimitError(
            f"The disk of the file store {folder} is full.",
            code=ErrorCode.NODE_DISK_FULL,
            hint="Remove files from the file store, or free space on the server.",
        )
    reason = getattr(error, "strerror", None) or (str(error).splitlines() or [type(error).__name__])[0][:300]
    return HostError(
        f"The file store's folder {folder} cannot be used: {reason}.",
        code=ErrorCode.HOST_NOT_READY,
        hint="Make the folder and its file system readable and writable, or set SANDLOT_DATA_DIR to another directory.",
    )


async def _feed(chunks: AsyncIterable[bytes], pieces: asyncio.Queue[bytes | BaseException | None]) -> None:
    """Put all chunks into the queue, and then None or, if reading the chunks failed, the exception."""
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
