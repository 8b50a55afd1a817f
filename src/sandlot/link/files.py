"""The calls ``file.*``. Contents are streamed: each end buffers at most one window of a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any, Self

from sandlot.link import parse
from sandlot.link.calls import Call, StreamedCall
from sandlot.link.session import LinkSession, new_call_id
from sandlot.link.transport import FrameTransport
from sandlot.link.types import Entry, Listing
from sandlot.model.errors import SandlotError
from sandlot.model.specs import User
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError


class FileReader(StreamedCall[int, bytes]):
    """A stream of the bytes of a file. Iterate over it; close it if the rest is not needed.

    Args:
        transport: Sends and receives the frames.
        args: Arguments of ``file.read``.
        call_id: Id of the call.
    """

    def __init__(self, transport: FrameTransport, args: dict[str, Any], *, call_id: bytes) -> None:
        self._entry: Entry | None = None
        self._opened = asyncio.Event()
        self._bytes = 0
        self._limit = schema.LIMITS["count"] if args["length"] is None else args["length"]
        super().__init__(transport, "file.read", args, self._parse_result, call_id=call_id)

    @property
    def entry(self) -> Entry:
        """The file at the time when it was opened. It may have changed since."""
        if self._entry is None:
            raise RuntimeError("the file is not opened yet: await opened() first")
        return self._entry

    async def opened(self) -> Self:
        """Wait until the guest has opened the file.

        Raises:
            SandlotError: The guest could not open the file.
        """
        await self._wait_first_message(self._opened)
        if self._entry is None:
            self.outcome.result()
        return self

    def _on_event_message(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if self._entry is not None:
            raise ProtocolError(f"file.read sent {name} twice")
        self._entry = parse.entry(fields)
        self._transport.connection.consumed(self._stream.id, credit)
        self._opened.set()

    def _on_bytes(self, event: events.Bytes) -> None:
        self._bytes += len(event.data)
        if event.channel != schema.BODY or self._entry is None or self._bytes > self._limit:
            raise ProtocolError("file.read sent bytes that were not requested")
        self._stream.put(event.data, event.credit)

    def _parse_result(self, given: object) -> int:
        size = parse.fields_of("file.read", schema.CALLS["file.read"]["result"], given)["bytes"]
        if size != self._bytes or self._entry is None:
            raise ProtocolError(f"file.read reports {size} bytes and sent {self._bytes}")
        return int(size)

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._opened.set()


class Upload(Call[Entry]):
    """One upload of a file into the sandbox.

    Args:
        transport: Sends and receives the frames.
        args: Arguments of ``file.write``.
        call_id: Id of the call.
    """

    def __init__(self, transport: FrameTransport, args: dict[str, Any], *, call_id: bytes) -> None:
        self._is_sent = False
        super().__init__(transport, "file.write", args, self._parse_result, call_id=call_id, keeps_sending=True)

    async def run(self, chunks: AsyncIterable[bytes] | bytes) -> Entry:
        """Send the content and wait for the result. An error of the guest stops the sending at once.

        Args:
            chunks: The content. The iterable is read as fast as the guest accepts chunks.

        Raises:
            SandlotError: The guest's error, or the end of the link.
            Exception: Raised by ``chunks``. The guest drops the bytes that it has received.
        """
        sending = asyncio.ensure_future(self._send_all(chunks))
        try:
            await asyncio.wait((sending, self.outcome), return_when=asyncio.FIRST_COMPLETED)
            if not self.outcome.done():
                sending.result()
            return await self.wait()
        finally:
            self.abandon()
            sending.cancel()
            await asyncio.wait((sending,))

    async def _send_all(self, chunks: AsyncIterable[bytes] | bytes) -> None:
        if isinstance(chunks, bytes | bytearray | memoryview):
            await self._stream.send(chunks)
        else:
            async for chunk in chunks:
                await self._stream.send(chunk)
        self._is_sent = True
        self._stream.end_sending()

    def _parse_result(self, given: object) -> Entry:
        if not self._is_sent:
            raise ProtocolError("file.write sent a result before all content was received")
        return parse.entry(given)


class FileRequests:
    """The methods of ``link.files``. Paths are absolute paths inside the sandbox.

    Args:
        session: The link.
    """

    def __init__(self, session: LinkSession) -> None:
        self._session = session

    async def read(self, path: str, *, user: User = User.USER, offset: int = 0, length: int | None = None) -> FileReader:
        """Open a file and stream its bytes.

        Args:
            path: Path of the file.
            user: Account that reads the file.
            offset: Number of bytes to skip.
            length: Maximum number of bytes to read; None reads to the end.

        Raises:
            NotFoundError: The file does not exist.
            ForbiddenError: The account may not read the file.
        """
        self._session.check_usable()
        args = {"path": path, "user": user.value, "offset": offset, "length": length}
        return await FileReader(self._session.transport, args, call_id=new_call_id()).opened()

    async def write(
        self,
        path: str,
        chunks: AsyncIterable[bytes] | bytes,
        *,
        user: User = User.USER,
        mode: int | None = None,
        parents: bool = True,
        append: bool = False,
    ) -> Entry:
        """Write a file. The guest writes a temporary file and renames it at the end, so that an incomplete transfer leaves the old file.

        Args:
            path: Path of the file.
            chunks: The content. The iterable is read as fast as the guest accepts chunks.
            user: Account that writes the file.
            mode: Permission bits. None keeps the bits of an existing file; a new file gets 0644.
            parents: True to create missing folders.
            append: True to append to the existing file in place.

        Raises:
            SandlotError: The guest's error (disk full, no permission), or the end of the link.
            Exception: Raised by ``chunks``.
        """
        self._session.check_usable()
        args = {"path": path, "user": user.value, "mode": mode, "parents": parents, "append": append}
        return await Upload(self._session.transport, args, call_id=new_call_id()).run(chunks)

    async def stat(self, path: str, *, user: User = User.USER, follow: bool = True) -> Entry:
        """Return the properties of the file, folder or link at a path. With ``follow``, the properties of the target of a link."""
        return await self._session.request("file.stat", {"path": path, "user": user.value, "follow": follow}, parse.entry)

    async def list(self, path: str, *, user: User = User.USER, limit: int = schema.LIMITS["entries"], offset: int = 0) -> Listing:
        """List the entries of a folder, sorted by name.

        Args:
            path: Path of the folder.
            user: Account that reads the folder.
            limit: Maximum number of entries. One call returns at most 1,000.
            offset: Number of entries to skip. The next page begins at ``offset + limit``, even if entries were removed meanwhile.
        """
        limit = min(limit, schema.LIMITS["entries"])
        return await self._session.request("file.list", {"path": path, "user": user.value, "limit": limit, "offset": offset}, parse.listing)

    async def mkdir(self, path: str, *, user: User = User.USER, parents: bool = True, mode: int | None = None) -> Entry:
        """Create a folder, with ``parents`` also the missing folders above it."""
        return await self._session.request("file.mkdir", {"path": path, "user": user.value, "parents": parents, "mode": mode}, parse.entry)

    async def move(self, path: str, to: str, *, user: User = User.USER, overwrite: bool = False) -> Entry:
        """Rename a file or folder; return the entry at its new path."""
        return await self._session.request("file.move", {"path": path, "to": to, "user": user.value, "overwrite": overwrite}, parse.entry)

    async def remove(self, path: str, *, user: User = User.USER, recursive: bool = False) -> int:
        """Remove a file or folder, and return the number of removed entries."""
        return await self._session.request("file.remove", {"path": path, "user": user.value, "recursive": recursive}, parse.removed)
