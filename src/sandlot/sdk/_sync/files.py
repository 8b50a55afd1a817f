# Made from src/sandlot/sdk/_async/files.py by scripts/unasync.py; change that file, not this one.
"""Files in a sandbox, and between it and this machine."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Literal, Self, overload

import httpx

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError, UnavailableError
from sandlot.sdk import requests, responses
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.transport import Transport
from sandlot.sdk._sync.watches import FileWatch, Watchers
from sandlot.sdk.converter import structure, structure_list
from sandlot.sdk.http import translated
from sandlot.sdk.models.files import FileEntry
from sandlot.sdk.transfer.download import ArchiveExtractor, PartialFile, below
from sandlot.sdk.transfer.upload import TransferProgress, UploadFile, UploadPlan, UploadProgress, packed, plan_upload


class FileStream:
    """The content of a file as it arrives, read only as fast as it is taken. Close it, or read it to its end."""

    def __init__(self, transport: Transport, response: httpx.Response, resources: ExitStack) -> None:
        self._transport = transport
        self._resources = resources
        self._pieces = response.iter_bytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            with translated(self._transport.target):
                return self._pieces.__next__()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop reading."""
        self._resources.close()


class Files:
    """The files of one sandbox. Every path in it is absolute."""

    def __init__(self, transport: Transport, sandbox: str) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{sandbox}/files"
        self.watchers = Watchers(transport, sandbox)
        """Folders that are watched for whoever asks later."""

    @overload
    def read(self, path: str, format: Literal["text"] = "text", *, user: str | None = None) -> str: ...

    @overload
    def read(self, path: str, format: Literal["bytes"], *, user: str | None = None) -> bytes: ...

    @overload
    def read(self, path: str, format: Literal["stream"], *, user: str | None = None) -> FileStream: ...

    def read(
        self,
        path: str,
        format: Literal["text", "bytes", "stream"] = "text",  # noqa: A002 - the field's word
        *,
        user: str | None = None,
    ) -> str | bytes | FileStream:
        """Read a file.

        Args:
            path: The file.
            format: ``text`` (UTF-8), ``bytes``, or ``stream``: an iterator of bytes, for files that memory should not hold.
            user: Whose permissions count: ``user`` (the default) or ``root``.

        Raises:
            NotFoundError: There is no such file.
            InvalidRequestError: It is a folder, or ``text`` was asked for and it is none.
        """
        resources = ExitStack()
        params = requests.omit_none(path=path, user=user)
        response = resources.enter_context(self._transport.stream("GET", f"{self._path}/content", params=params, accept="application/octet-stream"))
        stream = FileStream(self._transport, response, resources)
        if format == "stream":
            return stream
        content = bytearray()
        for piece in stream:
            content += piece
        if format == "bytes":
            return bytes(content)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"{path} is no UTF-8 text: byte {error.start} does not fit.", hint='Read it with format="bytes".', fields={"path": path}
            ) from error

    def write(self, path: str, data: backend.Data, *, user: str | None = None, mode: int | None = None, append: bool = False) -> FileEntry:
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
        answer = self._transport.request(
            "PUT", f"{self._path}/content", params=params, content=content if isinstance(content, bytes) else backend.chunks(content)
        )
        return structure(FileEntry, answer)

    def list(self, path: str = "/workspace", *, user: str | None = None) -> builtins.list[FileEntry]:
        """What is in a folder, by name."""
        found: builtins.list[FileEntry] = []
        more = True
        while more:
            answer = self._transport.request("GET", self._path, params=requests.omit_none(path=path, user=user, offset=len(found) or None))
            page = structure_list(FileEntry, answer, "entries")
            more = bool(answer.get("more", False))
            responses.check_page(found, page, more=more)
            found += page
        return found

    def stat(self, path: str, *, user: str | None = None) -> FileEntry:
        """What is at a path.

        Raises:
            NotFoundError: Nothing.
        """
        return structure(FileEntry, self._transport.request("GET", f"{self._path}/stat", params=requests.omit_none(path=path, user=user)))

    def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether there is something at a path."""
        answer = self._transport.request("GET", f"{self._path}/exists", params=requests.omit_none(path=path, user=user))
        return bool(answer["exists"])

    def watch(self, path: str = "/workspace", *, recursive: bool = False, user: str | None = None) -> FileWatch:
        """Watch a folder: ``with sandbox.files.watch("/workspace") as events: for event in events: ...``.

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
        resources = ExitStack()
        params = requests.omit_none(path=path, user=user, recursive="true" if recursive else None)
        events = resources.enter_context(self._transport.event_stream("GET", f"{self._path}/watch", params=params))
        try:
            begun = events.__next__()
        except BaseException:
            resources.close()
            raise
        return FileWatch(events, resources, str(begun.data.get("by", "")))

    def sign_url(self, path: str, *, method: Literal["GET", "PUT"] = "GET", expires_in: float = 3600.0, user: str | None = None) -> str:
        """A URL by which anybody can read, or write, one file for a while, without a key.

        It ends with the API key that made it. A local service that listens on no address gives a path that only its socket serves.

        Args:
            path: The file.
            method: ``GET`` reads it, ``PUT`` writes it.
            expires_in: Seconds that it holds, at most 604,800.
            user: Who it is done as.
        """
        body: dict[str, Any] = {"path": path, "method": method, "expires_in": expires_in, **requests.omit_none(user=user)}
        answer = self._transport.request("POST", f"{self._path}/signed-urls", body=body)
        return requests.rebase_url(str(answer["url"]), None if self._transport.can_wait_silently else self._transport.target.base_url)

    def make_dir(self, path: str, *, user: str | None = None, mode: int | None = None) -> bool:
        """Make a folder, and those above it.

        Returns:
            True when it was made, False when it was there.

        Raises:
            ConflictError: There is something else at this path.
        """
        if self._is_dir(path, user):
            return False
        self._transport.request("POST", f"{self._path}/directories", body=requests.omit_none(path=path, parents=True, mode=mode, user=user))
        return True

    def move(self, path: str, to: str, *, overwrite: bool = False, user: str | None = None) -> FileEntry:
        """Move a file or folder, or give it another name.

        Raises:
            ConflictError: There is something at the new path, and it may not be overwritten.
        """
        body: dict[str, Any] = {"path": path, "to": to, "overwrite": overwrite, **requests.omit_none(user=user)}
        return structure(FileEntry, self._transport.request("POST", f"{self._path}/move", body=body))

    rename = move

    def remove(self, path: str, *, recursive: bool = True, user: str | None = None) -> int:
        """Remove a file or folder.

        Args:
            path: What to remove; a symbolic link is removed itself, never what it points to.
            recursive: Whether a folder that is not empty is removed with everything in it.
            user: Whose permissions count.

        Returns:
            How many files and folders were removed.
        """
        params = {"path": path, "recursive": "true" if recursive else "false", **requests.omit_none(user=user)}
        answer = self._transport.request("DELETE", self._path, params=params, read_timeout_s=None)
        return int(answer.get("removed", 1))

    def upload(self, local: str | Path, guest: str, *, user: str | None = None, on_progress: backend.Callback[TransferProgress] | None = None) -> int:
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
        plan = backend.in_thread(plan_upload, Path(local), guest)
        tally = UploadProgress(plan)
        for part in plan.parts():
            if part.folders or len(part.files) > 1:
                self._send_tree(part, tally, plan.root, user, on_progress)
            else:
                self._send_files(part, tally, user, on_progress)
        return len(plan.files)

    def _send_tree(
        self, part: UploadPlan, tally: UploadProgress, root: str, user: str | None, on_progress: backend.Callback[TransferProgress] | None
    ) -> None:
        try:
            self._transport.request(
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
                self.make_dir(folder, user=user)
            self._send_files(part, tally, user, on_progress)

    def _packed(self, part: UploadPlan, tally: UploadProgress, root: str, on_progress: backend.Callback[TransferProgress] | None) -> Iterator[bytes]:
        pieces = packed(part, root, tally)
        while (piece := backend.in_thread(next, pieces, None)) is not None:
            yield piece
            backend.call(on_progress, tally.progress)

    def _send_files(self, part: UploadPlan, tally: UploadProgress, user: str | None, on_progress: backend.Callback[TransferProgress] | None) -> None:
        for file in part.files:
            mode = 0o755 if file.executable else 0o644
            with backend.in_thread(file.source.open, "rb") as data:
                self.write(file.guest, self._counted(data, file, tally, on_progress), user=user, mode=mode)
            tally.finish()
            backend.call(on_progress, tally.progress)

    def _counted(
        self, data: IO[bytes], file: UploadFile, tally: UploadProgress, on_progress: backend.Callback[TransferProgress] | None
    ) -> Iterator[bytes]:
        for piece in backend.chunks(data):
            yield piece
            tally.add(file, len(piece))
            backend.call(on_progress, tally.progress)

    def download(
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
        entry = self.stat(guest, user=user)
        if entry.is_dir:
            return self._receive_tree(guest, Path(local), user, on_progress)
        self._fetch(guest, Path(local), entry, user=user, on_progress=on_progress)
        return 1

    def _receive_tree(self, guest: str, local: Path, user: str | None, on_progress: backend.Callback[TransferProgress] | None) -> int:
        receiver = backend.in_thread(ArchiveExtractor, local)
        params = requests.omit_none(path=guest, user=user)
        try:
            with self._transport.stream("GET", f"{self._path}/archive", params=params, accept="application/x-tar") as response:
                stream = FileStream(self._transport, response, ExitStack())
                for piece in stream:
                    backend.in_thread(receiver.feed, piece)
                    path = below(guest, receiver.path)
                    backend.call(on_progress, TransferProgress(path, receiver.size_bytes, None, receiver.files, None))
            backend.in_thread(receiver.finish)
        except UnavailableError:
            receiver.explain()
            raise
        finally:
            receiver.discard()
        return receiver.files

    def _fetch(self, path: str, target: Path, entry: FileEntry, *, user: str | None, on_progress: backend.Callback[TransferProgress] | None) -> None:
        part = backend.in_thread(PartialFile.create, target, bool(entry.mode & 0o111))
        done = 0
        try:
            with self.read(path, "stream", user=user) as pieces:
                for piece in pieces:
                    backend.in_thread(part.write, piece)
                    done += len(piece)
                    backend.call(on_progress, TransferProgress(path, done, entry.size_bytes, 0, 1))
            backend.in_thread(part.finish)
        finally:
            part.discard()
        backend.call(on_progress, TransferProgress(path, done, done, 1, 1))

    def _is_dir(self, path: str, user: str | None) -> bool:
        try:
            return (self.stat(path, user=user)).is_dir
        except SandlotError as error:
            if error.code in {ErrorCode.PATH_NOT_FOUND, ErrorCode.PATH_NOT_DIRECTORY}:
                return False
            raise
