"""Files of a sandbox, and copies between a sandbox and this machine."""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Literal, Self, overload

import httpx

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError, UnavailableError
from sandlot.sdk import requests, responses
from sandlot.sdk._async import backend
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk._async.watches import AsyncFileWatch, AsyncWatchers
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.http import translated
from sandlot.sdk.models.files import FileEntry
from sandlot.sdk.transfer.download import ArchiveExtractor, PartialFile, below
from sandlot.sdk.transfer.upload import ALONE_BYTES, TransferProgress, UploadFile, UploadPlan, UploadProgress, packed, plan_upload

_log = logging.getLogger(__name__)


class AsyncFileStream:
    """Content of a file as it arrives, read as fast as it is iterated over. Close it, or read it to its end."""

    def __init__(self, transport: AsyncTransport, response: httpx.Response, resources: AsyncExitStack) -> None:
        self._transport = transport
        self._resources = resources
        self._pieces = response.aiter_bytes()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            with translated(self._transport.target):
                return await self._pieces.__anext__()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connection of the download."""
        await self._resources.aclose()


class AsyncFiles:
    """The files of one sandbox, as ``sandbox.files``. Paths in the sandbox are absolute."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/files"
        self.watchers = AsyncWatchers(transport, sandbox)
        """Watched directories whose events the service collects: :class:`AsyncWatchers`."""

    @overload
    async def read(self, path: str, format: Literal["text"] = "text", *, user: str | None = None) -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"], *, user: str | None = None) -> bytes: ...

    @overload
    async def read(self, path: str, format: Literal["stream"], *, user: str | None = None) -> AsyncFileStream: ...

    async def read(
        self,
        path: str,
        format: Literal["text", "bytes", "stream"] = "text",  # noqa: A002 - the field's word
        *,
        user: str | None = None,
    ) -> str | bytes | AsyncFileStream:
        """Read a file.

        Args:
            path: Path of the file.
            format: ``text`` (UTF-8), ``bytes``, or ``stream``: an iterator of bytes for files that do not fit into memory.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.

        Raises:
            NotFoundError: ``path_not_found``.
            InvalidRequestError: The path is a directory, or the file is not UTF-8 text.
        """
        resources = AsyncExitStack()
        params = requests.omit_none(path=path, user=user)
        response = await resources.enter_async_context(
            self._transport.stream("GET", f"{self._path}/content", params=params, accept="application/octet-stream")
        )
        stream = AsyncFileStream(self._transport, response, resources)
        if format == "stream":
            return stream
        content = bytearray()
        async for piece in stream:
            content += piece
        if format == "bytes":
            return bytes(content)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"{path} is not UTF-8 text: byte {error.start} is invalid.", hint='Read the file with `format="bytes"`.', fields={"path": path}
            ) from error

    async def write(
        self, path: str, data: backend.Data, *, user: str | None = None, mode: int | None = None, append: bool = False, in_place: bool = False
    ) -> FileEntry:
        """Write a file. Missing parent directories are created.

        An existing file is replaced when all data has arrived; an interrupted write does not change the file. With ``append`` or ``in_place``, and
        for a file with several hard links, an interrupted write leaves the part that has arrived.

        Args:
            path: Path of the file.
            data: Text, bytes, a file object or chunks of bytes. File objects and chunks are sent as they are read.
            user: Owner of the file, by name or uid; default: that of the sandbox.
            mode: Permission bits. Default: 0o644.
            append: Append to the file instead of replacing it.
            in_place: Write into an existing file instead of replacing it, for programs that have the file open or watch it, such as
                ``node --watch``: its inode, owner and mode stay, and ``mode`` is ignored. Not with ``append``. A file with several hard links is
                always written in place, and gets ``mode``.

        Raises:
            ForbiddenError: ``permission_denied``.
            LimitError: The disk of the sandbox is full.
        """
        params = requests.omit_none(path=path, user=user, mode=mode, append="true" if append else None, in_place="true" if in_place else None)
        content = requests.encode_text(data) if isinstance(data, str) else data
        response = await self._transport.request(
            "PUT", f"{self._path}/content", params=params, content=content if isinstance(content, bytes) else backend.chunks(content)
        )
        return structure(FileEntry, response)

    async def write_many(self, files: Mapping[str, backend.Data], *, user: str | None = None, mode: int | None = None) -> builtins.list[FileEntry]:
        """Write several files, one after another. Files that were written before an error stay.

        Args:
            files: Content by path, as for :meth:`write`.
            user: As for :meth:`write`.
            mode: As for :meth:`write`.
        """
        return [await self.write(path, data, user=user, mode=mode) for path, data in files.items()]

    async def list(self, path: str = ".", *, limit: int | None = None, user: str | None = None) -> builtins.list[FileEntry]:
        """List a directory by name.

        Args:
            path: Path of the directory.
            limit: Maximum number of entries. Default: all.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.
        """
        found: builtins.list[FileEntry] = []
        more = True
        while more and (limit is None or len(found) < limit):
            response = await self._transport.request("GET", self._path, params=requests.omit_none(path=path, user=user, offset=len(found) or None))
            page = structure_list(FileEntry, response, "entries")
            more = bool(response.get("more", False))
            responses.check_page(found, page, more=more)
            found += page
        return found[:limit]

    async def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileEntry:
        """Get type, size, mode, owner and time of a file, directory or link.

        Args:
            path: Path of the entry.
            follow: Describe the target of a symbolic link at the end of the path; False describes the link.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.

        Raises:
            NotFoundError: ``path_not_found``.
        """
        params = requests.omit_none(path=path, follow=None if follow else "false", user=user)
        return structure(FileEntry, await self._transport.request("GET", f"{self._path}/stat", params=params))

    async def realpath(self, path: str, *, user: str | None = None) -> str:
        """Return the path of a file or directory without symbolic links, ``.`` and ``..``.

        Raises:
            NotFoundError: ``path_not_found``: the path does not exist, or a link leads nowhere.
            InvalidRequestError: ``path_link_loop``.
        """
        params = requests.omit_none(path=path, user=user)
        return structure(FileEntry, await self._transport.request("GET", f"{self._path}/realpath", params=params)).path

    async def exists(self, path: str, *, follow: bool = True, user: str | None = None) -> bool:
        """Return True if the path exists.

        Args:
            path: Path.
            follow: Look for the target of a symbolic link at the end of the path; False looks for the link.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.
        """
        params = requests.omit_none(path=path, follow=None if follow else "false", user=user)
        response = await self._transport.request("GET", f"{self._path}/exists", params=params)
        return bool(response["exists"])

    @backend.awaitable_context
    async def watch(self, path: str = ".", *, recursive: bool = False, user: str | None = None) -> AsyncFileWatch:
        """Watch a directory: ``async with sandbox.files.watch() as events: async for event in events: ...``.

        Args:
            path: Path of the directory.
            recursive: Also watch directories below it, including new ones; at most 1,000.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.

        Returns:
            The changes from now on, until the directory is removed or the watch is closed.

        Raises:
            NotFoundError: ``path_not_found``.
            LimitError: There are too many directories.
        """
        resources = AsyncExitStack()
        params = requests.omit_none(path=path, user=user, recursive="true" if recursive else None)
        stream = await resources.enter_async_context(self._transport.event_stream("GET", f"{self._path}/watch", params=params))
        try:
            events = aiter(stream)
            started = await anext(events)  # the directory is watched from now on
        except BaseException:
            await resources.aclose()
            raise
        return AsyncFileWatch(stream, events, resources, str(started.data.get("by", "")))

    async def sign_url(self, path: str, *, method: Literal["GET", "PUT"] = "GET", expires_in: float = 3600.0, user: str | None = None) -> str:
        """Create a URL for reading or writing one file without an API key.

        The URL expires, at the latest with the API key that created it. For a local service that listens only on its unix socket, it is a path.

        Args:
            path: Path of the file.
            method: ``GET`` to read or ``PUT`` to write.
            expires_in: Seconds until the URL expires, at most 604,800.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.
        """
        body: dict[str, Any] = {"path": path, "method": method, "expires_in": expires_in, **requests.omit_none(user=user)}
        response = await self._transport.request("POST", f"{self._path}/signed-urls", body=body)
        return requests.rebase_url(str(response["url"]), None if self._transport.can_wait_silently else self._transport.target.base_url)

    async def make_dir(self, path: str, *, user: str | None = None, mode: int | None = None) -> bool:
        """Create a directory and its missing parents.

        Returns:
            True if the directory was created, False if it existed.

        Raises:
            ConflictError: ``path_exists``: the path is not a directory.
        """
        if await self._is_dir(path, user):
            return False
        await self._transport.request("POST", f"{self._path}/directories", body=requests.omit_none(path=path, parents=True, mode=mode, user=user))
        return True

    async def move(self, path: str, to: str, *, overwrite: bool = False, user: str | None = None) -> FileEntry:
        """Move or rename a file or directory.

        Args:
            path: Present path.
            to: New path.
            overwrite: Replace a file at the new path.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.

        Raises:
            NotFoundError: ``path_not_found``.
            ConflictError: ``path_exists``: the new path exists and ``overwrite`` is False.
        """
        body: dict[str, Any] = {"path": path, "to": to, "overwrite": overwrite, **requests.omit_none(user=user)}
        return structure(FileEntry, await self._transport.request("POST", f"{self._path}/move", body=body))

    rename = move

    async def remove(self, path: str, *, recursive: bool = True, user: str | None = None) -> int:
        """Delete a file or directory.

        Args:
            path: Path to delete; of a symbolic link, the link itself is deleted.
            recursive: Delete directories with their content.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.

        Returns:
            Number of deleted files and directories.

        Raises:
            NotFoundError: ``path_not_found``.
            ConflictError: ``path_not_empty``: the directory is not empty and ``recursive`` is False.
        """
        params = {"path": path, "recursive": "true" if recursive else "false", **requests.omit_none(user=user)}
        response = await self._transport.request("DELETE", self._path, params=params, read_timeout_s=None)
        return int(response.get("removed", 1))

    async def upload(
        self,
        local: str | Path,
        guest: str,
        *,
        user: str | None = None,
        in_place: bool = False,
        on_progress: backend.Callback[TransferProgress] | None = None,
        on_skip: backend.Callback[str] | None = None,
    ) -> int:
        """Copy a file or directory of this machine to a path in the sandbox.

        Symbolic links inside the directory are kept. Links that lead out of the directory, and everything that is neither file, directory nor link,
        are skipped. Hard links become separate files. Of the permissions, only the executable bit is kept.

        Args:
            local: Path on this machine. A symbolic link as the last part of this path is followed.
            guest: Path of the copy in the sandbox. Missing parent directories are created.
            user: Owner of the files, by name or uid; default: that of the sandbox.
            in_place: Write into existing files instead of replacing them, as in :meth:`write`. The files are then sent one after another.
            on_progress: Called after each chunk that was sent.
            on_skip: Called with a sentence about each entry that is skipped. Default: the sentence is logged as a warning.

        Returns:
            Number of copied files.

        Raises:
            NotFoundError: The local path does not exist.
        """
        plan = await backend.in_thread(plan_upload, Path(local), guest)
        for sentence in plan.skipped:
            await _note_skipped(on_skip, sentence)
        tally = UploadProgress(plan)
        for part in plan.parts(alone_bytes=0 if in_place else ALONE_BYTES):
            if part.directories or len(part.files) > 1:
                await self._send_tree(part, tally, plan.root, user, on_progress)
            else:
                await self._send_files(part, tally, user, on_progress, in_place=in_place)
        return len(plan.files)

    async def _send_tree(
        self, part: UploadPlan, tally: UploadProgress, root: str, user: str | None, on_progress: backend.Callback[TransferProgress] | None
    ) -> None:
        try:
            await self._transport.request(
                "POST",
                f"{self._path}/archive",
                params=requests.omit_none(path=root, user=user),
                content=self._packed(part, tally.begin(), root, on_progress),
                read_timeout_s=None,
            )
        except LimitError as error:
            if error.code not in {ErrorCode.TOO_LARGE, ErrorCode.QUOTA_EXCEEDED} or not part.files:
                raise
            # The limit of one upload is smaller than the archive. Send file by file; a file above the limit fails with its own error.
            tally.again()
            if part.directories:
                await self._send_tree(replace(part, files=()), tally, root, user, on_progress)
            await self._send_files(part, tally, user, on_progress)

    async def _packed(
        self, part: UploadPlan, tally: UploadProgress, root: str, on_progress: backend.Callback[TransferProgress] | None
    ) -> AsyncIterator[bytes]:
        pieces = packed(part, root, tally)
        while (piece := await backend.in_thread(next, pieces, None)) is not None:
            yield piece
            await backend.call(on_progress, tally.progress)

    async def _send_files(
        self,
        part: UploadPlan,
        tally: UploadProgress,
        user: str | None,
        on_progress: backend.Callback[TransferProgress] | None,
        *,
        in_place: bool = False,
    ) -> None:
        for file in part.files:
            mode = 0o755 if file.executable else 0o644
            with await backend.in_thread(file.source.open, "rb") as data:
                await self.write(file.guest, self._counted(data, file, tally, on_progress), user=user, mode=mode, in_place=in_place)
            tally.finish()
            await backend.call(on_progress, tally.progress)

    async def _counted(
        self, data: IO[bytes], file: UploadFile, tally: UploadProgress, on_progress: backend.Callback[TransferProgress] | None
    ) -> AsyncIterator[bytes]:
        async for piece in backend.chunks(data):
            yield piece
            tally.add(file, len(piece))
            await backend.call(on_progress, tally.progress)

    async def download(
        self,
        guest: str,
        local: str | Path,
        *,
        user: str | None = None,
        on_progress: backend.Callback[TransferProgress] | None = None,
        on_skip: backend.Callback[str] | None = None,
    ) -> int:
        """Copy a file or directory of the sandbox to a path on this machine.

        A file appears under its name only when it is complete; files that were complete before an error stay. Data from the sandbox is not trusted:
        names that lead out of the directory and paths deeper than 200 directories are refused, and no link below ``local`` is followed.

        Symbolic links inside the directory are kept; links that may lead out of it are skipped. Hard links become separate files. Of the
        permissions, only the executable bit is kept.

        Args:
            guest: Path in the sandbox.
            local: Path of the copy on this machine. Missing parent directories are created.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.
            on_progress: Called after each chunk that arrived.
            on_skip: Called with a sentence about each link that is skipped. Default: the sentence is logged as a warning.

        Returns:
            Number of copied files.

        Raises:
            NotFoundError: ``path_not_found``.
            InvalidRequestError: A name from the sandbox leads out of ``local``, or a path is too deep.
            ConflictError: A link, a directory or a file is in the way on this machine.
        """
        entry = await self.stat(guest, user=user)
        if entry.is_dir:
            return await self._receive_tree(entry.path, Path(local), user, on_progress, on_skip)
        await self._fetch(guest, Path(local), entry, user=user, on_progress=on_progress)
        return 1

    async def _receive_tree(
        self,
        guest: str,
        local: Path,
        user: str | None,
        on_progress: backend.Callback[TransferProgress] | None,
        on_skip: backend.Callback[str] | None,
    ) -> int:
        receiver = await backend.in_thread(ArchiveExtractor, local, guest)
        params = requests.omit_none(path=guest, user=user)
        try:
            async with self._transport.stream("GET", f"{self._path}/archive", params=params, accept="application/x-tar") as response:
                stream = AsyncFileStream(self._transport, response, AsyncExitStack())
                async for piece in stream:
                    await backend.in_thread(receiver.feed, piece)
                    for sentence in receiver.take_skipped():
                        await _note_skipped(on_skip, sentence)
                    path = below(guest, receiver.path)
                    await backend.call(on_progress, TransferProgress(path, receiver.size_bytes, None, receiver.files, None))
            await backend.in_thread(receiver.finish)
        except UnavailableError:
            receiver.explain()
            raise
        finally:
            receiver.discard()
        return receiver.files

    async def _fetch(
        self, path: str, target: Path, entry: FileEntry, *, user: str | None, on_progress: backend.Callback[TransferProgress] | None
    ) -> None:
        part = await backend.in_thread(PartialFile.create, target, bool(entry.mode & 0o111))
        done = 0
        try:
            async with await self.read(path, "stream", user=user) as pieces:
                async for piece in pieces:
                    await backend.in_thread(part.write, piece)
                    done += len(piece)
                    await backend.call(on_progress, TransferProgress(path, done, entry.size_bytes, 0, 1))
            await backend.in_thread(part.finish)
        finally:
            part.discard()
        await backend.call(on_progress, TransferProgress(path, done, done, 1, 1))

    async def _is_dir(self, path: str, user: str | None) -> bool:
        try:
            return (await self.stat(path, user=user)).is_dir
        except SandlotError as error:
            if error.code in {ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY}:
                return False
            raise


async def _note_skipped(on_skip: backend.Callback[str] | None, sentence: str) -> None:
    if on_skip is None:
        _log.warning("%s", sentence)
    else:
        await backend.call(on_skip, sentence)
