"""The file store: files that outlive sandboxes, as ``client.files``."""

from __future__ import annotations

import builtins
import mimetypes
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from sandlot.model.errors import InvalidRequestError
from sandlot.sdk import requests
from sandlot.sdk._async import backend
from sandlot.sdk._async.transport import AsyncTransport
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.http import translated
from sandlot.sdk.models.file_store import StoredFile, StoredFiles
from sandlot.sdk.models.files import FileEntry
from sandlot.sdk.transfer.download import PartialFile
from sandlot.sdk.transfer.upload import TransferProgress, plan_upload


class AsyncFileStore:
    """The files of a service: uploaded once, put into any number of sandboxes."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def upload(
        self,
        source: str | Path | backend.Data,
        *,
        filename: str | None = None,
        media_type: str | None = None,
        on_progress: backend.Callback[TransferProgress] | None = None,
    ) -> StoredFile:
        """Keep a file.

        Args:
            source: A :class:`~pathlib.Path` or the text of one is that file; bytes, a file object or pieces of bytes are the content itself.
            filename: What it is called: one path component; of a path, its last part where left out.
            media_type: Such as ``text/csv``; guessed from the name where left out.
            on_progress: Called with each piece that was sent.

        Raises:
            NotFoundError: There is no such file here.
            LimitError: It is larger than the service takes, or than this key may upload.
        """
        if isinstance(source, str | Path):
            path = Path(source)
            file = (await backend.in_thread(plan_upload, path, "/file")).files[:1]
            if not file:
                raise InvalidRequestError(f"{path} is a folder.", hint="Upload its files, or an archive of it.", fields={"path": str(path)})
            with await backend.in_thread(path.open, "rb") as data:
                return await self._send(data, filename or path.name, media_type, file[0].size_bytes, on_progress)
        name = filename or Path(str(getattr(source, "name", ""))).name
        if not name:
            raise InvalidRequestError("The file has no name.", hint="Give filename=.", fields={"field": "filename"})
        return await self._send(source, name, media_type, None, on_progress)

    async def list(self, *, limit: int = 50, offset: int = 0) -> StoredFiles:
        """A page of files, newest first, and how many there are in all.

        Args:
            limit: Files on the page, at most; 1 to 1,000.
            offset: Files to skip.
        """
        return structure(StoredFiles, await self._transport.request("GET", "/v1/files", params={"limit": limit, "offset": offset}))

    async def get(self, file: str) -> StoredFile:
        """What is known of a file.

        Raises:
            NotFoundError: There is none of this id.
        """
        return structure(StoredFile, await self._transport.request("GET", self._path(file)))

    async def read(self, file: str) -> bytes:
        """All of a file's bytes; :meth:`stream` and :meth:`download` are for those that memory should not hold.

        Raises:
            NotFoundError: There is none of this id.
        """
        content = bytearray()
        async with self.stream(file) as pieces:
            async for piece in pieces:
                content += piece
        return bytes(content)

    @asynccontextmanager
    async def stream(self, file: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """A file's bytes as they arrive; leaving the context ends the download.

        Raises:
            NotFoundError: There is none of this id.
        """
        async with self._transport.stream("GET", f"{self._path(file)}/content", accept="*/*") as response:
            yield self._pieces(response)

    async def download(self, file: str, local: str | Path, *, on_progress: backend.Callback[TransferProgress] | None = None) -> Path:
        """Copy a file to this machine. It appears under its name only once it is complete.

        Args:
            file: Its id.
            local: Where to put it: a path; in a folder that is there, under the file's own name.
            on_progress: Called with each piece that arrived.

        Returns:
            Where it is now.

        Raises:
            NotFoundError: There is none of this id.
            SandlotError: This machine does not take it: something is in the way, or its disk is full.
        """
        target, known = Path(local), await self.get(file)
        done = 0
        if await backend.in_thread(target.is_dir):
            name = known.filename
            if name in {"", ".", ".."} or "/" in name or "\0" in name:
                raise InvalidRequestError(f"The service names a file {name!r}, which would lie elsewhere.", hint="Give the whole path.")
            target /= name
        part = await backend.in_thread(PartialFile.create, target, False)
        try:
            async with self.stream(file) as pieces:
                async for piece in pieces:
                    await backend.in_thread(part.write, piece)
                    done += len(piece)
                    await backend.call(on_progress, TransferProgress(known.filename, done, known.size_bytes, 0, 1))
            await backend.in_thread(part.finish)
        finally:
            part.discard()
        return target

    async def delete(self, file: str) -> None:
        """Remove a file; copies of it in sandboxes stay.

        Raises:
            NotFoundError: There is none of this id.
        """
        await self._transport.request("DELETE", self._path(file))

    async def inject(self, sandbox: str, files: Iterable[str], *, path: str = "/workspace", user: str | None = None) -> builtins.list[FileEntry]:
        """Put files into a sandbox, each under its own name; one that is there already is replaced.

        Args:
            sandbox: Its id.
            files: The files' ids.
            path: The folder; made where it is not there.
            user: Whose they will be: ``user`` (the default) or ``root``.

        Returns:
            Where they are now, in the same order.

        Raises:
            NotFoundError: There is no such sandbox, or no such file.
        """
        body = {"file_ids": [*files], "path": path, **requests.omit_none(user=user)}
        answer = await self._transport.request("POST", f"/v1/sandboxes/{requests.path_segment(sandbox)}/files/import", body=body)
        return structure_list(FileEntry, answer, "entries")

    async def keep(self, sandbox: str, path: str, *, filename: str | None = None, user: str | None = None) -> StoredFile:
        """Copy a file out of a sandbox into the file store, where it outlives the sandbox.

        Args:
            sandbox: Its id.
            path: The file, absolute.
            filename: What it is called in the file store; the last part of its path where left out.
            user: Whose permissions count.

        Raises:
            NotFoundError: There is no such sandbox, or no such file.
        """
        body = requests.omit_none(path=path, filename=filename, user=user)
        return structure(StoredFile, await self._transport.request("POST", f"/v1/sandboxes/{requests.path_segment(sandbox)}/files/export", body=body))

    async def _send(
        self,
        data: backend.Data,
        filename: str,
        media_type: str | None,
        total: int | None,
        on_progress: backend.Callback[TransferProgress] | None,
    ) -> StoredFile:
        kind = media_type or mimetypes.guess_type(f"./{filename}")[0]
        params = requests.omit_none(filename=filename, media_type=kind)
        content = data if isinstance(data, bytes) else self._told(backend.chunks(data), filename, total, on_progress)
        return structure(StoredFile, await self._transport.request("POST", "/v1/files", params=params, content=content))

    async def _told(
        self, chunks: AsyncIterator[bytes], filename: str, total: int | None, on_progress: backend.Callback[TransferProgress] | None
    ) -> AsyncIterator[bytes]:
        done = 0
        async for piece in chunks:
            yield piece
            done += len(piece)
            await backend.call(on_progress, TransferProgress(filename, done, total, 0, 1))

    async def _pieces(self, response: httpx.Response) -> AsyncIterator[bytes]:
        with translated(self._transport.target):
            async for piece in response.aiter_bytes():
                yield bytes(piece)

    def _path(self, file: str) -> str:
        return f"/v1/files/{requests.path_segment(file)}"
