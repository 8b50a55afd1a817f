"""The file store: bytes that outlive sandboxes, put into them when they are wanted, and kept out of them.

Laws:
- Bytes pass through piece by piece, as fast as the far side takes them: no whole file is ever in memory.
- A file exists once its record is committed, which is after its bytes are kept; what a kill leaves in between is removed by :meth:`FileStore.open`.
- A file's name is one path component that can be printed: it never says where it goes, only what it is called there.
- What is somebody else's is not found.
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
from sandlot.model.storage import Blobs, FileTable

DEFAULT_MEDIA_TYPE = "application/octet-stream"
FOLDER = "/workspace"
"""Where files are put unless somebody says where."""

MAX_FILENAME_BYTES = 255
"""NAME_MAX of Linux (limits.h)."""
MAX_MEDIA_TYPE_CHARS = 127
"""RFC 6838, 4.2: each half may have 127; nobody has needed more for both."""
MAX_INJECTED = 100
"""Files that one request puts into a sandbox."""

_WORD = r"[A-Za-z0-9!#$&^_.+-]+"
_MEDIA_TYPE = re.compile(rf"{_WORD}/{_WORD}(?:; ?{_WORD}=(?:{_WORD}|\"[A-Za-z0-9!#$&^_.+ -]*\"))*")

_log = structlog.get_logger("sandlot.core")


class FileStore:
    """All files of this service.

    Args:
        records: What is known of them.
        blobs: Their bytes.
        clock: The time.
        max_bytes: The largest that is taken, whoever sends it.
        room: Refuses to keep anything more while the host is short of disk space.
        new_id: Makes ids.
    """

    def __init__(
        self,
        records: FileTable,
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
        """Remove the bytes of uploads and removals that a kill cut in half; how many. Call it before anything else."""
        strays = await self._blobs.ids() - await self._records.ids()
        for stray in strays:
            await self._blobs.remove(stray)
        if strays:
            _log.info("files.swept", count=len(strays))
        return len(strays)

    async def aclose(self) -> None:
        """Wait for what is being committed."""
        await self._commits.wait()

    async def upload(self, principal: Principal, chunks: AsyncIterable[bytes], *, filename: str, media_type: str | None = None) -> FileRecord:
        """Keep a file. Where the upload breaks off, nothing is left of it.

        Args:
            principal: Whose it will be; its quota bounds the size.
            chunks: The content, taken as fast as it is written down.
            filename: What it is called: one path component.
            media_type: As ``text/csv``; None is ``application/octet-stream``.

        Raises:
            InvalidRequestError: The name or the type is none.
            LimitError: ``too_large``; ``quota_exceeded``; ``disk_full``.
            UnavailableError: ``busy``: the host is short of disk space.
        """
        check_filename(filename)
        kind = check_media_type(media_type or DEFAULT_MEDIA_TYPE)
        content = _Content(chunks, self._max_bytes, principal.quota)
        return await self._keep(content, principal.owner, filename, kind, None)

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
        """Copy a file out of a sandbox; it belongs to the sandbox's owner.

        Args:
            sandbox: Where it is.
            path: Absolute.
            user: Who reads it.
            filename: What it is called; None is the last part of its path, with ``_`` in place of what a name cannot have.
            quota: Of who asks: bounds its size, as that of an upload.
            max_bytes: A bound below the server's.

        Raises:
            SandlotError: As for :func:`sandlot.core.files.files.read`; also ``too_large``, ``quota_exceeded`` and ``disk_full``.
        """
        if filename is not None:
            check_filename(filename)
        name = filename or tidy_filename(path)
        reading = await files.read(sandbox, path, user=user)
        try:
            content = _Content(reading, self._max_bytes if max_bytes is None else min(max_bytes, self._max_bytes), quota)
            return await self._keep(content, sandbox.owner, name, media_type_of(name), sandbox.id)
        finally:
            await reading.aclose()

    async def get(self, principal: Principal, id_: str) -> FileRecord:
        """What is known of a file.

        Raises:
            NotFoundError: ``file_not_found``.
        """
        record = await self._records.get(FileId(id_)) if FILE_ID.fullmatch(id_) else None
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no file {id_[:64]!r} in the file store.",
                code=ErrorCode.FILE_NOT_FOUND,
                hint="List the files, or upload it again.",
                fields={"file": id_[:64]},
            )
        return record

    async def all(self, principal: Principal, ids: Sequence[str]) -> list[FileRecord]:
        """What is known of some files, in their order.

        Raises:
            InvalidRequestError: They are too many, or two of them have one name.
            NotFoundError: ``file_not_found``: names the first that is not there.
        """
        if len(ids) > MAX_INJECTED:
            raise InvalidRequestError(
                f"These are {len(ids)} files; at most {MAX_INJECTED} are put into a sandbox at once.",
                hint="Use several requests, or one archive.",
                fields={"field": "file_ids"},
            )
        found = [await self.get(principal, id_) for id_ in ids]
        names = [record.filename for record in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequestError(
                f"Two of these files are called {twice!r}.", hint="Put them into different folders, one after the other.", fields={"filename": twice}
            )
        return found

    async def page(self, principal: Principal, *, offset: int, limit: int) -> tuple[Sequence[FileRecord], int]:
        """The files that there are for somebody, newest first, and how many there are in all."""
        return await self._records.page(owner=None if principal.operator else principal.owner, offset=offset, limit=limit)

    def read(self, record: FileRecord) -> AsyncIterator[bytes]:
        """A file's bytes, piece by piece.

        Raises:
            NotFoundError: It was removed meanwhile; at the first piece.
        """
        return self._blobs.read(record.id)

    async def remove(self, principal: Principal, id_: str) -> None:
        """Remove a file; copies of it in sandboxes stay.

        Raises:
            NotFoundError: ``file_not_found``.
        """
        record = await self.get(principal, id_)
        if await self._records.remove(record.id):
            await self._blobs.remove(record.id)

    async def inject(self, sandbox: Sandbox, records: Sequence[FileRecord], folder: str = FOLDER, *, user: User = User.USER) -> list[Entry]:
        """Put files into a sandbox, one after the other, each under its name; one that is there already is replaced.

        Args:
            sandbox: Where.
            records: Which.
            folder: Absolute; made where it is not there.
            user: Whose they will be.

        Raises:
            SandlotError: As for :func:`sandlot.core.files.files.write`; those before it are there.
        """
        check_path(folder)
        return [await files.write(sandbox, posixpath.join(folder, record.filename), self.read(record), user=user) for record in records]

    async def injects(self, principal: Principal, ids: Sequence[str]) -> Callable[[Sandbox], Coroutine[Any, Any, object]]:
        """What puts some files into a sandbox that is still to be created, where they are found now.

        Raises:
            SandlotError: As for :meth:`all`.
        """
        records = await self.all(principal, ids)
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
            sha256=content.sha256(),
            created_at=self._clock.now(),
            sandbox=sandbox,
        )
        # A client that goes away now has sent all of it: the file is kept or not, but never half of it.
        await asyncio.shield(self._commits.create_task(self._commit(record)))
        return record

    async def _commit(self, record: FileRecord) -> None:
        try:
            await self._records.add(record)
        except BaseException:
            await self._blobs.remove(record.id)
            raise


def check_filename(name: str) -> str:
    """The name of a file: one path component without control characters, at most 255 bytes of UTF-8. Pure.

    Raises:
        InvalidRequestError: It is none; says why.
    """
    why = _why_not(name)
    if why:
        raise InvalidRequestError(
            f"{name[:100]!r} is no name for a file: {why}.",
            hint="Give its name alone, such as data.csv; the folder is chosen where it is put into a sandbox.",
            fields={"field": "filename"},
        )
    return name


def tidy_filename(path: str) -> str:
    """The last part of a path as a name that :func:`check_filename` takes, whatever a sandbox called it. Pure."""
    last = path.rstrip("/").rpartition("/")[2]
    name = "".join("_" if _unprintable(char) else char for char in last)
    while len(name.encode("utf-8", "replace")) > MAX_FILENAME_BYTES:
        name = name[:-1]
    return "file" if _why_not(name) else name


def check_media_type(media_type: str) -> str:
    """A media type (RFC 6838), with parameters if it has some. Pure.

    Raises:
        InvalidRequestError: It is none.
    """
    if len(media_type) > MAX_MEDIA_TYPE_CHARS or _MEDIA_TYPE.fullmatch(media_type) is None:
        raise InvalidRequestError(f"{media_type[:100]!r} is no media type.", hint="Such as text/csv; leave it out.", fields={"field": "media_type"})
    return media_type


def media_type_of(filename: str) -> str:
    """What a file's name says of its type, by Python's own table: what is registered on this host does not matter. Pure."""
    return mimetypes.MimeTypes().guess_type(f"./{filename}")[0] or DEFAULT_MEDIA_TYPE


def _why_not(name: str) -> str:
    if not name:
        return "it is empty"
    if name in {".", ".."}:
        return "it names a folder"
    if "/" in name or "\\" in name:
        return "it has a slash"
    if any(_unprintable(char) for char in name):
        return "it has a character that cannot be printed"
    if len(name.encode()) > MAX_FILENAME_BYTES:
        return f"it has more than {MAX_FILENAME_BYTES} bytes"
    return ""


def _unprintable(char: str) -> bool:
    """Control characters, breaks of lines, changes of direction and lone surrogates: what could pass for something else where a name is shown."""
    return unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


class _Content:
    """A file's bytes on their way: counted and hashed.

    Args:
        chunks: They.
        max_bytes: The server's bound.
        quota: Of who sends it.
    """

    def __init__(self, chunks: AsyncIterable[bytes], max_bytes: int, quota: Quota) -> None:
        self._chunks = chunks
        self._max_bytes = max_bytes
        self._quota = quota
        self._sha256 = hashlib.sha256()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._chunks:
            size += len(chunk)
            self._check(size)
            self._sha256.update(chunk)
            yield chunk

    def sha256(self) -> str:
        """Of what has passed, in hexadecimal."""
        return self._sha256.hexdigest()

    def _check(self, size: int) -> None:
        check_upload(self._quota, size)
        if size > self._max_bytes:
            raise LimitError(
                f"The file has more than {self._max_bytes} bytes, which is the limit of this server.",
                code=ErrorCode.TOO_LARGE,
                hint="Send it in parts, or raise SANDLOT_UPLOAD_MAX_BYTES on the server.",
                fields={"max_bytes": self._max_bytes},
            )
