"""File store. Its files continue to exist when sandboxes end. Files can be copied from the store into sandboxes, and from sandboxes into the store.

Invariants:
- Content is streamed as fast as the receiver reads. No complete file is ever in memory.
- The content of a file is stored first, then its record. The file exists as soon as its record is stored. If the service is killed between the
  two steps, :meth:`FileStore.open` removes the content.
- The name of a file is a single printable path component. The name of a file never decides into which folder the file is written.
- Only an operator can find the files of other owners.
- Before content is written, quota and disk space are reserved for it (:mod:`sandlot.core.files.space`).
"""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import posixpath
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from typing import Self

import structlog

from sandlot.core.concurrency import StreamCloser, TaskSet
from sandlot.core.files import files
from sandlot.core.files.space import FORM_BYTES, FileSpace, FileSpaces
from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.reservations import Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import OwnerId, Principal, Quota, check_upload
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.files import INJECT_FOLDER, MAX_INJECTED, Entry, check_filename, check_media_type, tidy_filename
from sandlot.model.ids import FILE_ID, SandboxId, new_file_id
from sandlot.model.records import FileId, FileRecord
from sandlot.model.repositories import Blobs, FileRepository, Position
from sandlot.model.specs import User
from sandlot.model.streams import Page, Stream

DEFAULT_MEDIA_TYPE = "application/octet-stream"

_log = structlog.get_logger("sandlot.core")


