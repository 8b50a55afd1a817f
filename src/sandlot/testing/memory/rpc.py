"""Calls of the host to a scripted guest. Each call is checked against the schema; a repeated call with the same id gets the first call's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sandlot.protocol import events, schema
from sandlot.protocol.connection import Connection

NO_STREAM = -1
REMEMBERED_CALLS = 4096
_NOT_REMEMBERED = frozenset(
    {
        *("guest.info", "process.start", "process.attach", "process.wait", "process.input", "process.resize"),
        *(
            "process.get",
            "process.list",
            "kernel.execute",
            "kernel.attach",
            "kernel.list",
            "file.read",
            "file.stat",
            "file.resolve",
            "file.home",
            "file.list",
            "port.connect",
        ),
    }
)
"""Names of calls whose results are not remembered: the call can be repeated without harm, or its handler finds the earlier work by the call's id."""


class RpcError(Exception):
    """Raised by a handler that refuses a call. The error is sent to the host as a RESET.

    Args:
        code: One of ``schema.RESET_CODES``.
        message: Description of the failure.
        hint: Action that solves the problem; may be empty.
    """

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class Call:
    """One call in progress.

    Attributes:
        name: Name of the call, for example ``process.start``.
        id: Id of the call in hexadecimal. A process or cell that the call starts has the same id.
        args: Name -> argument. An absent optional argument is None.
        stream: Id of the stream of the call. After the end of the link, the value is ``NO_STREAM`` until the host repeats the call on a new stream.
        outcome: Result or error of the call; None until the call has ended.
        on_bytes: Function that is called with channel, bytes and credit when the host has sent bytes.
        on_end: Function that is called when the host has sent END.
        on_gone: Function that is called when the stream is lost before the call has ended.
        on_writable: Function that is called when the send queue of the stream is no longer full.
    """

    def __init__(self, server: RpcServer, stream: int, name: str, id_: str, args: dict[str, Any]) -> None:
        self._server = server
        self.stream = stream
        self.name = name
        self.id = id_
        self.args = args
        self.outcome: dict[str, Any] | RpcError | None = None
        self.on_bytes: Callable[[int, bytes, int], object] | None = None
        self.on_end: Callable[[], object] | None = None
        self.on_gone: Callable[[], object] | None = None
        self.on_writable: Callable[[], object] | None = None
        self.ended = False

    def event(self, event: str, /, **fields: Any) -> None:  # noqa: ANN401 - any value of the protocol
        """Send an event of the call to the host.

        Args:
            event: Name of the event.
            fields: Other fields of the event: name -> value.
        """
        self._server.connection.send(self.stream, {"event": event, **fields})
        self._server.flush()

    def data(self, channel: int, piece: bytes) -> None:
        """Send bytes to the host on a channel."""
        self._server.connection.send_bytes(self.stream, channel, piece)
        self._server.flush()

    def room(self) -> int:
        """Return the number of bytes that may be queued for the host now; 0 if the send queue is full."""
        return self._server.connection.room(self.stream)

    def consumed(self, credit: int) -> None:
        """Allow the host to send ``credit`` more bytes on the stream of the call."""
        self._server.connection.consumed(self.stream, credit)
        self._server.flush()

    def result(self, **fields: Any) -> None:  # noqa: ANN401 - any value of the protocol
        """End the call with a result, whose fields are the arguments."""
        self.finish(fields)

    def fail(self, code: str, message: str, hint: str = "") -> None:
        """End the call with an error."""
        self.finish(RpcError(code, message, hint))

    def finish(self, outcome: dict[str, Any] | RpcError) -> None:
        """End the call with a result (a map) or an error. Does nothing if the call has ended."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        connection = self._server.connection
        if isinstance(outcome, RpcError):
            connection.reset(self.stream, outcome.code, outcome.message, hint=outcome.hint)
        else:
            connection.send(self.stream, {"result": outcome})
            connection.end(self.stream)
        self._server.settle(self)
        self._server.flush()


class RpcServer:
    """Server that passes each call of the host to the handler with the call's name.

    Args:
        connection: The guest's side of the protocol.
        flush: Function that sends the queued frames of the connection.
        handlers: Name of a call -> handler. A handler may raise :class:`RpcError`.
        intercept: Called with each valid call and with a function that executes the call. An interceptor can delay, refuse or drop the call.
    """

    def __init__(
        self,
        connection: Connection,
        flush: Callable[[], None],
        handlers: Mapping[str, Callable[[Call], object]],
        intercept: Callable[[Call, Callable[[], None]], None],
    ) -> None:
        self.connection = connection
        self.flush = flush
        self._handlers = handlers
        self._intercept = intercept
        self._by_stream: dict[int, Call] = {}
        self._in_progress: dict[str, Call] = {}
        self.remembered: dict[str, tuple[str, dict[str, Any] | RpcError]] = {}

    def handle(self, event: events.Event) -> None:
        """Handle one event of the connection: a new call, an event of a call's stream, or the end of all streams."""
        if isinstance(event, events.Opened):
            self._opened(event)
        elif isinstance(event, events.StreamEvent):
            self._stream_event(event)
        elif isinstance(event, (events.Greeted, events.Lost)):
            self.drop_streams()

    def drop_streams(self) -> None:
        """Detach all calls in progress from their streams, which have ended with the link. A call continues, unless its ``on_gone`` ends the call."""
        gone, self._by_stream = self._by_stream, {}
        for call in gone.values():
            call.stream = NO_STREAM
            self._gone(call)

    def expire(self, id_: str, name: str) -> None:
        """Refuse later calls with the id ``id_``, because the process or execution with this id is no longer kept."""
        message = f"The call {name} with the id {id_} has ended, and its result is no longer kept."
        self._remember(id_, name, RpcError("process_not_found", message, "Repeat the call with a new call id."))

    def settle(self, call: Call) -> None:
        """Keep the outcome of an ended call for a repeated call with the same id. If the host has sent END, forget the stream of the call."""
        if call.ended:
            self._by_stream.pop(call.stream, None)
        if self._in_progress.get(call.id) is call and call.outcome is not None:
            del self._in_progress[call.id]
            self._remember(call.id, call.name, call.outcome)

    def abandon(self, call: Call) -> None:
        """Forget a call that has no outcome, so that a later call with the same id is executed as a new call."""
        self._in_progress.pop(call.id, None)

    def _opened(self, event: events.Opened) -> None:
        head = event.head
        problem = self._problem(head)
        if problem is not None:
            self.connection.reset(event.stream, problem.code, problem.message, hint=problem.hint)
            self.flush()
            return
        name, id_ = head["call"], head["id"].hex()
        call = Call(self, event.stream, name, id_, head["args"])
        self._by_stream[event.stream] = call
        if (known := self.remembered.get(id_)) is not None:
            reused = RpcError("conflict", f"The id {id_} of this {name} call was already used for a {known[0]} call.", "Use a new call id.")
            call.finish(known[1] if known[0] == name else reused)
            return
        earlier = self._in_progress.get(id_)
        if earlier is not None and earlier.name == name:
            earlier.stream, earlier.ended = event.stream, False
            self._by_stream[event.stream] = earlier
            return
        if name not in _NOT_REMEMBERED:
            self._in_progress[id_] = call
        self._intercept(call, lambda: self._carry_out(call))

    def _carry_out(self, call: Call) -> None:
        try:
            self._handlers[call.name](call)
        except RpcError as error:
            call.finish(error)
        self.flush()

    def _problem(self, head: Any) -> RpcError | None:  # noqa: ANN401 - whatever the host sent
        if type(head) is not dict or type(head.get("call")) is not str or type(head.get("args")) is not dict:
            return RpcError(
                "invalid_request",
                "The first message of the stream must have the name of a call as text (`call`) and its arguments as a map (`args`).",
            )
        if type(head.get("id")) is not bytes or len(head["id"]) != schema.CALL_ID_BYTES:
            return RpcError("invalid_request", f"The id of the call {head['call'][:50]!r} is not a byte string of {schema.CALL_ID_BYTES} bytes.")
        name = head["call"]
        if name not in self._handlers:
            return RpcError("unsupported", f"The call {name[:50]!r} is unknown to this guest.")
        if self.connection.asleep and name != "guest.wake":
            return RpcError("conflict", "The sandbox is suspended.", "Resume the sandbox first.")
        fields = schema.CALLS[name]["args"]
        if wrong := schema.validate_fields(fields, head["args"]):
            return RpcError("invalid_request", f"The arguments of the call {name} are not valid: {wrong}.")
        for field in fields:
            head["args"].setdefault(field, None)
        return None

    def _stream_event(self, event: events.StreamEvent) -> None:
        call = self._by_stream.get(event.stream)
        if isinstance(event, (events.Bytes, events.Received)):
            if isinstance(event, events.Bytes) and call is not None and call.on_bytes is not None and call.outcome is None:
                call.on_bytes(event.channel, event.data, event.credit)
            else:
                self.connection.consumed(event.stream, event.credit)
        elif call is None:
            return
        elif isinstance(event, events.WasReset):
            del self._by_stream[event.stream]
            self._gone(call)
        elif isinstance(event, events.Ended):
            call.ended = True
            if call.on_end is not None and call.outcome is None:
                call.on_end()
            self.settle(call) if call.outcome is not None else None
        elif isinstance(event, events.Writable) and call.on_writable is not None:
            call.on_writable()
        self.flush()

    def _gone(self, call: Call) -> None:
        if call.outcome is None and call.on_gone is not None:
            hook, call.on_gone = call.on_gone, None
            hook()

    def _remember(self, id_: str, name: str, outcome: dict[str, Any] | RpcError) -> None:
        self.remembered[id_] = (name, outcome)
        while len(self.remembered) > REMEMBERED_CALLS:
            del self.remembered[next(iter(self.remembered))]
