"""Calls of the host: validation against the schema, execution once per call id, and responses on the stream of each call.

Invariants:
- The arguments of a call are validated before its handler sees them. An invalid call has no effect.
- A call is executed only once, even if the host repeats the call with the same id. If the call is still in progress, it continues on
  the new stream. If the call has ended and its outcome is kept, the same outcome is sent again. These rules do not apply to the calls
  in :data:`NOT_MEMOIZED`.
- All outcomes are forgotten when the guest is woken as a copy of another sandbox.
- If a handler raises an unexpected exception, the response is the error ``internal``, and the guest continues.
- The outcomes of at most :data:`MAX_OUTCOMES` calls are kept.
"""

from __future__ import annotations

from sandlot.guest.errors import RpcError
from sandlot.guest.loop import log_exception
from sandlot.protocol import schema
from sandlot.protocol.fast_imports import OrderedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from typing import Any

    from sandlot.guest.streams import Stream, StreamRouter
    from sandlot.protocol import events

    Handler = Callable[["Call"], object]

MAX_OUTCOMES = 4096
"""Maximum number of outcomes that are kept for repeated calls. If there are more, the oldest outcome is dropped."""

NOT_MEMOIZED = frozenset(
    {
        "guest.info",
        "process.start",
        "process.attach",
        "process.wait",
        "process.input",
        "process.resize",
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
    }
)
"""Names of calls whose outcomes are not kept. If the host repeats such a call, the handler is called again, and may recognize the id."""

HELD_UNTIL_WAKE_SCRIPTS = frozenset({"process.start", "kernel.create", "kernel.execute"})
"""Names of calls that start a process, a kernel or a cell. ``RpcServer.hold_starts`` delays these calls."""


class Call:
    """One call of the host, from its validation to its response.

    A handler that does not respond at once sets the ``on_...`` callbacks that it needs. After the response, only ``on_writable`` may
    still be called.

    Args:
        stream: Stream on which the host has sent the call.
        name: Name of the call.
        id_: Id of the call, in hexadecimal.
        args: Validated arguments.
        on_outcome: Called with this call after the response was sent.

    Attributes:
        name: Name of the call.
        id: Id of the call, in hexadecimal.
        args: Validated arguments. An absent argument is None.
        outcome: Result or error that was sent; None while the call is in progress.
        is_patient: True to delay events and bytes by up to a millisecond, so that they are written together with the response.
        on_bytes: Called with channel, bytes and credit when bytes from the host arrive. When the handler has used the bytes, it must
            pass the credit to :meth:`consumed`, so that the host may send further bytes.
        on_end: Called when an END frame from the host arrives. The host sends no bytes afterwards.
        on_writable: Called when bytes can be sent again after :meth:`room` has returned 0.
        on_gone: Called once if the stream is lost before the response.
        stream: Stream of the call. If the host repeats the call, the new stream replaces this stream.
    """

    __slots__ = ("_on_outcome", "args", "id", "is_patient", "name", "on_bytes", "on_end", "on_gone", "on_writable", "outcome", "stream")

    def __init__(self, stream: Stream, name: str, id_: str, args: dict[str, Any], on_outcome: Callable[[Call], object]) -> None:
        self._on_outcome = on_outcome
        self.name = name
        self.id = id_
        self.args = args
        self.outcome: dict[str, Any] | RpcError | None = None
        self.is_patient = False
        self.on_bytes: Callable[[int, bytes, int], object] | None = None
        self.on_end: Callable[[], object] | None = None
        self.on_gone: Callable[[], object] | None = None
        self.on_writable: Callable[[], object] | None = None
        self.stream = stream
        stream.handler = CallStream(self)

    def event(self, event: str, /, **fields: Any) -> None:
        """Send an event to the host.

        Args:
            event: Name of the event in the schema of this call.
            fields: Fields of the event.
        """
        self.stream.send({"event": event, **fields}, later=self.is_patient)

    def data(self, channel: int, piece: bytes) -> None:
        """Send bytes of a channel to the host. The caller must send no more bytes than :meth:`room` allows."""
        self.stream.send_bytes(channel, piece, later=self.is_patient)

    def lost(self, channel: int, size: int) -> None:
        """Tell the host that ``size`` bytes of a channel were dropped before they could be sent."""
        self.event("lost", channel=channel, bytes=size)

    def result(self, **fields: Any) -> None:
        """Respond with a result, which ends the call. Does nothing if the call has a response already."""
        self.respond(fields)

    def fail(self, code: str, message: str, hint: str = "") -> None:
        """Respond with an error, which ends the call. Does nothing if the call has a response already.

        Args:
            code: Value of a member of ``sandlot.model.errors.ErrorCode``.
            message: Description of the failure, for the user.
            hint: One action that the user can take. Empty if there is no advice.
        """
        self.respond(RpcError(code, message, hint))

    def respond(self, outcome: dict[str, Any] | RpcError) -> None:
        """Respond with a result (a dictionary) or an error, which ends the call. Does nothing if the call has a response already."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        if isinstance(outcome, RpcError):
            self.stream.reset(outcome.code, outcome.message, outcome.hint)
        else:
            self.stream.send({"result": outcome})
            self.stream.end()
        self._on_outcome(self)

    def room(self) -> int:
        """Return the number of bytes that may be sent to the host now. If the number is 0, ``on_writable`` is called later."""
        return self.stream.room()

    def consumed(self, credit: int) -> None:
        """Allow the host to send further bytes, because the handler has used bytes from the host (flow control).

        Args:
            credit: Number of further bytes that the host may send. Pass the value that ``on_bytes`` received with the used bytes.
        """
        self.stream.consumed(credit)

    def move_to(self, stream: Stream) -> None:
        """Use another stream from now on, because the host has repeated the call on that stream."""
        self.stream.handler = None
        stream.handler = CallStream(self)
        self.stream = stream


class CallStream:
    """Passes the events of a stream to the callbacks of its call.

    Args:
        call: The call.
    """

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def on_bytes(self, channel: int, data: bytes, credit: int) -> None:
        """Pass bytes from the host to the call's handler. Drop the bytes if the handler expects none or the call has a response."""
        call = self._call
        if call.on_bytes is not None and call.outcome is None:
            call.on_bytes(channel, data, credit)
        else:
            call.consumed(credit)

    def on_end(self) -> None:
        """Report to the call's handler that the host sends no more bytes. Does nothing if the call has a response."""
        if self._call.on_end is not None and self._call.outcome is None:
            self._call.on_end()

    def on_writable(self) -> None:
        """Report to the call's handler that bytes can be sent again, even after the response."""
        if self._call.on_writable is not None:
            self._call.on_writable()

    def on_gone(self) -> None:
        """Report to the call's handler, at most once, that the stream is lost. Does nothing if the call has a response."""
        callback, self._call.on_gone = self._call.on_gone, None
        if callback is not None and self._call.outcome is None:
            callback()


