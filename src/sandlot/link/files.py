"""The calls ``file.*``. Contents are streamed: host and guest each buffer about one window (``streams.WINDOW_BYTES``), never a whole file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Mapping
from typing import Any, Self

from sandlot.link import parse
from sandlot.link.calls import Call, StreamedCall
from sandlot.link.session import LinkSession, new_call_id
from sandlot.link.transport import FrameTransport
from sandlot.model.errors import SandlotError
from sandlot.model.files import Entry, Listing
from sandlot.model.specs import User
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError


class FileReader(StreamedCall[int, bytes]):
    """Reader of one file. Iterate over the reader to receive the bytes of the file. Close the reader if the remaining bytes are not needed.

    Args:
        transport: Sends and receives the frames.
        args: Arguments of ``file.read``.
        call_id: Id of the call, 16 bytes.
    """

    def __init__(self, transport: FrameTransport, args: dict[str, Any], *, call_id: bytes) -> None:
        self._entry: Entry | None = None
        self._opened = asyncio.Event()
        self._bytes = 0
        self._limit = schema.LIMITS["count"] if args["length"] is None else args["length"]
        super().__init__(transport, "file.read", args, self._parse_result, call_id=call_id)

    @property
    def entry(self) -> Entry:
        """Properties of the file when the guest opened it. The file may have changed since then."""
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
            raise ProtocolError(f"file.read sent the event {name} twice")
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
            raise ProtocolError(f"file.read reports {size} bytes, but it sent {self._bytes}")
        return int(size)

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._opened.set()


class Upload(Call[Entry]):
    """One upload of a file into the sandbox.

    Args:
        transport: Sends and receives the frames.
        args: Arguments of ``file.write``.
        call_id: Id of the call, 16 bytes.
    """

    def __init__(self, transport: FrameTransport, args: dict[str, Any], *, call_id: bytes) -> None:
        self._is_sent = False
        super().__init__(transport, "file.write", args, self._parse_result, call_id=call_id, keeps_sending=True)

    async def run(self, chunks: AsyncIterable[bytes] | bytes) -> Entry:
        """Send the content, and return the properties of the written file. If the guest responds with an error, sending stops at once.

        Args:
            chunks: Content of the file. An iterable is read as fast as the guest accepts chunks.

        Raises:
            SandlotError: The guest responded with an error, or the link has ended.
            Exception: Reading ``chunks`` raised this exception. The guest discards the incomplete upload, unless the upload appends to a file or
                writes in place.
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
    """Requests about files, available as ``link.files``. Paths are absolute paths inside the sandbox.

    Args:
        session: Session of the link.
    """

    def __init__(self, session: LinkSession) -> None:
        self._session = session

    async def read(self, path: str, *, user: User = User.USER, offset: int = 0, length: int | None = None) -> FileReader:
        """Open a file, and return a reader that receives the bytes of the file.

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
        in_place: bool = False,
        owner: User | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Entry:
        """Write a file, and return its properties.

        Unless ``append`` or ``in_place`` is true, the guest writes a temporary file and renames it at the end. After an incomplete transfer, the
        old file is therefore unchanged.

        Args:
            path: Path of the file.
            chunks: Content of the file. An iterable is read as fast as the guest accepts chunks.
            user: Account that writes the file.
            mode: Permission bits. None keeps the bits of an existing file; a new file gets 0644.
            parents: True to create missing folders.
            append: True to append to the existing file.
            in_place: True to truncate the existing file and write to it; ``mode`` then applies only to a new file. Not with ``append``. The guest
                always writes to a file with several hard links directly, and sets ``mode``.
            owner: Owner of the file and of created folders. None: ``user``. Needs the user root.
            attributes: Extended attributes, which replace all attributes whose names begin with ``user.``. None: no change.

        Raises:
            SandlotError: The guest responded with an error, such as a full disk or a missing permission, or the link has ended.
            Exception: Reading ``chunks`` raised this exception.
        """
        self._session.check_usable()
        args: dict[str, Any] = {"path": path, "user": user.value, "mode": mode, "parents": parents, "append": append, "in_place": in_place}
        args |= {"owner": None if owner is None else owner.value, "attributes": None if attributes is None else dict(attributes)}
        return await Upload(self._session.transport, args, call_id=new_call_id()).run(chunks)

    async def stat(self, path: str, *, user: User = User.USER, follow: bool = True, attributes: str | None = None) -> Entry:
        """Return the properties of the file, folder or symbolic link at a path.

        Args:
            path: Path of the file, folder or link.
            user: Account that looks up the path.
            follow: True to describe the target of a symbolic link; False to describe the link itself.
            attributes: Prefix of the names of extended attributes to return. None returns no attributes.
        """
        args = {"path": path, "user": user.value, "follow": follow, "attributes": attributes}
        return await self._session.request("file.stat", args, parse.entry)

    async def resolve(self, path: str, *, user: User = User.USER) -> Entry:
        """Return the properties of the file to which a path leads, with its path without symbolic links."""
        return await self._session.request("file.resolve", {"path": path, "user": user.value}, parse.entry)

    async def find_home(self, user: User) -> str:
        """Return the absolute path of the home directory of a user."""
        return await self._session.request("file.home", {"user": user.value}, parse.path)

    async def list(
        self, path: str, *, user: User = User.USER, limit: int = schema.LIMITS["entries"], offset: int = 0, attributes: str | None = None
    ) -> Listing:
        """List the entries of a folder, sorted by name.

        Args:
            path: Path of the folder.
            user: Account that reads the folder.
            limit: Maximum number of entries. One call returns at most 1,000.
            offset: Number of entries to skip. To get the next page, pass ``offset + limit`` as ``offset``, even if this page has fewer than
                ``limit`` entries.
            attributes: As for :meth:`stat`.
        """
        args = {"path": path, "user": user.value, "limit": min(limit, schema.LIMITS["entries"]), "offset": offset, "attributes": attributes}
        return await self._session.request("file.list", args, parse.listing)

    async def mkdir(self, path: str, *, user: User = User.USER, parents: bool = True, mode: int | None = None, owner: User | None = None) -> Entry:
        """Create a folder, and return its properties.

        Args:
            path: Path of the folder.
            user: Account that creates the folder.
            parents: True to create the missing folders above ``path`` as well.
            mode: Permission bits of the folder; None uses the guest's default.
            owner: Owner of the created folders. None: ``user``. Needs the user root.
        """
        args = {"path": path, "user": user.value, "parents": parents, "mode": mode, "owner": None if owner is None else owner.value}
        return await self._session.request("file.mkdir", args, parse.entry)

    async def move(self, path: str, to: str, *, user: User = User.USER, overwrite: bool = False) -> Entry:
        """Rename a file or folder, and return its properties at the new path.

        Args:
            path: Current path.
            to: New path.
            user: Account that renames the file or folder.
            overwrite: True to replace a file that exists at the new path.
        """
        return await self._session.request("file.move", {"path": path, "to": to, "user": user.value, "overwrite": overwrite}, parse.entry)

    async def remove(self, path: str, *, user: User = User.USER, recursive: bool = False) -> int:
        """Remove a file or folder, and return the number of removed entries. ``recursive`` is needed for a folder that is not empty."""
        return await self._session.request("file.remove", {"path": path, "user": user.value, "recursive": recursive}, parse.removed)
