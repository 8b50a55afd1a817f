"""Calls under way: what a host asked of a guest, until the answer, an error or the link's end.

Laws:
- A call ends exactly once. What the guest says is checked as it arrives, before anyone sees it.
- What arrives waits in the call until it is consumed, and only then is credit given back: a consumer that does not
  iterate stops its own stream and holds at most a window of it and one message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

from sandlot.link import parse, parse_cells
from sandlot.link.pump import Pump
from sandlot.link.types import CellError, CellResult, CellStarted, Cleared, Display, Lost, Output, ProcessResult
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError
from sandlot.model.ids import ProcessId
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError

ResultT = TypeVar("ResultT")
ItemT = TypeVar("ItemT")

CHUNK_BYTES = 64 * 1024
_TOLD: Mapping[str, Callable[[object], CellStarted | Display | Cleared | CellError]] = {
    "started": parse_cells.started,
    "display": parse_cells.display,
    "clear": parse_cells.cleared,
    "error": parse_cells.cell_error,
}
_CHANNELS = frozenset((schema.STDOUT, schema.STDERR))


class Call(Generic[ResultT]):
    """One call, from its first frame on.

    Args:
        pump: The link.
        name: A name of ``schema.CALLS``.
        args: Its arguments.
        parse: Makes the result of what came over the wire, or raises ProtocolError.
        call_id: 16 bytes that the guest remembers, so that a call said twice is done once.
        keeps_sending: Whether bytes or an END follow; otherwise the END is sent at once.
        is_last: Whether nothing is sent after it until the pump goes on.

    Raises:
        SandlotError: It could not be sent; see :meth:`Pump.open`.
    """

    def __init__(
        self,
        pump: Pump,
        name: str,
        args: dict[str, Any],
        parse: Callable[[object], ResultT],
        *,
        call_id: bytes,
        keeps_sending: bool = False,
        is_last: bool = False,
    ) -> None:
        self._pump = pump
        self._name = name
        self._parse = parse
        self._fields: dict[str, dict[str, str]] = schema.CALLS[name]["events"]
        self._result: ResultT | None = None
        self._has_result = False
        self._is_over = False
        self._writable = asyncio.Event()
        self.sent_bytes = 0
        """What was handed to the link on channel 0, to be sent as the far side takes it."""
        self.outcome: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        self.outcome.add_done_callback(_look_at)
        self._stream = pump.open({"call": name, "id": call_id, "args": args}, self, is_last=is_last)
        if not keeps_sending:
            pump.connection.end(self._stream)
        pump.flush()

    # -- what the guest says ----------------------------------------------------------------------------------------

    def on_event(self, event: events.StreamEvent) -> None:
        """One event of the stream.

        Raises:
            ProtocolError: The guest broke a law.
        """
        if isinstance(event, events.Bytes):
            if self._has_result:
                raise ProtocolError(f"{self._name} sent bytes after its result")
            self._on_bytes(event)
        elif isinstance(event, events.Received):
            self._on_message(event)
        elif isinstance(event, events.Writable):
            self._writable.set()
        elif isinstance(event, events.Ended):
            if not self._has_result:
                raise ProtocolError(f"{self._name} ended without a result")
            self._pump.connection.end(self._stream)
            self._finish(None)
        elif isinstance(event, events.WasReset):
            self._finish(None if self._has_result else parse.error_of(event.reason))

    def on_lost(self, error: SandlotError) -> None:
        """The link is over."""
        self._finish(error)

    def _on_message(self, event: events.Received) -> None:
        message = event.message
        if self._has_result or type(message) is not dict:
            raise ProtocolError(f"{self._name} sent a message that is none, or one after its result")
        if "result" in message:
            if len(message) != 1:
                raise ProtocolError(f"{self._name} sent a result with other fields beside it")
            self._result = self._parse(message["result"])
            self._has_result = True
            self._pump.connection.consumed(self._stream, event.credit)
            return
        name = message.pop("event", None)
        fields = self._fields.get(name) if type(name) is str else None
        if fields is None:
            raise ProtocolError(f"{self._name} sent an event that it does not have")
        self._on_told(name, parse.fit(f"{self._name} {name}", fields, message), event.credit)

    def _on_bytes(self, event: events.Bytes) -> None:
        raise ProtocolError(f"{self._name} sent bytes on channel {event.channel}, which it does not have")

    def _on_told(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        raise NotImplementedError

    # -- what the owner does ----------------------------------------------------------------------------------------

    async def wait(self) -> ResultT:
        """The result. A caller that is cancelled ends nothing but its waiting.

        Raises:
            SandlotError: The guest's error, or the link's end.
        """
        return await asyncio.shield(self.outcome)

    def abandon(self, error: SandlotError | None = None) -> None:
        """Reset the stream, where it is not over."""
        if not self._is_over:
            self._pump.reset(self._stream, "cancelled", "nobody waits for it any more")
            self._finish(error or ConflictError("The call was given up.", code=ErrorCode.CONFLICT))

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes on channel 0 as the far side takes them; returns once all are queued, at most 128 KiB of them unsent.

        Raises:
            SandlotError: The call ended before; where it ended well, ConflictError.
        """
        view = memoryview(data).cast("B")
        while view:
            self._check_open()
            room = self._pump.connection.room(self._stream)
            if not room:
                self._writable.clear()
                await self._writable.wait()
                continue
            piece = view[: min(room, CHUNK_BYTES)]
            self._pump.connection.send_bytes(self._stream, schema.STDIN, bytes(piece))
            self._pump.flush()
            self.sent_bytes += len(piece)
            view = view[len(piece) :]

    def end(self) -> None:
        """Send no more."""
        self._pump.connection.end(self._stream)
        self._pump.flush()

    def _check_open(self) -> None:
        if not self._is_over and not self._has_result:
            return
        error = self.outcome.exception() if self.outcome.done() and not self.outcome.cancelled() else None
        raise error or ConflictError("It takes no more input, because it has ended.", code=ErrorCode.CONFLICT)

    def _finish(self, error: SandlotError | None) -> None:
        self._is_over = True
        self._pump.forget(self._stream)
        self._writable.set()
        if self.outcome.done():
            return
        if error is not None:
            self.outcome.set_exception(error)
        else:
            self.outcome.set_result(self._result)  # type: ignore[arg-type]  # _has_result says that it is there


