"""Read, write, list, move and delete files of a sandbox. The guest accesses the files inside the sandbox, with the rights of a given user.

Invariants:
- The sandbox is found before the first chunk of an upload is read.
- Uploads and downloads are streamed with backpressure. No whole file is in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Self

from sandlot.core.concurrency import StreamCloser
from sandlot.core.files import archives, overlay
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Hold, Sandbox
from sandlot.link.files import FileReader
from sandlot.model.access import Principal, Quota, check_upload
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandboxEndedError, UnavailableError
from sandlot.model.files import Download, Entry, Listing, Unpacked
from sandlot.model.specs import User
from sandlot.model.streams import Stream
from sandlot.protocol.schema import LIMITS

MAX_MODE = 0o7777


class FileService:
    """Files and folders of sandboxes.

    All operations take paths, absolute or relative to the working directory of the sandbox, and the user whose rights apply, by default the
    user of the sandbox. They raise
    ``NotFoundError`` for a path that does not exist (``path_not_found``), ``ForbiddenError`` for a path that the user may not access
    (``permission_denied``), and ``InvalidRequestError`` for an invalid path or a path of the wrong kind.
    """

    def __init__(self, registry: SandboxRegistry) -> None:
        self._registry = registry

    async def read(
        self, principal: Principal, sandbox: str, path: str, *, offset: int = 0, length: int | None = None, user: User | None = None
    ) -> Download:
        """Open a file, and read at most ``length`` bytes from the position ``offset``. If ``length`` is None, read to the end."""
        live = self._registry.find(sandbox, principal)
        return await read(live, path, user=user or live.spec.user, offset=offset, length=length)

    async def write(
        self,
        principal: Principal,
        sandbox: str,
        path: str,
        chunks: AsyncIterable[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
        in_place: bool = False,
        user: User | None = None,
    ) -> Entry:
        """Write a file. The old file is replaced in one step, after the last chunk. If the call is cancelled, the old file stays.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            path: Path of the file.
            chunks: The content, read as fast as the sandbox writes.
            mode: Permission bits. None: the bits of the existing file, or the bits that the umask gives a new file.
            parents: Create missing parent folders.
            append: Append to the existing content instead of replacing the content.
            in_place: Truncate an existing file and write to it instead of replacing the file. Its inode, owner and mode stay, and ``mode`` is
                ignored. If the call fails or is cancelled, the file has the part that was written. Not with ``append``. A file with several hard
                links is always written in place, and gets ``mode``.
            user: User that writes the file. None: the user of the sandbox.

        Raises:
            LimitError: The disk of the sandbox is full (``disk_full``), or the content is larger than the quota of the caller allows
                (``quota_exceeded``).
            Exception: Reading ``chunks`` raised this exception.
        """
        live = self._registry.find(sandbox, principal)
        return await write(
            live,
            path,
            _within_quota(principal.quota, chunks),
            user=user or live.spec.user,
            mode=mode,
            parents=parents,
            append=append,
            in_place=in_place,
        )

    async def write_as_root(
        self, principal: Principal, sandbox: str, path: str, chunks: AsyncIterable[bytes], *, owner: User, attributes: Mapping[str, str]
    ) -> Entry:
        """Write a file with the permissions of root, and give the file and created folders to a user. Otherwise as :meth:`write`.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            path: Path of the file.
            chunks: The content.
            owner: Owner of the file, and of missing parent folders, which are created.
            attributes: Extended attributes of the file (xattr(7)), which replace all attributes whose names begin with ``user.``.
        """
        live = self._registry.find(sandbox, principal)
        return await write(live, path, _within_quota(principal.quota, chunks), user=User.ROOT, owner=owner, attributes=attributes)

    async def list(
        self, principal: Principal, sandbox: str, path: str, *, offset: int = 0, user: User | None = None, attributes: str | None = None
    ) -> Listing:
        """Return at most 1,000 entries of a folder, sorted by name, after the first ``offset`` entries. For ``attributes`` see :meth:`stat`."""
        live = self._registry.find(sandbox, principal)
        return await listing(live, path, user=user or live.spec.user, offset=offset, attributes=attributes)

    async def stat(
        self, principal: Principal, sandbox: str, path: str, *, follow: bool = True, user: User | None = None, attributes: str | None = None
    ) -> Entry:
        """Return type, size, times and permissions of a path.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            path: Path of the file.
            follow: Follow a symbolic link in the last part of the path.
            user: User whose permissions apply. None: the user of the sandbox.
            attributes: Prefix of the names of extended attributes to return. None returns no attributes.
        """
        live = self._registry.find(sandbox, principal)
        return await stat(live, path, user=user or live.spec.user, follow=follow, attributes=attributes)

    async def resolve(self, principal: Principal, sandbox: str, path: str, *, user: User | None = None) -> Entry:
        """Return the properties of the file or folder to which a path leads, with its path without symbolic links, as realpath(3)."""
        live = self._registry.find(sandbox, principal)
        return await resolve(live, path, user=user or live.spec.user)

    async def find_home(self, principal: Principal, sandbox: str, user: User) -> str:
        """Return the absolute path of the home directory of a user.

        Raises:
            InvalidRequestError: The sandbox has no such user.
        """
        async with self._registry.find(sandbox, principal).connection() as link:
            return await link.files.find_home(user)

    async def make_directory(
        self,
        principal: Principal,
        sandbox: str,
        path: str,
        *,
        parents: bool = True,
        mode: int | None = None,
        user: User | None = None,
        owner: User | None = None,
    ) -> Entry:
        """Create a folder. If ``parents`` is True, create missing parents, and raise no error if the folder exists already.

        Created folders belong to ``owner``, or to the user if it is None. An owner needs ``user`` root.
        """
        live = self._registry.find(sandbox, principal)
        return await make_directory(live, path, user=user or live.spec.user, parents=parents, mode=mode, owner=owner)

    async def move(self, principal: Principal, sandbox: str, path: str, to: str, *, overwrite: bool = False, user: User | None = None) -> Entry:
        """Move or rename a file or folder, and return its entry at the new path."""
        live = self._registry.find(sandbox, principal)
        return await move(live, path, to, user=user or live.spec.user, overwrite=overwrite)

    async def delete(self, principal: Principal, sandbox: str, path: str, *, recursive: bool = False, user: User | None = None) -> int:
        """Delete a file or folder, and return the number of deleted entries. A folder that is not empty needs ``recursive``."""
        live = self._registry.find(sandbox, principal)
        return await remove(live, path, user=user or live.spec.user, recursive=recursive)

    async def pack(self, principal: Principal, sandbox: str, path: str, *, compress: bool = False, user: User | None = None) -> Stream[bytes]:
        """Pack a folder or a single file as a tar archive, compressed with gzip if ``compress`` is True.

        If the last part of the path is a symbolic link, the link is followed. If the iteration raises an error, the archive is incomplete and has no
        end marker.
        """
        live = self._registry.find(sandbox, principal)
        return await archives.pack(live, path, user=user or live.spec.user, compress=compress)

    async def collect(self, principal: Principal, sandbox: str, paths: Sequence[str]) -> Stream[bytes]:
        """Read files and folders with their owners and attributes, in the format of ``core/files/overlay.py``: :func:`overlay.collect`."""
        return await overlay.collect(self._registry.find(sandbox, principal), paths)

    async def copy_files(self, principal: Principal, sandbox: str, chunks: AsyncIterable[bytes], *, owner: str = "") -> None:
        """Copy files in the format of ``core/files/overlay.py`` into a sandbox, with the rights of root: :func:`overlay.copy_files`."""
        await overlay.copy_files(self._registry.find(sandbox, principal), chunks, owner=owner)

    async def unpack(self, principal: Principal, sandbox: str, path: str, chunks: AsyncIterable[bytes], *, user: User | None = None) -> Unpacked:
        """Unpack a tar archive, plain or compressed with gzip, in a folder. The folder and its parents are created if they do not exist.

        The chunks are read as fast as the sandbox writes. If the call fails or is cancelled, entries that are already unpacked remain.

        Raises:
            InvalidRequestError: The data is not an archive, is damaged, or has an entry outside of the folder; the message names the entry.
            LimitError: The disk of the sandbox is full (``disk_full``), or the archive has more than 100,000 entries (``too_large``).
            Exception: Reading ``chunks`` raised this exception.
        """
        live = self._registry.find(sandbox, principal)
        return await archives.unpack(live, path, chunks, user=user or live.spec.user)


class FileDownload:
    """A file that is being read."""

    __slots__ = ("_closer", "_hold", "_reader", "_sandbox")

    def __init__(self, sandbox: Sandbox, reader: FileReader) -> None:
        self._sandbox = sandbox
        self._hold = Hold(sandbox.activity)
        self._reader = reader
        self._closer = StreamCloser()

    @property
    def entry(self) -> Entry:
        """Size, times and permissions of the file when it was opened."""
        return self._reader.entry

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the next piece of the content. While the caller does not read, at most one stream window is buffered."""
        try:
            return await self._closer.wait_next(self._reader.__anext__)
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def aclose(self) -> None:
        """Stop reading. Idempotent."""
        self._hold.release()
        await self._closer.aclose()
        await self._reader.aclose()


