"""The file store: files that outlive sandboxes, copied into sandboxes and out of them.

Invariants:
- Content is streamed as fast as the receiver takes it; no complete file is ever in memory.
- A file exists once its record is committed, after its content is stored. :meth:`FileStore.open` removes what a kill leaves in between.
- A file's name is a single printable path component: it names the file and never says where the file goes.
- A file of another owner is not found.
"""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import posixpath
import re
import unicodedata
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

import structlog

from sandlot.core.access.quotas import check_upload
from sandlot.core.concurrency import TaskSet
from sandlot.core.files import files
from sandlot.core.ports import Clock
from sandlot.core.sandbox import Sandbox
from sandlot.link.types import Entry
from sandlot.model.access import UNBOUNDED, OwnerId, Principal, Quota
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.ids import FILE_ID, SandboxId, new_file_id
from sandlot.model.records import FileId, FileRecord
from sandlot.model.specs import User, check_path
from sandlot.model.storage import Blobs, FileRepository

DEFAULT_MEDIA_TYPE = "application/octet-stream"
FOLDER = "/workspace"
"""Default folder for injected files."""

MAX_FILENAME_BYTES = 255
"""NAME_MAX of Linux (limits.h)."""
MAX_MEDIA_TYPE_CHARS = 127
"""RFC 6838, 4.2, allows 127 for each half; both halves together are held to the same number here."""
MAX_INJECTED = 100
"""Maximum number of files that one request copies into a sandbox."""

_WORD = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:; ?{_WORD}=(?:{_WORD}|\"[A-Za-z0-9!#$&^_.+ -]*\"))*")

_log = structlog.get_logger("sandlot.core")