class Streamed(Call[ResultT], Generic[ResultT, ItemT]):
    """A call that tells things before its result: iterate, then ask for the result. One consumer at a time."""

    def __init__(
        self, pump: Pump, name: str, args: dict[str, Any], parse: Callable[[object], ResultT], *, call_id: bytes, keeps_sending: bool = False
    ) -> None:
        self._items: deque[tuple[ItemT, int]] = deque()
        self._news = asyncio.Event()
        self._is_iterated = False
        self._drops = False
        super().__init__(pump, name, args, parse, call_id=call_id, keeps_sending=keeps_sending)

    def __aiter__(self) -> Self:
        self._is_iterated = True
        return self

    async def __anext__(self) -> ItemT:
        while not self._items:
            if self._drops:
                raise StopAsyncIteration
            if self.outcome.done():
                self.outcome.result()
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        item, credit = self._items.popleft()
        self._pump.consumed(self._stream, credit)
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def result(self) -> ResultT:
        """How it ended. Where nothing was ever iterated, what it tells meanwhile is dropped; otherwise finish iterating first.

        Raises:
            SandlotError: The guest's error, or the link's end.
        """
        if not self._is_iterated:
            self._drop()
        return await self.wait()

    async def aclose(self) -> None:
        """Let go of it: a process or a cell lives on and can be attached to, a file is not read further. Idempotent."""
        self._drop()
        self.abandon()

    async def _ready(self, event: asyncio.Event) -> None:
        """Wait for the guest's first word; who gives that up gives the call up."""
        try:
            await event.wait()
        except BaseException:
            self.abandon()
            raise

    def _put(self, item: ItemT, credit: int) -> None:
        if self._drops:
            self._pump.connection.consumed(self._stream, credit)
        else:
            self._items.append((item, credit))
            self._news.set()

    def _drop(self) -> None:
        self._drops = True
        credit = sum(credit for _, credit in self._items)
        self._items.clear()
        if credit:
            self._pump.consumed(self._stream, credit)
        self._news.set()

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._news.set()