class FileStore:
    """All files of this service.

    Args:
        max_bytes: Maximum size of a file. The quota of a caller can be lower.

    Attributes:
        commits: Tasks that write the records of complete uploads. Wait for these tasks when the service stops.
    """

    def __init__(
        self,
        records: FileRepository,
        blobs: Blobs,
        registry: SandboxRegistry,
        clock: Clock,
        reservations: Reservations,
        *,
        max_bytes: int,
    ) -> None:
        self._spaces = FileSpaces(records, reservations, clock)
        self._records = records
        self._blobs = blobs
        self._registry = registry
        self._clock = clock
        self._max_bytes = max_bytes
        self.commits = TaskSet("file.internal_error")

    async def open(self) -> int:
        """Remove content that has no record, because an upload or a deletion was interrupted. Call this method before any other method.

        Returns:
            Number of files whose content was removed.
        """
        strays = await self._blobs.ids() - await self._records.ids()
        for stray in strays:
            await self._blobs.remove(stray)
        if strays:
            _log.info("file.unrecorded_content_removed", count=len(strays))
        return len(strays)

    async def upload(
        self,
        principal: Principal,
        chunks: AsyncIterable[bytes],
        *,
        filename: str,
        media_type: str | None = None,
        announced_bytes: int | None = None,
    ) -> FileRecord:
        """Store a file. If the upload is interrupted, nothing is stored.

        Args:
            principal: Owner of the file. The owner's quota limits the size, the number of files and their total size.
            chunks: The content, read as fast as it is stored.
            filename: Name of the file, a single path component.
            media_type: Media type such as ``text/csv``. None: ``application/octet-stream``.
            announced_bytes: Size of the content, or of the form with the content, that the client announced. None: unknown.

        Raises:
            InvalidRequestError: The name or the media type is invalid.
            LimitError: The file is too large (``too_large``), a quota is exceeded (``quota_exceeded``), or the node has no disk space for the file
                (``node_disk_full``). If the size was announced, the error is raised before ``chunks`` is read.
        """
        check_filename(filename)
        checked = check_media_type(media_type or DEFAULT_MEDIA_TYPE)
        content = _Content(chunks, self._max_bytes, self._spaces.open(principal.owner, principal.quota), principal.quota)
        return await self._keep(content, announced_bytes, principal.owner, filename, checked, None)

    async def keep(
        self,
        principal: Principal,
        sandbox: str,
        path: str,
        *,
        filename: str | None = None,
        max_bytes: int | None = None,
        user: User | None = None,
    ) -> FileRecord:
        """Copy a file out of a sandbox. The copy belongs to the sandbox's owner. If the call is cancelled, nothing is stored.

        Args:
            principal: Caller, whose quota limits the size.
            sandbox: Id of the sandbox.
            path: Absolute path.
            filename: Name of the copy. None: the last part of the path, in which ``_`` replaces characters that a name cannot have.
            max_bytes: Maximum size, in addition to the maximum of the service. None: only the maximum of the service applies.
            user: User that reads the file. None: that of the sandbox.
        """
        live = self._registry.find(sandbox, principal)
        if filename is not None:
            check_filename(filename)
        name = filename or tidy_filename(path)
        download = await files.read(live, path, user=user or live.spec.user)
        try:
            most = self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes)
            content = _Content(download, most, self._spaces.open(live.owner, principal.quota), principal.quota)
            # The guest reported the size. A wrong one is corrected while the file is read.
            return await self._keep(content, min(download.entry.size, most), live.owner, name, media_type_of(name), live.id)
        finally:
            await download.aclose()

    async def get(self, principal: Principal, id_: str) -> FileRecord:
        """Return the record of a file.

        Raises:
            NotFoundError: The caller has no file with this id (``file_not_found``).
        """
        record = await self._records.get(FileId(id_)) if FILE_ID.fullmatch(id_) else None
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no file {id_[:64]!r} in the file store.",
                code=ErrorCode.FILE_NOT_FOUND,
                hint="List the files, or upload the file again.",
                fields={"file": id_[:64]},
            )
        return record

    async def get_many(self, principal: Principal, ids: Sequence[str]) -> Sequence[FileRecord]:
        """Return the records of files that a request copies into one folder of a sandbox, in the order of the ids.

        Raises:
            InvalidRequestError: There are more than ``MAX_INJECTED`` files, or two files have the same name.
            NotFoundError: A file does not exist (``file_not_found``); the message names the first missing file.
        """
        if len(ids) > MAX_INJECTED:
            raise InvalidRequestError(
                f"The request names {len(ids)} files; at most {MAX_INJECTED} can be copied into a sandbox at once.",
                hint="Send several requests, or upload the files as one archive.",
                fields={"field": "file_ids"},
            )
        found = [await self.get(principal, id_) for id_ in ids]
        names = [record.filename for record in found]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise InvalidRequestError(
                f"The request names two files with the name {duplicate!r}.",
                hint="Copy the two files into different folders, in two requests.",
                fields={"filename": duplicate},
            )
        return found

    async def page(self, principal: Principal, *, before: Position | None = None, limit: int = 50) -> Page[FileRecord]:
        """Return a page of the files that a caller may see, newest first.

        Args:
            principal: Caller; operators see the files of all owners.
            before: Position of the last file of the previous page.
            limit: Maximum number of files to return.
        """
        found = await self._records.page(owner=None if principal.operator else principal.owner, before=before, limit=limit + 1)
        return Page(found[:limit], more=len(found) > limit)

    async def list(self, principal: Principal, *, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """Return a page of the files that a caller may see, newest first, and the total number of these files.

        Args:
            principal: Caller; operators see the files of all owners.
            offset: Number of files to skip.
            limit: Maximum number of files to return.
        """
        return await self._records.page_by_offset(owner=None if principal.operator else principal.owner, offset=offset, limit=limit)

    async def read(self, principal: Principal, id_: str) -> Stream[bytes]:
        """Return a stream of the content of a file.

        Raises:
            NotFoundError: The caller has no file with this id (``file_not_found``). The stream raises ``NotFoundError`` before the first piece if the
                file is deleted first.
        """
        record = await self.get(principal, id_)
        return StoredContent(self._blobs.read(record.id))

    async def delete(self, principal: Principal, id_: str) -> None:
        """Delete a file. Copies in sandboxes stay.

        Raises:
            NotFoundError: The caller has no file with this id (``file_not_found``).
        """
        record = await self.get(principal, id_)
        if await self._records.remove(record.id):
            await self._blobs.remove(record.id)

    async def inject(
        self, principal: Principal, sandbox: str, ids: Sequence[str], folder: str = INJECT_FOLDER, *, user: User | None = None
    ) -> Sequence[Entry]:
        """Copy files into a folder of a sandbox, one after another. Each copy has the name of its file and replaces a file of this name.

        If the call fails or is cancelled, files that are already copied remain.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox to copy into.
            ids: Ids of 1 to 100 files with different names.
            folder: Absolute path of the folder; created if it is missing.
            user: Owner of the copies. None: the user of the sandbox.

        Raises:
            InvalidRequestError: There are more than 100 files, or two files have the same name.
            NotFoundError: A file does not exist (``file_not_found``); no file is copied.
        """
        live = self._registry.find(sandbox, principal)
        return await inject(live, self._blobs, await self.get_many(principal, ids), folder, user=user)

    async def _keep(
        self, content: _Content, announced_bytes: int | None, owner: OwnerId, filename: str, media_type: str, sandbox: SandboxId | None
    ) -> FileRecord:
        try:
            await content.begin(announced_bytes)
            id_ = new_file_id()
            size = await self._blobs.write(id_, content)
        except BaseException:
            content.space.release()
            raise
        record = FileRecord(
            id=id_,
            owner=owner,
            filename=filename,
            media_type=media_type,
            size_bytes=size,
            sha256=content.sha256.hexdigest(),
            created_at=self._clock.now(),
            sandbox=sandbox,
        )
        # The content is complete. If the client disconnects now, the commit continues. If the commit fails, the content is removed.
        await asyncio.shield(self.commits.create_task(self._commit(record, content.space)))
        return record

    async def _commit(self, record: FileRecord, space: FileSpace) -> None:
        written_bytes = 0
        try:
            await self._records.add(record)
            written_bytes = record.size_bytes
        except BaseException:
            await self._blobs.remove(record.id)
            raise
        finally:
            space.release(written_bytes)


async def inject(
    sandbox: Sandbox, blobs: Blobs, records: Sequence[FileRecord], folder: str = INJECT_FOLDER, *, user: User | None = None
) -> Sequence[Entry]:
    """Copy stored files into a folder of a sandbox. See :meth:`FileStore.inject`."""
    folder, owner = sandbox.absolute_path(folder), user or sandbox.spec.user
    return [await files.write(sandbox, posixpath.join(folder, record.filename), blobs.read(record.id), user=owner) for record in records]


def media_type_of(filename: str) -> str:
    """Return the media type for a file name, from Python's built-in table. Types that are registered on the host are ignored."""
    return mimetypes.MimeTypes().guess_type(f"./{filename}")[0] or DEFAULT_MEDIA_TYPE


class StoredContent:
    """Content of a stored file that is being read."""

    __slots__ = ("_chunks", "_closer")

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._closer = StreamCloser()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await self._closer.wait_next(self._chunks.__anext__)

    async def aclose(self) -> None:
        """Stop reading. Idempotent."""
        await self._closer.aclose()
        if isinstance(self._chunks, AsyncGenerator):
            await self._chunks.aclose()


class _Content:
    """Content of a file that is being stored. Iterating over the content limits its size, reserves space for it and computes its hash.

    Args:
        space: Reserved quota and disk space.
        quota: Quota of the caller, which also limits the size.

    Attributes:
        sha256: Hash of the chunks that the iteration has yielded so far.
    """

    def __init__(self, chunks: AsyncIterable[bytes], max_bytes: int, space: FileSpace, quota: Quota) -> None:
        self._chunks = chunks
        self.space = space
        self._max_bytes = max_bytes
        self._quota = quota
        self.sha256 = hashlib.sha256()

    async def begin(self, announced_bytes: int | None) -> None:
        """Refuse a file whose announced size is too large, and reserve space for the file."""
        self._check(max(0, (announced_bytes or 0) - FORM_BYTES))
        await self.space.begin(announced_bytes)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._chunks:
            size += len(chunk)
            self._check(size)
            if size > self.space.granted_bytes:
                await self.space.extend(size)
            self.sha256.update(chunk)
            yield chunk

    def _check(self, size: int) -> None:
        check_upload(self._quota, size)
        if size > self._max_bytes:
            raise LimitError(
                f"The file has more than {self._max_bytes} bytes, the maximum of this server.",
                code=ErrorCode.TOO_LARGE,
                hint="Split the file, or raise SANDLOT_UPLOAD_MAX_BYTES on the server.",
                fields={"max_bytes": self._max_bytes},
            )
