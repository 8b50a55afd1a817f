"""Files in a sandbox, and between it and this machine."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, Self, overload

import httpx

from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError
from sandlot.sdk import transfer, wire
from sandlot.sdk._async import backend
from sandlot.sdk._async.client import AsyncClient
from sandlot.sdk.info import Entry
from sandlot.sdk.transport import translated


class AsyncFileStream:
    """The content of a file as it arrives, read only as fast as it is taken. Close it, or read it to its end."""

    def __init__(self, client: AsyncClient, response: httpx.Response, resources: AsyncExitStack) -> None:
        self._client = client
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
            with translated(self._client.target):
                return await self._pieces.__anext__()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Stop reading."""
        await self._resources.aclose()


class AsyncFiles:
    """The files of one sandbox. Every path in it is absolute."""

    def __init__(self, client: AsyncClient, sandbox: str) -> None:
        self._client = client
        self._path = f"/v1/sandboxes/{sandbox}/files"

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
        params = wire.given(path=path, user=user)
        response = await resources.enter_async_context(
            self._client.stream("GET", f"{self._path}/content", params=params, accept="application/octet-stream")
        )
        stream = AsyncFileStream(self._client, response, resources)
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

    async def write(self, path: str, data: backend.Data, *, user: str | None = None, mode: int | None = None, append: bool = False) -> Entry:
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
        params = wire.given(path=path, user=user, mode=mode, append="true" if append else None)
        content = wire.utf8(data) if isinstance(data, str) else data
        answer = await self._client.request(
            "PUT", f"{self._path}/content", params=params, content=content if isinstance(content, bytes) else backend.chunks(content)
        )
        return Entry.parse(answer)

    async def list(self, path: str = "/workspace", *, user: str | None = None) -> builtins.list[Entry]:
        """What is in a folder, by name."""
        found: builtins.list[Entry] = []
        more = True
        while more:
            answer = await self._client.request("GET", self._path, params=wire.given(path=path, user=user, offset=len(found) or None))
            page = [Entry.parse(raw) for raw in answer["entries"]]
            more = bool(answer.get("more", False))
            wire.check_page(found, page, more=more)
            found += page
        return found

    async def stat(self, path: str, *, user: str | None = None) -> Entry:
        """What is at a path.

        Raises:
            NotFoundError: Nothing.
        """
        return Entry.parse(await self._client.request("GET", f"{self._path}/stat", params=wire.given(path=path, user=user)))

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether there is something at a path."""
        try:
            await self.stat(path, user=user)
        except SandlotError as error:
            if error.code is ErrorCode.PATH_NOT_FOUND:
                return False
            raise
        return True

    async def make_dir(self, path: str, *, user: str | None = None, mode: int | None = None) -> bool:
        """Make a folder, and those above it.

        Returns:
            True when it was made, False when it was there.

        Raises:
            ConflictError: There is something else at this path.
        """
        if await self._is_dir(path, user):
            return False
        await self._client.request("POST", f"{self._path}/directories", body=wire.given(path=path, parents=True, mode=mode, user=user))
        return True

    async def move(self, path: str, to: str, *, overwrite: bool = False, user: str | None = None) -> Entry:
        """Move a file or folder, or give it another name.

        Raises:
            ConflictError: There is something at the new path, and it may not be overwritten.
        """
        body: dict[str, Any] = {"path": path, "to": to, "overwrite": overwrite, **wire.given(user=user)}
        return Entry.parse(await self._client.request("POST", f"{self._path}/move", body=body))

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
        params = {"path": path, "recursive": "true" if recursive else "false", **wire.given(user=user)}
        answer = await self._client.request("DELETE", self._path, params=params, read_timeout_s=None)
        return int(answer.get("removed", 1))

    async def upload(self, local: str | Path, guest: str, *, user: str | None = None) -> int:
        """Copy a file or folder of this machine into the sandbox, under exactly this path.

        Folders are copied with everything in them. A link to a file is copied as that file; a link to a folder is left out, and so is what is neither
        file nor folder. Of the permissions, only "executable" is kept.

        Args:
            local: The file or folder.
            guest: Its absolute path in the sandbox; folders above it are made.
            user: Who it belongs to.

        Returns:
            How many files were copied.

        Raises:
            NotFoundError: There is no such file here.
        """
        plan = await backend.in_thread(transfer.plan_upload, Path(local), guest)
        for folder in plan.folders:
            await self.make_dir(folder, user=user)
        for file in plan.files:
            with await backend.in_thread(file.source.open, "rb") as data:
                await self.write(file.guest, data, user=user, mode=0o755 if file.executable else 0o644)
        return len(plan.files)

    async def download(self, guest: str, local: str | Path, *, user: str | None = None) -> int:
        """Copy a file or folder of the sandbox to this machine, under exactly this path.

        A file appears under its name only once it is complete. What the sandbox says is not trusted: names that would leave the folder are refused,
        links inside of a folder are left out, and of the permissions only "executable" is kept.

        Args:
            guest: The absolute path in the sandbox.
            local: Where to put it; folders above it are made.
            user: Whose permissions count.

        Returns:
            How many files were copied.

        Raises:
            NotFoundError: There is no such file in the sandbox.
            InvalidRequestError: The sandbox names a file that would lie outside of ``local``.
        """
        copied = 0
        pending = [(await self.stat(guest, user=user), guest, Path(local))]
        while pending:
            entry, path, target = pending.pop()
            if entry.is_dir:
                await backend.in_thread(transfer.make_folder, target)
                pending += [
                    (child, transfer.child_of(path, child.name), target / child.name)
                    for child in await self.list(path, user=user)
                    if child.kind in {"file", "directory"}
                ]
            else:
                await self._fetch(path, target, executable=bool(entry.mode & 0o111), user=user)
                copied += 1
        return copied

    async def _fetch(self, path: str, target: Path, *, executable: bool, user: str | None) -> None:
        part = await backend.in_thread(transfer.PartFile.create, target, executable)
        try:
            async with await self.read(path, "stream", user=user) as pieces:
                async for piece in pieces:
                    await backend.in_thread(part.write, piece)
            await backend.in_thread(part.finish)
        finally:
            part.discard()

    async def _is_dir(self, path: str, user: str | None) -> bool:
        try:
            return (await self.stat(path, user=user)).is_dir
        except SandlotError as error:
            if error.code is ErrorCode.PATH_NOT_FOUND:
                return False
            raise
