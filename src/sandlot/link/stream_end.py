"""The host's end of one stream: a queue of received items, and methods that send bytes with flow control."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

from sandlot.link.transport import FrameTransport
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError
from sandlot.protocol import schema

CHUNK_BYTES = 64 * 1024
"""Largest number of bytes that :meth:`StreamEnd.send` adds to the send queue in one step."""

LARGE_BYTES = 64 * 1024
"""Size above which an item counts in ``LARGE_UNREAD_BYTES``. Only messages are larger."""
LARGE_UNREAD_BYTES = 32 * 1024 * 1024
"""Largest size of what the consumers of one link have not taken from streams with a large message."""

ItemT = TypeVar("ItemT")


class UnreadBytes:
    """Size of what the consumers of several streams together have not taken.

    Attributes:
        total: Number of bytes.
    """

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class StreamEnd(Generic[ItemT]):
    """The host's end of one stream.

    The guest may send more only after the consumer has taken items. A consumer that does not read therefore stops only its own stream, and the host
    buffers at most one window (``streams.WINDOW_BYTES``) and one message of the stream. A message may have 8 MiB, so the owner of the stream checks
    :meth:`has_room` before it queues one.

    Args:
        transport: Sends and receives the frames.
        id: Id of the stream.
        unread: Size of what several streams have together, to which this stream adds. None: the stream counts alone.
    """

    def __init__(self, transport: FrameTransport, id: int, unread: UnreadBytes | None = None) -> None:  # noqa: A002 - the field is called id
        self.id = id
        self._transport = transport
        self._unread = unread or UnreadBytes()
        self._items: deque[tuple[ItemT, int]] = deque()
        self.unread_bytes = 0
        """Size of the items that the consumer has not taken, and of the one that it has from :meth:`take`."""
        self._taken = 0
        """Size of the item that the consumer has from :meth:`take`."""
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._consumers = 0
        self._is_discarding = False
        self._received_all = False
        self._send_error: SandlotError | None = None
        self._error: SandlotError | None = None
        self.sent_bytes = 0
        """Number of bytes that :meth:`send` has accepted so far, including bytes that the guest has not read."""

    # -- receiving ----------------------------------------------------------------------------------------------------

    def put(self, item: ItemT, credit: int) -> None:
        """Queue an item for the consumer.

        Args:
            item: Received bytes or message.
            credit: Number of further bytes that the guest may send once the item is consumed.
        """
        if self._is_discarding:
            self._transport.connection.consumed(self.id, credit)
        else:
            self._items.append((item, credit))
            self.unread_bytes += credit
            self._unread.total += credit
            self._arrived.set()

    def has_room(self, credit: int) -> bool:
        """Return whether an item can be queued. Small items can always be queued: the windows of the streams limit their number."""
        if credit <= LARGE_BYTES:
            return True
        large = self._transport.large
        if sum(end.unread_bytes for end in large) + credit > LARGE_UNREAD_BYTES:
            return False
        large.add(self)
        return True

    async def next(self) -> ItemT:
        """Wait for the next item and consume it.

        Raises:
            StopAsyncIteration: No item is left and the guest has sent END, or :meth:`discard` or :meth:`change_consumer` was called.
            SandlotError: No item is left, and the stream ended with this error.
        """
        item = await self.take()
        self._release()
        return item

    async def take(self) -> ItemT:
        """Wait for the next item like :meth:`next`, but count it as unread until the next call, because the consumer still works on it."""
        self._release()
        consumer = self._consumers
        while not self._items:
            if self._error is not None and not self._is_discarding:
                raise self._error
            if self._received_all or self._is_discarding:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
            if consumer != self._consumers:
                raise StopAsyncIteration
        item, self._taken = self._items.popleft()
        return item

    def _release(self) -> None:
        credit, self._taken = self._taken, 0
        if credit:
            self.unread_bytes -= credit
            self._unread.total -= credit
            self._transport.consumed(self.id, credit)

    def change_consumer(self) -> None:
        """End a waiting :meth:`next`, so that another consumer can take the items that are left."""
        self._consumers += 1
        self._arrived.set()

    def end_receiving(self) -> None:
        """Record that the guest has sent END, so that no further items arrive."""
        self._received_all = True
        self._arrived.set()

    def discard(self) -> None:
        """Drop the queued items and all further items. Idempotent."""
        self._is_discarding = True
        credit, self.unread_bytes = self.unread_bytes, 0
        self._unread.total -= credit
        self._taken = 0
        self._items.clear()
        if credit:
            self._transport.consumed(self.id, credit)
        self._arrived.set()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the guest on channel 0. Wait while the send queue of the stream is full.

        The method returns when all bytes are queued. At that time, at most 128 KiB of the stream are still unsent.

        Raises:
            SandlotError: The stream has ended, or its direction to the guest is closed.
        """
        view = memoryview(data).cast("B")
        while view:
            piece = view[: min(await self.wait_for_room(), CHUNK_BYTES)]
            self._transport.connection.send_bytes(self.id, schema.STDIN, bytes(piece))
            self._transport.flush()
            self.sent_bytes += len(piece)
            view = view[len(piece) :]

    async def wait_for_room(self) -> int:
        """Wait until the send queue of the stream is not full, and return the number of bytes that may be queued now.

        Raises:
            SandlotError: The stream has ended, or its direction to the guest is closed.
        """
        while self._send_error is None:
            room = self._transport.connection.room(self.id)
            if room:
                return room
            self._writable.clear()
            await self._writable.wait()
        raise self._send_error

    def end_sending(self) -> None:
        """Send the END frame. The host can send no more bytes on this stream afterwards."""
        self._transport.connection.end(self.id)
        self._transport.flush()
        self.refuse_sending(ConflictError("The input was closed; nothing more can be written.", code=ErrorCode.CONFLICT))

    # -- the end ------------------------------------------------------------------------------------------------------

    def on_writable(self) -> None:
        """Let a waiting :meth:`send` continue. Called when the send queue of the stream is no longer full."""
        self._writable.set()

    def refuse_sending(self, error: SandlotError | None = None) -> None:
        """Make :meth:`send` raise an error from now on. Only the first call has an effect.

        Args:
            error: Error to raise; None: a ConflictError that says that the receiving program has ended.
        """
        if self._send_error is None:
            self._send_error = error or ConflictError("The program that reads the input has ended.", code=ErrorCode.CONFLICT)
        self._writable.set()

    def finish(self, error: SandlotError | None = None) -> None:
        """End the stream in both directions. The consumer still gets the queued items.

        Args:
            error: Error that the consumer gets after the last item; None: the iteration ends normally.
        """
        self._error = self._error or error
        self.refuse_sending(error)
        self.end_receiving()
