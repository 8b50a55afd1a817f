"""Read, write, list, move and remove files of a sandbox. The guest accesses the files inside the sandbox, with the rights of a given user."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from sandlot.core.sandbox import Hold, Sandbox
from sandlot.link.files import FileReader
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.files import Entry, Listing
from sandlot.model.specs import User, check_path
from sandlot.protocol.schema import LIMITS

MAX_MODE = 0o7777


class FileDownload:
    """A file that is being read. Iterate over its content, then close the download."""

    __slots__ = ("_hold", "_reader", "_sandbox")

    def __init__(self, sandbox: Sandbox, reader: FileReader) -> None:
        self._sandbox = sandbox
        self._hold = Hold(sandbox.activity)
        self._reader = reader

    @property
    def entry(self) -> Entry:
        """Size, times and permissions of the file when it was opened."""
        return self._reader.entry

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the content in pieces. While the caller does not read, at most one stream window is buffered."""
        try:
            async for piece in self._reader:
                yield piece
        except (SandboxEndedError, UnavailableError) as error:
            raise await self._sandbox.explain(error) from None

    async def aclose(self) -> None:
        """Stop reading. Idempotent."""
        self._hold.release()
        await self._reader.aclose()


async def read(sandbox: Sandbox, path: str, *, user: User, offset: int = 0, length: int | None = None) -> FileDownload:
    """Open a file for reading.

    Args:
        sandbox: Sandbox that has the file.
        path: Absolute path.
        user: User that reads the file.
        offset: Position of the first byte.
        length: Maximum number of bytes; None reads to the end.

    Raises:
        NotFoundError: The path does not exist (``path_not_found``).
        ForbiddenError: The user may not read the file (``permission_denied``).
        InvalidRequestError: The path is invalid or not a regular file, or a number is out of range.
    """
    check_path(path)
    _check_range("offset", offset)
    if length is not None:
        _check_range("length", length)
    async with sandbox.connection() as link:
        return FileDownload(sandbox, await link.files.read(path, user=user, offset=offset, length=length))


async def write(
    sandbox: Sandbox, path: str, chunks: AsyncIterable[bytes], *, user: User, mode: int | None = None, parents: bool = True, append: bool = False
) -> Entry:
    """Write a file. Unless ``append`` is set, the old content is replaced in one step, after the last chunk.

    Args:
        sandbox: Sandbox to write in.
        path: Absolute path.
        chunks: The content, read as fast as the sandbox writes.
        user: User that writes the file.
        mode: Permission bits. None: the bits of the existing file, or the bits that the umask gives a new file.
        parents: Create missing parent folders.
        append: Append to the existing content.

    Raises:
        SandlotError: As for :func:`read`, or the disk of the sandbox is full (``disk_full``).
    """
    check_path(path)
    _check_mode(mode)
    async with sandbox.connection(None) as link:
        return await link.files.write(path, chunks, user=user, mode=mode, parents=parents, append=append)


async def listing(sandbox: Sandbox, path: str, *, user: User, offset: int = 0) -> Listing:
    """Return at most 1,000 entries of a folder, sorted by name, after the first ``offset`` entries."""
    check_path(path)
    _check_range("offset", offset)
    async with sandbox.connection() as link:
        return await link.files.list(path, user=user, limit=LIMITS["entries"], offset=offset)


async def stat(sandbox: Sandbox, path: str, *, user: User, follow: bool = True) -> Entry:
    """Return type, size, times and permissions of a path.

    Args:
        sandbox: Sandbox that has the path.
        path: Absolute path.
        user: User that reads the entry.
        follow: If the last part of the path is a symbolic link, return the entry that the link points to.
    """
    check_path(path)
    async with sandbox.connection() as link:
        return await link.files.stat(path, user=user, follow=follow)


async def exists(sandbox: Sandbox, path: str, *, user: User, follow: bool = True) -> bool:
    """Return whether a path exists. If ``follow`` is False, a symbolic link whose target is missing counts as an existing path."""
    try:
        await stat(sandbox, path, user=user, follow=follow)
    except NotFoundError as error:
        if error.code is ErrorCode.PATH_NOT_FOUND:
            return False
        raise
    return True


async def make_directory(sandbox: Sandbox, path: str, *, user: User, parents: bool = True, mode: int | None = None) -> Entry:
    """Create a folder. If ``parents`` is True, create missing parents, and raise no error if the folder exists already."""
    check_path(path)
    _check_mode(mode)
    async with sandbox.connection() as link:
        return await link.files.mkdir(path, user=user, parents=parents, mode=mode)


async def move(sandbox: Sandbox, path: str, to: str, *, user: User, overwrite: bool = False) -> Entry:
    """Move or rename a file or folder."""
    check_path(path)
    check_path(to)
    async with sandbox.connection() as link:
        return await link.files.move(path, to, user=user, overwrite=overwrite)


async def remove(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False) -> int:
    """Remove a file or folder and return the number of removed entries."""
    check_path(path)
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
