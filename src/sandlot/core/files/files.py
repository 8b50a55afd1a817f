"""Files in a sandbox. The guest does the work, as the user that was asked for; paths mean what they mean inside."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

from sandlot.core.sandbox import Sandbox
from sandlot.link.client import FileReader
from sandlot.link.types import Entry, Listing
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError, SandboxEndedError, UnavailableError
from sandlot.model.specs import User, check_path
from sandlot.protocol.schema import LIMITS

MAX_MODE = 0o7777


class FileDownload:
    """One file that is being read: its entry first, then its content.

    Args:
        sandbox: Where it is.
        reader: The link's end of it.
    """

    __slots__ = ("_hold", "_reader", "_sandbox")

    def __init__(self, sandbox: Sandbox, reader: FileReader) -> None:
        self._sandbox = sandbox
        self._hold = sandbox.hold()
        self._reader = reader

    @property
    def entry(self) -> Entry:
        """What is being read, as it was at the start."""
        return self._reader.entry

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The content. One that is not iterated costs no more than a stream's window.

        Raises:
            SandboxEndedError: The sandbox ended meanwhile; says why.
        """
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
        sandbox: Where.
        path: Absolute.
        user: Who reads.
        offset: First byte.
        length: How many bytes at most; None is all.

    Raises:
        NotFoundError: ``path_not_found``.
        ForbiddenError: ``permission_denied``.
        InvalidRequestError: No path, or no regular file.
        SandboxEndedError: The sandbox has ended.
    """
    check_path(path)
    _check_range("offset", offset)
    if length is not None:
        _check_range("length", length)
    async with sandbox.connection() as link:
        return FileDownload(sandbox, await link.read_file(path, user=user, offset=offset, length=length))


async def write(
    sandbox: Sandbox, path: str, chunks: AsyncIterable[bytes], *, user: User, mode: int | None = None, parents: bool = True, append: bool = False
) -> Entry:
    """Write a file. Until the last chunk was written the old content stays, unless it is appended to.

    Args:
        sandbox: Where.
        path: Absolute.
        chunks: The content, taken as fast as the sandbox takes it.
        user: Who writes.
        mode: Permission bits; None leaves them to the umask, or as they are.
        parents: Make the folders above it.
        append: Add to what is there.

    Raises:
        SandlotError: As for :func:`read`; also ``disk_full``.
    """
    check_path(path)
    _check_mode(mode)
    async with sandbox.connection(None) as link:
        return await link.write_file(path, chunks, user=user, mode=mode, parents=parents, append=append)


async def listing(sandbox: Sandbox, path: str, *, user: User, offset: int = 0) -> Listing:
    """What is in a folder by name, at most 1,000 entries from ``offset`` names on."""
    check_path(path)
    _check_range("offset", offset)
    async with sandbox.connection() as link:
        return await link.list_dir(path, user=user, limit=LIMITS["entries"], offset=offset)


async def stat(sandbox: Sandbox, path: str, *, user: User, follow: bool = True) -> Entry:
    """What is at a path."""
    check_path(path)
    async with sandbox.connection() as link:
        return await link.stat(path, user=user, follow=follow)


async def exists(sandbox: Sandbox, path: str, *, user: User, follow: bool = True) -> bool:
    """Whether there is something at a path; a link that leads nowhere counts where it is not followed."""
    try:
        await stat(sandbox, path, user=user, follow=follow)
    except NotFoundError as error:
        if error.code is ErrorCode.PATH_NOT_FOUND:
            return False
        raise
    return True


async def make_directory(sandbox: Sandbox, path: str, *, user: User, parents: bool = True, mode: int | None = None) -> Entry:
    """Make a folder; with ``parents`` those above it as well, and one that is there already is fine."""
    check_path(path)
    _check_mode(mode)
    async with sandbox.connection() as link:
        return await link.mkdir(path, user=user, parents=parents, mode=mode)


async def move(sandbox: Sandbox, path: str, to: str, *, user: User, overwrite: bool = False) -> Entry:
    """Move or rename."""
    check_path(path)
    check_path(to)
    async with sandbox.connection() as link:
        return await link.move(path, to, user=user, overwrite=overwrite)


async def remove(sandbox: Sandbox, path: str, *, user: User, recursive: bool = False) -> int:
    """Remove a file or a folder; how many entries were removed."""
    check_path(path)
    async with sandbox.connection() as link:
        return await link.remove(path, user=user, recursive=recursive)


def _check_mode(mode: int | None) -> None:
    if mode is not None and not 0 <= mode <= MAX_MODE:
        raise InvalidRequestError(f"{mode} is not a file mode.", hint="Permission bits are from 0 to 4095 (octal 7777).", fields={"field": "mode"})


def _check_range(name: str, value: int) -> None:
    if not 0 <= value < 1 << 63:
        raise InvalidRequestError(f"{name} is {value}; it must be from 0 to 2^63 - 1.", fields={"field": name})