class RpcServer:
    """Validates the calls of the host and passes them to their handlers.

    Args:
        router: Streams of the link.
        is_asleep: Returns True while the guest serves no call except ``guest.wake``.
    """

    __slots__ = ("_handlers", "_held", "_is_asleep", "_outcomes", "_router", "_running")

    def __init__(self, router: StreamRouter, is_asleep: Callable[[], bool]) -> None:
        self._router = router
        self._is_asleep = is_asleep
        self._handlers: dict[str, Handler] = {}
        self._held: list[Call] | None = None
        self._running: dict[str, Call] = {}
        self._outcomes: OrderedDict[str, tuple[str, dict[str, Any] | RpcError]] = OrderedDict()

    def serve(self, handlers: dict[str, Handler]) -> None:
        """Register handlers. A call without a handler is refused as unsupported.

        Args:
            handlers: Name of a call -> function that handles the call.
        """
        self._handlers.update(handlers)

    def on_opened(self, event: events.Opened) -> None:
        """Handle a new stream of the host, whose first message is a call.

        A call with a new id is executed. For a repeated id, the kept outcome is sent, or the call in progress continues on this stream.
        """
        stream = self._router.stream(event.stream)
        try:
            name, id_, args = parse_request(event.head, self._handlers, asleep=self._is_asleep())
        except RpcError as error:
            stream.reset(error.code, error.message, error.hint)
            return
        running = self._running.get(id_)
        if id_ in self._outcomes:
            earlier, outcome = self._outcomes[id_]
            conflict = RpcError("conflict", f"The id {id_} of this {name} call was already used for a {earlier} call.", "Use a new id.")
            Call(stream, name, id_, args, self._on_outcome).respond(outcome if earlier == name else conflict)
        elif running is not None and running.name == name:
            running.move_to(stream)
        else:
            self._begin(Call(stream, name, id_, args, self._on_outcome))

    def hold_starts(self) -> None:
        """Delay the calls of ``HELD_UNTIL_WAKE_SCRIPTS``, which start programs, until :meth:`release_starts` is called. Idempotent."""
        if self._held is None:
            self._held = []

    def release_starts(self) -> None:
        """Execute the calls that :meth:`hold_starts` has delayed. Calls whose stream was lost are dropped. Idempotent."""
        held, self._held = self._held or [], None
        for call in held:
            if call.stream.is_open:
                self._run(call)
            else:
                self.abandon(call)

    def forget_all_results(self) -> None:
        """Forget the outcomes of all calls. Called in a copy of a sandbox, because the calls were made to the original."""
        self._outcomes.clear()

    def forget_result(self, id_: str, name: str) -> None:
        """Refuse further calls with the id of a call that has started a process or cell, because the process or cell is no longer kept.

        Args:
            id_: Id of the call that started the process or cell, in hexadecimal.
            name: Name of the call that started the process or cell, such as ``process.start``.
        """
        message = f"The call {name} with the id {id_} has ended, and its result is no longer kept."
        self._keep(id_, name, RpcError("process_not_found", message, "Use a new id."))

    def abandon(self, call: Call) -> None:
        """Forget a call in progress and do not keep its outcome, so that a repeated call with the same id is executed."""
        self._running.pop(call.id, None)

    def _begin(self, call: Call) -> None:
        if call.name not in NOT_MEMOIZED:
            self._running[call.id] = call
        if self._held is not None and call.name in HELD_UNTIL_WAKE_SCRIPTS:
            self._held.append(call)
        else:
            self._run(call)

    def _run(self, call: Call) -> None:
        try:
            self._handlers[call.name](call)
        except RpcError as error:
            call.respond(error)
        except Exception as error:  # noqa: BLE001 - the host receives a response to every call
            log_exception()
            call.fail("internal", f"The guest failed: {type(error).__name__}: {error}")

    def _on_outcome(self, call: Call) -> None:
        """Keep the outcome of a call, to send it again if the host repeats the call. Does nothing for calls of ``NOT_MEMOIZED``."""
        if call.outcome is not None and self._running.get(call.id) is call:
            del self._running[call.id]
            self._keep(call.id, call.name, call.outcome)

    def _keep(self, id_: str, name: str, outcome: dict[str, Any] | RpcError) -> None:
        self._outcomes[id_] = (name, outcome)
        while len(self._outcomes) > MAX_OUTCOMES:
            self._outcomes.popitem(last=False)