class FileStore:
    """All files of this service.

    Args:
        records: Table of the files.
        blobs: Content of the files.
        clock: Clock of the service.
        max_bytes: Maximum size of a file, for all callers.
        room: Raises an error while the host is short of disk space; called before a file is stored. None checks nothing.
        new_id: Returns a new file id.
    """

    def __init__(
        self,
        records: FileRepository,
        blobs: Blobs,
        clock: Clock,
        *,
        max_bytes: int,
        room: Callable[[], Coroutine[Any, Any, None]] | None = None,
        new_id: Callable[[], FileId] = new_file_id,
    ) -> None:
        self._room = room
        self._records = records
        self._blobs = blobs
        self._clock = clock
        self._max_bytes = max_bytes
        self._new_id = new_id
        self._commits = TaskSet("file.defect")

    async def open(self) -> int:
        """Remove the content that interrupted uploads and deletions left, and return the number of removed files. Call this first."""
        strays = await self._blobs.ids() - await self._records.ids()
        for stray in strays:
            await self._blobs.remove(stray)
        if strays:
            _log.info("files.swept", count=len(strays))
        return len(strays)

    async def aclose(self) -> None:
        """Wait for the commits in progress."""
        await self._commits.wait()

    async def upload(self, principal: Principal, chunks: AsyncIterable[bytes], *, filename: str, media_type: str | None = None) -> FileRecord:
        """Store a file. An interrupted upload leaves nothing.

        Args:
            principal: Owner of the file; the owner's quota limits its size.
            chunks: The content, read as fast as it is stored.
            filename: Name of the file: a single path component.
            media_type: Media type such as ``text/csv``; None is ``application/octet-stream``.

        Raises:
            InvalidRequestError: The name or the media type is invalid.
            LimitError: ``too_large``, ``quota_exceeded`` or ``disk_full``.
            UnavailableError: ``busy``: the host is short of disk space.
        """
        check_filename(filename)
        checked = check_media_type(media_type or DEFAULT_MEDIA_TYPE)
        content = _Content(chunks, self._max_bytes, principal.quota)
        return await self._keep(content, principal.owner, filename, checked, None)

    async def keep(
        self,
        sandbox: Sandbox,
        path: str,
        *,
        user: User = User.USER,
        filename: str | None = None,
        quota: Quota = UNBOUNDED,
        max_bytes: int | None = None,
    ) -> FileRecord:
        """Copy a file out of a sandbox. The copy belongs to the sandbox's owner.

        Args:
            sandbox: Sandbox that has the file.
            path: Absolute path.
            user: User that reads the file.
            filename: Name of the copy. None takes the last part of the path, with ``_`` for characters that a name cannot have.
            quota: Quota of the caller; limits the size as for an upload.
            max_bytes: Maximum size, if lower than the service's.

        Raises:
            SandlotError: As for :func:`sandlot.core.files.files.read`; also ``too_large``, ``quota_exceeded`` and ``disk_full``.
        """
        if filename is not None:
            check_filename(filename)
        name = filename or tidy_filename(path)
        download = await files.read(sandbox, path, user=user)
        try:
            content = _Content(download, self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes), quota)
            return await self._keep(content, sandbox.owner, name, media_type_of(name), sandbox.id)
        finally:
            await download.aclose()

    async def get(self, principal: Principal, id_: str) -> FileRecord:
        """Return a file's record.

        Raises:
            NotFoundError: ``file_not_found``.
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
        """Return the records of some files that can be injected together, in the order of the ids.

        Raises:
            InvalidRequestError: There are more than ``MAX_INJECTED`` files, or two files have the same name.
            NotFoundError: ``file_not_found``; the message names the first missing file.
        """
        if len(ids) > MAX_INJECTED:
            raise InvalidRequestError(
                f"The request names {len(ids)} files; at most {MAX_INJECTED} can be copied into a sandbox at once.",
                hint="Use several requests, or one archive.",
                fields={"field": "file_ids"},
            )
        found = [await self.get(principal, id_) for id_ in ids]
        names = [record.filename for record in found]
        duplicate = next((name for name in names if names.count(name) > 1), None)
        if duplicate is not None:
            raise InvalidRequestError(
                f"Two of the files are called {duplicate!r}.",
                hint="Copy them into different folders, in two requests.",
                fields={"filename": duplicate},
            )
        return found

    async def list(self, principal: Principal, *, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """Return a page of the files that a caller may see, newest first, and the total number of these files.

        Args:
            principal: Caller; operators see the files of all owners.
            offset: Number of files to skip.
            limit: Maximum number of files to return.
        """
        return await self._records.page(owner=None if principal.operator else principal.owner, offset=offset, limit=limit)

    def read(self, record: FileRecord) -> AsyncIterator[bytes]:
        """Return an iterator of a file's content.

        Raises:
            NotFoundError: The file was deleted meanwhile; raised at the first piece.
        """
        return self._blobs.read(record.id)

    async def delete(self, principal: Principal, id_: str) -> None:
        """Delete a file. Copies in sandboxes stay.

        Raises:
            NotFoundError: ``file_not_found``.
        """
        record = await self.get(principal, id_)
        if await self._records.remove(record.id):
            await self._blobs.remove(record.id)

    async def inject(self, sandbox: Sandbox, records: Sequence[FileRecord], folder: str = FOLDER, *, user: User = User.USER) -> Sequence[Entry]:
        """Copy files into a sandbox, one after the other, under their names. Existing files are replaced.

        Args:
            sandbox: Sandbox to copy into.
            records: Files to copy.
            folder: Absolute path of the folder; created if it is missing.
            user: Owner of the copies.

        Raises:
            SandlotError: As for :func:`sandlot.core.files.files.write`. The files before the failed one stay.
        """
        check_path(folder)
        return [await files.write(sandbox, posixpath.join(folder, record.filename), self.read(record), user=user) for record in records]

    async def injects(self, principal: Principal, ids: Sequence[str]) -> Callable[[Sandbox], Coroutine[Any, Any, object]]:
        """Look up files now, and return a function that copies them into a sandbox later.

        Raises:
            SandlotError: As for :meth:`get_many`.
        """
        records = await self.get_many(principal, ids)
        return lambda sandbox: self.inject(sandbox, records)

    async def _keep(self, content: _Content, owner: OwnerId, filename: str, media_type: str, sandbox: SandboxId | None) -> FileRecord:
        if self._room is not None:
            await self._room()
        id_ = self._new_id()
        size = await self._blobs.write(id_, content)
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
        # The client has sent everything. If it disconnects now, the commit and the cleanup after a failed commit still finish.
        await asyncio.shield(self._commits.create_task(self._commit(record)))
        return record

    async def _commit(self, record: FileRecord) -> None:
        try:
            await self._records.add(record)
        except BaseException:
            await self._blobs.remove(record.id)
            raise


def check_filename(name: str) -> str:
    """Return the name of a file if it is a path component without control characters, of at most 255 bytes of UTF-8.

    Raises:
        InvalidRequestError: The name is invalid; the message says why.
    """
    if problem := _filename_problem(name):
        raise InvalidRequestError(
            f"The file name {name[:100]!r} {problem}.", hint="Pass a name without a directory, such as `data.csv`.", fields={"field": "filename"}
        )
    return name


def tidy_filename(path: str) -> str:
    """Return the last part of a path as a name that :func:`check_filename` accepts; ``file`` if nothing usable is left."""
    last = path.rstrip("/").rpartition("/")[2]
    name = "".join("_" if _unprintable(char) else char for char in last)
    while len(name.encode("utf-8", "replace")) > MAX_FILENAME_BYTES:
        name = name[:-1]
    return "file" if _filename_problem(name) else name


def check_media_type(media_type: str) -> str:
    """Return a media type (RFC 6838) with its parameters if it is valid.

    Raises:
        InvalidRequestError: The media type is invalid.
    """
    if len(media_type) > MAX_MEDIA_TYPE_CHARS or _MEDIA_TYPE.fullmatch(media_type) is None:
        raise InvalidRequestError(
            f"The media type {media_type[:100]!r} is not valid.", hint="Pass a type such as `text/csv`, or omit it.", fields={"field": "media_type"}
        )
    return media_type


def media_type_of(filename: str) -> str:
    """Return the media type for a file name by Python's own table. The host's registered types do not matter."""
    return mimetypes.MimeTypes().guess_type(f"./{filename}")[0] or DEFAULT_MEDIA_TYPE


def _filename_problem(name: str) -> str:
    if not name:
        return "is empty"
    if name in {".", ".."}:
        return "names a folder"
    if "/" in name or "\\" in name:
        return "contains a slash"
    if any(_unprintable(char) for char in name):
        return "contains a character that cannot be printed"
    if len(name.encode()) > MAX_FILENAME_BYTES:
        return f"has more than {MAX_FILENAME_BYTES} bytes"
    return ""


def _unprintable(char: str) -> bool:
    """Return whether a character could make a shown name look like another one: control, line break, direction change, lone surrogate."""
    return unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


class _Content:
    """The content of a file in transit. Iterating counts and hashes it.

    Args:
        chunks: The content.
        max_bytes: Maximum size.
        quota: Quota of the caller; limits the size as well.

    Attributes:
        sha256: Hash of the content that was iterated so far.
    """

    def __init__(self, chunks: AsyncIterable[bytes], max_bytes: int, quota: Quota) -> None:
        self._chunks = chunks
        self._max_bytes = max_bytes
        self._quota = quota
        self.sha256 = hashlib.sha256()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._chunks:
            size += len(chunk)
            self._check(size)
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
