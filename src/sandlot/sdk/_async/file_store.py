"""The file store, as ``client.file_store``."""

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
from sandlot.sdk.models.file_store import StoredFile
from sandlot.sdk.models.files import FileEntry
from sandlot.sdk.transfer.download import PartialFile
from sandlot.sdk.transfer.upload import TransferProgress, plan_upload


class AsyncFileStore:
    """The caller's stored files, which outlive sandboxes; with an operator's key, everybody's."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def upload(
        self,
        data: str | Path | backend.Data,
        *,
        filename: str | None = None,
        media_type: str | None = None,
        on_progress: backend.Callback[TransferProgress] | None = None,
    ) -> StoredFile:
        """Store a file.

        Args:
            data: Path of a file on this machine as text or :class:`~pathlib.Path`, or the content: bytes, a file object or chunks of bytes.
            filename: Name of the stored file, without directories. Default: the name of the file on this machine.
            media_type: Media type, such as ``text/csv``. Default: guessed from the name.
            on_progress: Called after each chunk that was sent.

        Raises:
            NotFoundError: The local file does not exist.
            InvalidRequestError: The path is a directory, or content has no ``filename``.
            LimitError: The file is larger than the service or the quota allows.
        """
        if isinstance(data, str | Path):
            path = Path(data)
            file = (await backend.in_thread(plan_upload, path, "/file")).files[:1]
            if not file:
                raise InvalidRequestError(
                    f"{path} is a directory.", hint="Upload the files in the directory, or an archive of them.", fields={"path": str(path)}
                )
            with await backend.in_thread(path.open, "rb") as content:
                return await self._send(content, filename or path.name, media_type, file[0].size_bytes, on_progress)
        name = filename or Path(str(getattr(data, "name", ""))).name
        if not name:
            raise InvalidRequestError("The file has no name.", hint="Pass `filename`.", fields={"field": "filename"})
        return await self._send(data, name, media_type, None, on_progress)

    async def list(self, *, limit: int | None = None) -> builtins.list[StoredFile]:
        """List stored files, newest first.

        Args:
            limit: Maximum number of files. Default: all.
        """
        return await backend.collected(self.iter(limit=limit))

    def iter(self, *, limit: int | None = None) -> AsyncIterator[StoredFile]:
        """Iterate over stored files, newest first, and read them page by page. Arguments as in :meth:`list`."""
        return self._transport.paginate("/v1/files", "files", StoredFile, limit=limit)

    async def get(self, file: str) -> StoredFile:
        """Get name, type, size and digest of a stored file by its id.

        Raises:
            NotFoundError: ``file_not_found``.
        """
        return structure(StoredFile, await self._transport.request("GET", self._path(file)))

    async def read(self, file: str) -> bytes:
        """Read a stored file into memory; :meth:`stream` and :meth:`download` are for files that do not fit.

        Raises:
            NotFoundError: ``file_not_found``.
        """
        content = bytearray()
        async with self.stream(file) as pieces:
            async for piece in pieces:
                content += piece
        return bytes(content)

    @asynccontextmanager
    async def stream(self, file: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Iterate over the content of a stored file: ``async with client.file_store.stream(id) as chunks: async for chunk in chunks: ...``.

        Raises:
            NotFoundError: ``file_not_found``.
        """
        async with self._transport.stream("GET", f"{self._path(file)}/content", accept="*/*") as response:
            yield self._pieces(response)

    async def download(self, file: str, local: str | Path, *, on_progress: backend.Callback[TransferProgress] | None = None) -> Path:
        """Copy a stored file to this machine. The file appears under its name only when it is complete.

        Args:
            file: Id of the stored file.
            local: Path of the copy, or an existing directory for a copy with the name of the stored file.
            on_progress: Called after each chunk that arrived.

        Returns:
            Path of the copy.

        Raises:
            NotFoundError: ``file_not_found``.
            ConflictError: A link or a directory is in the way on this machine.
        """
        target, known = Path(local), await self.get(file)
        done = 0
        if await backend.in_thread(target.is_dir):
            name = known.filename
            if name in {"", ".", ".."} or "/" in name or "\0" in name:
                raise InvalidRequestError(
                    f"The stored file has the name {name!r}, which leads out of the directory.",
                    hint="Pass the path of a local file as `local`, with a name of your choice.",
                )
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
        """Delete a stored file; copies in sandboxes stay.

        Raises:
            NotFoundError: ``file_not_found``.
        """
        await self._transport.request("DELETE", self._path(file))

    async def import_files(self, sandbox: str, ids: Iterable[str], *, path: str = ".", user: str | None = None) -> builtins.list[FileEntry]:
        """Copy stored files into a sandbox under their names; existing files are replaced.

        Args:
            sandbox: Id or name of the sandbox.
            ids: Ids of the stored files.
            path: Directory of the copies; it is created if it does not exist.
            user: Owner of the copies, by name or uid; default: that of the sandbox.

        Returns:
            The copies, in the order of ``ids``.

        Raises:
            NotFoundError: ``sandbox_not_found`` or ``file_not_found``.
        """
        body = {"file_ids": [*ids], "path": path, **requests.omit_none(user=user)}
        response = await self._transport.request("POST", f"/v1/sandboxes/{requests.path_segment(sandbox)}/files/import", body=body)
        return structure_list(FileEntry, response, "entries")

    async def export_file(self, sandbox: str, path: str, *, filename: str | None = None, user: str | None = None) -> StoredFile:
        """Copy a file of a sandbox into the file store.

        Args:
            sandbox: Id or name of the sandbox.
            path: Path of the file in the sandbox.
            filename: Name of the stored file. Default: the last part of the path.
            user: User whose permissions apply, by name or uid; default: that of the sandbox.

        Raises:
            NotFoundError: ``sandbox_not_found`` or ``path_not_found``.
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
        content = data if isinstance(data, bytes) else self._with_progress(backend.chunks(data), filename, total, on_progress)
        return structure(StoredFile, await self._transport.request("POST", "/v1/files", params=params, content=content))

    async def _with_progress(
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