def parse_request(head: Any, served: Container[str], *, asleep: bool) -> tuple[str, str, dict[str, Any]]:
    """Validate the first message of a call's stream, and return the call's name, id and arguments. Pure.

    Args:
        head: First message of the call's stream.
        served: Names of the calls that have a handler.
        asleep: True if the guest is asleep and serves no call except ``guest.wake``.

    Returns:
        Name, id in hexadecimal, and arguments. An absent argument is None.

    Raises:
        RpcError: ``invalid_request``: the message or an argument is malformed. ``unsupported``: the call is unknown.
            ``conflict``: the guest must be woken first.
    """
    if type(head) is not dict or type(head.get("call")) is not str or type(head.get("args")) is not dict:
        raise RpcError(
            "invalid_request", "The first message of the stream must have the name of a call as text (`call`) and its arguments as a map (`args`)."
        )
    id_ = head.get("id")
    if type(id_) is not bytes or len(id_) != schema.CALL_ID_BYTES:
        raise RpcError("invalid_request", f"The id of the call {head['call'][:50]!r} is not {schema.CALL_ID_BYTES} bytes.")
    name, args = head["call"], head["args"]
    if name not in schema.CALLS or name not in served:
        raise RpcError("unsupported", f"The call {name[:50]!r} is unknown to this guest.")
    if asleep and name != "guest.wake":
        raise RpcError("conflict", "The sandbox is suspended.", "Resume the sandbox first.")
    fields = schema.CALLS[name]["args"]
    wrong = schema.validate_fields(fields, args)
    if wrong:
        raise RpcError("invalid_request", f"The arguments of {name} are invalid: {wrong}.")
    return name, id_.hex(), {**dict.fromkeys(fields), **args}