async def read(sandbox: Sandbox, path: str, *, user: User, offset: int = 0, length: int | None = None) -> FileDownload:
    """Open a file of a live sandbox: :meth:`FileService.read`."""
    path = sandbox.absolute_path(path)
    _check_range("offset", offset)
    if length is not None:
        _check_range("length", length)
    async with sandbox.connection() as link:
        return FileDownload(sandbox, await link.files.read(path, user=user, offset=offset, length=length))


def _within_quota(quota: Quota, chunks: AsyncIterable[bytes]) -> AsyncIterable[bytes]:
    return chunks if quota.upload_bytes is None else _checked(quota, chunks)


async def _checked(quota: Quota, chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield the content of an upload as long as its size is within a quota."""
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        check_upload(quota, size_bytes)
        yield chunk


async def write(
    sandbox: Sandbox,
    path: str,
    chunks: AsyncIterable[bytes],
    *,
    user: User,
    mode: int | None = None,
    parents: bool = True,
    append: bool = False,
    in_place: bool = False,
    owner: User | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Entry:
    """Write a file of a live sandbox: :meth:`FileService.write`."""
    path = sandbox.absolute_path(path)
    _check_mode(mode)
    if append and in_place:
        raise InvalidRequestError(
            "`append` and `in_place` exclude each other.", hint="Pass only `append` to keep the content of the file.", fields={"field": "in_place"}
        )
    async with sandbox.connection(None) as link:
        return await link.files.write(
            path, chunks, user=user, mode=mode, parents=parents, append=append, in_place=in_place, owner=owner, attributes=attributes
        )


async def listing(sandbox: Sandbox, path: str, *, user: User, offset: int = 0, attributes: str | None = None) -> Listing:
    """List a folder of a live sandbox: :meth:`FileService.list`."""
    path = sandbox.absolute_path(path)
    _check_range("offset", offset)
    async with sandbox.connection() as link:
        return await link.files.list(path, user=user, limit=LIMITS["entries"], offset=offset, attributes=attributes)


async def stat(sandbox: Sandbox, path: str, *, user: User, follow: bool = True, attributes: str | None = None) -> Entry:
    """Return the entry of a path in a live sandbox: :meth:`FileService.stat`."""
    path = sandbox.absolute_path(path)
    async with sandbox.connection() as link:
        return await link.files.stat(path, user=user, follow=follow, attributes=attributes)


async def resolve(sandbox: Sandbox, path: str, *, user: User) -> Entry:
    """Resolve the links of a path in a live sandbox: :meth:`FileService.resolve`."""
    path = sandbox.absolute_path(path)
    async with sandbox.connection() as link:
        return await link.files.resolve(path, user=user)


async def make_directory(
    sandbox: Sandbox, path: str, *, user: User, parents: bool = True, mode: int | None = None, owner: User | None = None
) -> Entry:
    """Create a folder in a live sandbox: :meth:`FileService.make_directory`."""
    path = sandbox.absolute_path(path)
    _check_mode(mode)
    async with sandbox.connection() as link:
        return await link.files.mkdir(path, user=user, parents=parents, mode=mode, owner=owner)


async def make_working_directory(sandbox: Sandbox, path: str) -> None:
    """Create the working directory of a new sandbox, with its missing parents, for the user of the sandbox. An existing folder is left as it is.

    The guest has already tried when it woke up. But a volume may since have been mounted above the folder, and the guest does not report failures.
    """
    try:
        await make_directory(sandbox, path, user=User.ROOT, owner=sandbox.spec.user)
    except ConflictError as error:
        raise InvalidRequestError(
            f"The working directory {path[:300]!r} cannot be created: it is a file.",
            code=ErrorCode.PATH_NOT_DIRECTORY,
            hint="Pass the path of a directory as `cwd`.",
            fields={"field": "cwd"},
        ) from error


async def move(sandbox: Sandbox, path: str, to: str, *, user: User, overwrite: bool = False) -> Entry:
    """Move a file or folder of a live sandbox: :meth:`FileService.move`."""
    path, to = sandbox.absolute_path(path), sandbox.absolute_path(to)
    async with sandbox.connection() as link:
        return await link.files.move(path, to, user=user, overwrite=overwrite)


async def remove(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False) -> int:
    """Delete a file or folder of a live sandbox: :meth:`FileService.delete`."""
    path = sandbox.absolute_path(path)
    async with sandbox.connection() as link:
        return await link.files.remove(path, user=user, recursive=recursive)


def _check_mode(mode: int | None) -> None:
    if mode is not None and not 0 <= mode <= MAX_MODE:
        raise InvalidRequestError(
            f"`mode` is {mode}; it must be from 0 to {MAX_MODE}.", hint="Pass permission bits, for example 420 (octal 644).", fields={"field": "mode"}
        )


def _check_range(name: str, value: int) -> None:
    if not 0 <= value < 1 << 63:
        raise InvalidRequestError(f"`{name}` is {value}; it must be from 0 to 2^63 - 1.", fields={"field": name})
