"""Calls from the host to a guest. A call ends with the guest's result or error, when its caller abandons it, or when the link ends.

A call has exactly one outcome: a result or an error. Each message from a guest is checked when it arrives, before a caller sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar

from sandlot.link import parse
from sandlot.link.stream_end import StreamEnd
from sandlot.link.transport import FrameTransport
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError
from sandlot.model.executions import Output, OutputGap
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError

ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")

_OUTPUT_CHANNELS = frozenset((schema.STDOUT, schema.STDERR))


class Call(Generic[ResultT]):
    """One call to the guest. The constructor sends the request.

    Args:
        transport: Sends and receives the frames.
        name: Name of the call, a key of ``schema.CALLS``.
        args: Arguments of the call.
        parse: Function that converts the result from the guest, or raises ProtocolError.
        call_id: Id of the call, 16 bytes. The id lets the guest recognize a call that the host repeats on a new link.
        keeps_sending: True if the caller sends bytes after the request. False to send the END frame together with the request.
        is_last: True to send no other frame on the link after this request until ``FrameTransport.resume_sending`` is called.

    Raises:
        SandlotError: The call cannot be sent; see :meth:`FrameTransport.open`.
    """

    def __init__(
        self,
        transport: FrameTransport,
        name: str,
        args: dict[str, Any],
        parse: Callable[[object], ResultT],
        *,
        call_id: bytes,
        keeps_sending: bool = False,
        is_last: bool = False,
    ) -> None:
        self._transport = transport
        self._name = name
        self._parse = parse
        self._event_fields: dict[str, dict[str, str]] = schema.CALLS[name]["events"]
        self._result: ResultT | None = None
        self._has_result = False
        self._is_over = False
        self.outcome: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(_retrieve_exception)
        self._stream: StreamEnd[Any] = StreamEnd(transport, transport.open({"call": name, "id": call_id, "args": args}, self, is_last=is_last))
        if not keeps_sending:
            transport.connection.end(self._stream.id)
        transport.flush()

    # -- events of the stream -----------------------------------------------------------------------------------------

    def on_event(self, event: events.StreamEvent) -> None:
        """Handle an event of the call's stream. The transport calls this method.

        Raises:
            ProtocolError: The guest violated the protocol.
        """
        if isinstance(event, events.Bytes):
            if self._has_result:
                raise ProtocolError(f"{self._name} sent bytes after its result")
            self._on_bytes(event)
        elif isinstance(event, events.Received):
            self._on_message(event)
        elif isinstance(event, events.Writable):
            self._stream.on_writable()
        elif isinstance(event, events.Ended):
            if not self._has_result:
                raise ProtocolError(f"{self._name} ended without a result")
            self._transport.connection.end(self._stream.id)
            self._finish(None)
        elif isinstance(event, events.WasReset):
            self._finish(None if self._has_result else parse.reset_error(event.reason))

    def on_closed(self, error: SandlotError) -> None:
        """End the call with an error. The transport calls this method when the link has ended or all its streams were closed."""
        self._finish(error)

    def _on_message(self, event: events.Received) -> None:
        message = event.message
        if self._has_result or type(message) is not dict:
            raise ProtocolError(f"{self._name} sent a message {'after its result' if self._has_result else 'that is not a map'}")
        if "result" in message:
            if len(message) != 1:
                raise ProtocolError(f"{self._name} sent a message that has other fields besides `result`")
            self._result = self._parse(message["result"])
            self._has_result = True
            self._stream.refuse_sending()
            self._transport.connection.consumed(self._stream.id, event.credit)
            return
        name = message.pop("event", None)
        fields = self._event_fields.get(name) if type(name) is str else None
        if fields is None:
            raise ProtocolError(f"{self._name} sent the event {name!r:.50}, which is not in the schema of the call")
        self._on_event_message(name, parse.fields_of(f"{self._name} {name}", fields, message), event.credit)

    def _on_bytes(self, event: events.Bytes) -> None:
        raise ProtocolError(f"{self._name} sent bytes on channel {event.channel}; the call has no channels")

    def _on_event_message(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        raise NotImplementedError

    # -- the caller ---------------------------------------------------------------------------------------------------

    async def wait(self) -> ResultT:
        """Wait for the result of the call, and return the result. If the waiting task is cancelled, the call continues.

        Raises:
            SandlotError: The guest responded with an error, or the link has ended.
        """
        return await asyncio.shield(self.outcome)

    def abandon(self, error: SandlotError | None = None) -> None:
        """Reset the stream of the call and end the call with an error. Does nothing if the call has ended.

        Args:
            error: Error that the caller of :meth:`wait` gets. None: a ConflictError that says that the call was cancelled.
        """
        if not self._is_over:
            self._transport.reset(self._stream.id, "cancelled", "the caller no longer waits for the result")
            self._finish(error or ConflictError("The call was cancelled.", code=ErrorCode.CONFLICT))

    def _finish(self, error: SandlotError | None) -> None:
        self._is_over = True
        self._transport.forget(self._stream.id)
        if not self.outcome.done():
            if error is not None:
                self.outcome.set_exception(error)
            else:
                self.outcome.set_result(self._result)  # type: ignore[arg-type]  # _has_result is true
        self._stream.finish(error)


class StreamedCall(Call[ResultT], Generic[ResultT, ItemT]):
    """A call that receives items before its result. Iterate over the call to receive the items, then await :meth:`result`.

    Only one task at a time may iterate.
    """

    _is_iterated = False

    def __aiter__(self) -> Self:
        self._is_iterated = True
        return self

    async def __anext__(self) -> ItemT:
        self._is_iterated = True
        return await self._stream.next()  # type: ignore[no-any-return]  # only items of type ItemT are queued

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def result(self) -> ResultT:
        """Wait for the result of the call, and return the result.

        A caller that has started to iterate over the call must receive all items before it calls this method. If the caller has not started to
        iterate, this method drops all items.

        Raises:
            SandlotError: The guest responded with an error, or the link has ended.
        """
        if not self._is_iterated:
            self._stream.discard()
        return await self.wait()

    def release(self) -> None:
        """End an iteration that waits for the next item. Another task may iterate from now on."""
        self._stream.change_consumer()

    async def aclose(self) -> None:
        """Drop all further items, and abandon the call if it has not ended. Idempotent.

        A process or cell whose output the call receives keeps running, and another call can attach to it. A file is not read further.
        """
        self._stream.discard()
        self.abandon()

    async def _wait_first_message(self, event: asyncio.Event) -> None:
        """Wait until ``event`` is set, which happens when the guest's first message arrives or the call ends.

        If the waiting task is cancelled, abandon the call.
        """
        try:
            await event.wait()
        except BaseException:
            self.abandon()
            raise


class StreamedOutputCall(StreamedCall[ResultT, ItemT]):
    """A call that receives pieces of standard output and standard error. Each piece has its offset from the start of the output."""

    _offsets: dict[int, int]
    """Channel -> offset of the next byte that arrives on the channel."""

    def _on_bytes(self, event: events.Bytes) -> None:
        if event.channel not in _OUTPUT_CHANNELS:
            raise ProtocolError(f"{self._name} sent bytes on channel {event.channel}; only 1 and 2 are allowed")
        self._stream.put(Output(event.channel, self._advance(event.channel, len(event.data)), event.data), event.credit)

    def _on_gap(self, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        channel, size = fields["channel"], fields["bytes"]
        if channel not in _OUTPUT_CHANNELS or size <= 0:
            raise ProtocolError(f"{self._name} reports {size} lost bytes of channel {channel}; the number must be at least 1, and the channel 1 or 2")
        self._stream.put(OutputGap(channel, size, self._advance(channel, size)), credit)

    def _advance(self, channel: int, size: int) -> int:
        offset = self._offsets[channel]
        self._offsets[channel] = parse.number("offset", offset + size, schema.LIMITS["count"])
        return offset


def _retrieve_exception(outcome: asyncio.Future[Any]) -> None:
    """Mark the exception of a call as retrieved, so that asyncio logs no warning if nothing awaits the result of the call."""
    if not outcome.cancelled():
        outcome.exception()