class OutputCall(Streamed[ResultT, ItemT]):
    """A call with standard output and error, each byte at an offset."""

    _offsets: dict[int, int]

    def _on_bytes(self, event: events.Bytes) -> None:
        if event.channel not in _CHANNELS:
            raise ProtocolError(f"{self._name} sent bytes on channel {event.channel}")
        self._put(Output(event.channel, self._advance(event.channel, len(event.data)), event.data), event.credit)  # type: ignore[arg-type]

    def _on_lost_bytes(self, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        channel, size = fields["channel"], fields["bytes"]
        if channel not in _CHANNELS or size <= 0:
            raise ProtocolError(f"{self._name} lost {size} bytes of channel {channel}")
        self._put(Lost(channel, size, self._advance(channel, size)), credit)  # type: ignore[arg-type]

    def _advance(self, channel: int, size: int) -> int:
        offset = self._offsets[channel]
        self._offsets[channel] = parse.number("offset", offset + size, schema.LIMITS["count"])
        return offset


class ProcessCall(OutputCall[ProcessResult, Output | Lost]):
    """A process that was started or attached to. Iterate for its output, then ``await result()``.

    Args:
        pump: The link.
        name: ``process.start`` or ``process.attach``.
        args: The call's arguments.
        process: The process's id.
        call_id: The call's id; of ``process.start`` the same, as bytes.
        stdin: Whether :meth:`write` may be used.
        waits: Whether the result comes at the process's end, not at once.
    """

    def __init__(self, pump: Pump, name: str, args: dict[str, Any], *, process: ProcessId, call_id: bytes, stdin: bool, waits: bool = True) -> None:
        self.id = process
        self._pid = 0
        self._waits = waits
        self._takes_input = stdin
        self._has_started = asyncio.Event()
        self._offsets = {schema.STDOUT: args.get("stdout_from") or 0, schema.STDERR: args.get("stderr_from") or 0}
        super().__init__(pump, name, args, self._parse_result, call_id=call_id, keeps_sending=stdin)

    @property
    def pid(self) -> int:
        """The pid inside the sandbox; 0 before :meth:`started`."""
        return self._pid

    async def started(self) -> Self:
        """Wait until it runs.

        Raises:
            SandlotError: It could not be started.
        """
        await self._ready(self._has_started)
        if not self._pid:
            self.outcome.result()
        return self

    @property
    def takes_input(self) -> bool:
        """Whether :meth:`write` may be used, still."""
        return self._takes_input and not self._is_over and not self._has_result

    async def write(self, data: bytes) -> None:
        """Write to its standard input; returns when all is on its way, and waits while the process does not read.

        Raises:
            ConflictError: It takes no input (any more).
            SandlotError: The link's end.
        """
        if not self._takes_input:
            raise ConflictError("The process takes no input.", code=ErrorCode.CONFLICT, hint="Start it with its standard input open.")
        await self.send(data)

    def close_stdin(self) -> None:
        """End its standard input."""
        self._takes_input = False
        self.end()

    def _on_told(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if name == "lost":
            self._on_lost_bytes(fields, credit)
            return
        if self._pid:
            raise ProtocolError("a process started twice")
        self._pid = parse.pid(fields["pid"])
        self._pump.connection.consumed(self._stream, credit)
        self._has_started.set()

    def _parse_result(self, given: object) -> ProcessResult:
        result = parse.process_result(self.id, given)
        if self._waits and result.reason is None:
            raise ProtocolError("a process that has not ended has a result")
        if self._pid not in {0, result.pid} or (self._waits and not self._pid):
            raise ProtocolError("a process that ended is not the one that started")
        self._pid = result.pid
        return result

    def _finish(self, error: SandlotError | None) -> None:
        super()._finish(error)
        self._has_started.set()


class CellCall(OutputCall[CellResult, Output | Lost | CellStarted | Display | Cleared | CellError]):
    """A cell that a kernel executes. Iterate for what it shows, then ``await result()``.

    Args:
        pump: The link.
        name: ``kernel.execute`` or ``kernel.attach``.
        args: The call's arguments.
        execution: The execution's id.
        call_id: The call's id; of ``kernel.execute`` the same, as bytes.
    """

    def __init__(self, pump: Pump, name: str, args: dict[str, Any], *, execution: ProcessId, call_id: bytes) -> None:
        self.id = execution
        self._offsets = {schema.STDOUT: args.get("stdout_from") or 0, schema.STDERR: args.get("stderr_from") or 0}
        super().__init__(pump, name, args, parse_cells.cell_result, call_id=call_id)

    def _on_told(self, name: str, fields: Any, credit: int) -> None:  # noqa: ANN401 - checked against the schema of the event
        if name == "lost":
            self._on_lost_bytes(fields, credit)
        else:
            self._put(_TOLD[name](fields), credit)


def _look_at(outcome: asyncio.Future[Any]) -> None:
    """An error that nobody asks for is not worth asyncio's warning."""
    if not outcome.cancelled():
        outcome.exception()
