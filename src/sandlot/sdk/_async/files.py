"""Files in a sandbox, and between it and this machine."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
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
from sandlot.sdk.transfer.upload import TransferProgress, UploadFile, UploadPlan, UploadProgress, packed, plan_upload


class AsyncFileStream:
    """The content of a file as it arrives, read only as fast as it is taken. Close it, or read it to its end."""

    def __init__(self, transport: AsyncTransport, response: httpx.Response, resources: AsyncExitStack) -> None:
        self._transport = transport
        self._resources = resources
        self._pieces = response.aiter_bytes()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            with translated(self._transport.target):
                return await self._pieces.__anext__()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Stop reading."""
        await self._resources.aclose()


class AsyncFiles:
    """The files of one sandbox. Every path in it is absolute."""

    def __init__(self, transport: AsyncTransport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/files"
        self.watchers = AsyncWatchers(transport, sandbox)
        """Folders that are watched for whoever asks later."""

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
            path: The file.
            format: ``text`` (UTF-8), ``bytes``, or ``stream``: an iterator of bytes, for files that memory should not hold.
            user: Whose permissions count: ``user`` (the default) or ``root``.

        Raises:
            NotFoundError: There is no such file.
            InvalidRequestError: It is a folder, or ``text`` was asked for and it is none.
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
                f"{path} is no UTF-8 text: byte {error.start} does not fit.", hint='Read it with format="bytes".', fields={"path": path}
            ) from error

    async def write(self, path: str, data: backend.Data, *, user: str | None = None, mode: int | None = None, append: bool = False) -> FileEntry:
        """Write a file; folders above it are made.

        Args:
            path: The file.
            data: Text, bytes, a file object, or pieces of bytes; the latter two are never held in memory as a whole.
            user: Who it belongs to: ``user`` (the default) or ``root``.
            mode: Permission bits, 0o644 by default.
            append: Add to the file instead of replacing it.

        Raises:
            ForbiddenError: The user may not write there.
            LimitError: The sandbox's disk is full.
        """
        params = requests.omit_none(path=path, user=user, mode=mode, append="true" if append else None)
        content = requests.encode_text(data) if isinstance(data, str) else data
        answer = await self._transport.request(
            "PUT", f"{self._path}/content", params=params, content=content if isinstance(content, bytes) else backend.chunks(content)
        )
        return structure(FileEntry, answer)

    async def list(self, path: str = "/workspace", *, user: str | None = None) -> builtins.list[FileEntry]:
        """What is in a folder, by name."""
        found: builtins.list[FileEntry] = []
        more = True
        while more:
            answer = await self._transport.request("GET", self._path, params=requests.omit_none(path=path, user=user, offset=len(found) or None))
            page = structure_list(FileEntry, answer, "entries")
            more = bool(answer.get("more", False))
            responses.check_page(found, page, more=more)
            found += page
        return found

    async def stat(self, path: str, *, user: str | None = None) -> FileEntry:
        """What is at a path.

        Raises:
            NotFoundError: Nothing.
        """
        return structure(FileEntry, await self._transport.request("GET", f"{self._path}/stat", params=requests.omit_none(path=path, user=user)))

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether there is something at a path."""
        answer = await self._transport.request("GET", f"{self._path}/exists", params=requests.omit_none(path=path, user=user))
        return bool(answer["exists"])

    async def watch(self, path: str = "/workspace", *, recursive: bool = False, user: str | None = None) -> AsyncFileWatch:
        """Watch a folder: ``async with await sandbox.files.watch("/workspace") as events: async for event in events: ...``.

        Args:
            path: The folder.
            recursive: Whether the folders in it are watched too, those that come later included; 1,000 at most.
            user: Whose permissions count.

        Returns:
            What happens from now on, until the folder is gone or it is closed.

        Raises:
            NotFoundError: There is no such folder.
            LimitError: There are too many folders in it.
        """
        resources = AsyncExitStack()
        params = requests.omit_none(path=path, user=user, recursive="true" if recursive else None)
        events = await resources.enter_async_context(self._transport.event_stream("GET", f"{self._path}/watch", params=params))
        try:
            begun = await events.__anext__()
        except BaseException:
            await resources.aclose()
            raise
        return AsyncFileWatch(events, resources, str(begun.data.get("by", "")))

    async def sign_url(self, path: str, *, method: Literal["GET", "PUT"] = "GET", expires_in: float = 3600.0, user: str | None = None) -> str:
        """A URL by which anybody can read, or write, one file for a while, without a key.

        It ends with the API key that made it. A local service that listens on no address gives a path that only its socket serves.

        Args:
            path: The file.
            method: ``GET`` reads it, ``PUT`` writes it.
            expires_in: Seconds that it holds, at most 604,800.
            user: Who it is done as.
        """
        body: dict[str, Any] = {"path": path, "method": method, "expires_in": expires_in, **requests.omit_none(user=user)}
        answer = await self._transport.request("POST", f"{self._path}/signed-urls", body=body)
        return requests.rebase_url(str(answer["url"]), None if self._transport.can_wait_silently else self._transport.target.base_url)

    async def make_dir(self, path: str, *, user: str | None = None, mode: int | None = None) -> bool:
        """Make a folder, and those above it.

        Returns:
            True when it was made, False when it was there.

        Raises:
            ConflictError: There is something else at this path.
        """
        if await self._is_dir(path, user):
            return False
        await self._transport.request("POST", f"{self._path}/directories", body=requests.omit_none(path=path, parents=True, mode=mode, user=user))
        return True

    async def move(self, path: str, to: str, *, overwrite: bool = False, user: str | None = None) -> FileEntry:
        """Move a file or folder, or give it another name.

        Raises:
            ConflictError: There is something at the new path, and it may not be overwritten.
        """
        body: dict[str, Any] = {"path": path, "to": to, "overwrite": overwrite, **requests.omit_none(user=user)}
        return structure(FileEntry, await self._transport.request("POST", f"{self._path}/move", body=body))

    rename = move

    async def remove(self, path: str, *, recursive: bool = True, user: str | None = None) -> int:
        """Remove a file or folder.

        Args:
            path: What to remove; a symbolic link is removed itself, never what it points to.
            recursive: Whether a folder that is not empty is removed with everything in it.
            user: Whose permissions count.

        Returns:
            How many files and folders were removed.
        """
        params = {"path": path, "recursive": "true" if recursive else "false", **requests.omit_none(user=user)}
        answer = await self._transport.request("DELETE", self._path, params=params, read_timeout_s=None)
        return int(answer.get("removed", 1))

    async def upload(
        self, local: str | Path, guest: str, *, user: str | None = None, on_progress: backend.Callback[TransferProgress] | None = None
    ) -> int:
        """Copy a file or folder of this machine into the sandbox, under exactly this path.

        Folders are copied with everything in them. A link to a file is copied as that file; a link to a folder is left out, and so is what is
        neither file nor folder. Of the permissions, only "executable" is kept.

        Args:
            local: The file or folder.
            guest: Its absolute path in the sandbox; folders above it are made.
            user: Who it belongs to.
            on_progress: Called with each piece that was sent.

        Returns:
            How many files were copied.

        Raises:
            NotFoundError: There is no such file here.
        """
        plan = await backend.in_thread(plan_upload, Path(local), guest)
        tally = UploadProgress(plan)
        for part in plan.parts():
            if part.folders or len(part.files) > 1:
                await self._send_tree(part, tally, plan.root, user, on_progress)
            else:
                await self._send_files(part, tally, user, on_progress)
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
            # An upload may be smaller here than an archive is; what does not fit by itself either fails as it should.
            tally.again()
            for folder in part.folders:
                await self.make_dir(folder, user=user)
            await self._send_files(part, tally, user, on_progress)

    async def _packed(
        self, part: UploadPlan, tally: UploadProgress, root: str, on_progress: backend.Callback[TransferProgress] | None
    ) -> AsyncIterator[bytes]:
        pieces = packed(part, root, tally)
        while (piece := await backend.in_thread(next, pieces, None)) is not None:
            yield piece
            await backend.call(on_progress, tally.progress)

    async def _send_files(
        self, part: UploadPlan, tally: UploadProgress, user: str | None, on_progress: backend.Callback[TransferProgress] | None
    ) -> None:
        for file in part.files:
            mode = 0o755 if file.executable else 0o644
            with await backend.in_thread(file.source.open, "rb") as data:
                await self.write(file.guest, self._counted(data, file, tally, on_progress), user=user, mode=mode)
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
        self, guest: str, local: str | Path, *, user: str | None = None, on_progress: backend.Callback[TransferProgress] | None = None
    ) -> int:
        """Copy a file or folder of the sandbox to this machine, under exactly this path.

        A file appears under its name only once it is complete. What the sandbox says is not trusted: names that would leave the folder are
        refused, and so is what lies deeper than 200 folders; links inside of a folder are left out, and below ``local`` no link of this machine is
        followed. Of the permissions, only "executable" is kept. Files that were complete before an error stay.

        Args:
            guest: The absolute path in the sandbox.
            local: Where to put it; folders above it are made.
            user: Whose permissions count.
            on_progress: Called with each piece that came.

        Returns:
            How many files were copied.

        Raises:
            NotFoundError: There is no such file in the sandbox.
            InvalidRequestError: The sandbox names a file that would lie outside of ``local``, or lies too deep.
            ConflictError: Something else is in the way on this machine: a link, a folder, or a file where a folder is to be.
            SandlotError: This machine does not take it: its disk is full, most of all.
        """
        entry = await self.stat(guest, user=user)
        if entry.is_dir:
            return await self._receive_tree(guest, Path(local), user, on_progress)
        await self._fetch(guest, Path(local), entry, user=user, on_progress=on_progress)
        return 1

    async def _receive_tree(self, guest: str, local: Path, user: str | None, on_progress: backend.Callback[TransferProgress] | None) -> int:
        receiver = await backend.in_thread(ArchiveExtractor, local)
        params = requests.omit_none(path=guest, user=user)
        try:
            async with self._transport.stream("GET", f"{self._path}/archive", params=params, accept="application/x-tar") as response:
                stream = AsyncFileStream(self._transport, response, AsyncExitStack())
                async for piece in stream:
                    await backend.in_thread(receiver.feed, piece)
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
