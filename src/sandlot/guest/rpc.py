"""Calls of the host: each is validated against the schema and executed once per id; the response is sent on its stream.

Invariants:
- The arguments of a call are validated before its handler sees them. An invalid call has no effect.
- A call is executed once per id. If an id is repeated, the outcome of the first call is sent again, or the call in progress
  moves to the new stream. The ids are forgotten when the guest is woken as a copy of another sandbox.
- If a handler fails, the response is the error ``internal``, and the guest continues.
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

NOT_MEMOIZED = frozenset(
    {
        "guest.info",
        "process.start",
        "process.attach",
        "process.wait",
        "process.resize",
        "process.get",
        "process.list",
        "kernel.execute",
        "kernel.attach",
        "kernel.list",
        "file.read",
        "file.stat",
        "file.list",
        "port.connect",
    }
)
"""Calls whose outcomes are not kept: they may be executed again, or their service remembers the ids itself."""

HELD_UNTIL_WAKE_SCRIPTS = frozenset({"process.start", "kernel.create", "kernel.execute"})
"""Calls that start a process or a cell. They wait between ``RpcServer.hold_starts`` and ``RpcServer.release_starts``."""


class Call:
    """One call in progress.

    A handler that responds later sets the callbacks that it needs. They are not called after the response.

    Attributes:
        name: Name of the call.
        id: Id of the call, in hexadecimal.
        args: Validated arguments. An absent argument is None.
        outcome: Result or error that was sent; None while the call is in progress.
        is_patient: True if events and bytes may wait about a millisecond, because the response is about to follow.
        on_bytes: Called with channel, bytes and credit when bytes arrive. The handler passes the credit to :meth:`consumed`.
        on_end: Called when the host sends no more bytes.
        on_writable: Called when more can be sent after :meth:`room` was 0.
        on_gone: Called once when the stream is over before the response.
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
        """Send an event."""
        self.stream.send({"event": event, **fields}, later=self.is_patient)

    def data(self, channel: int, piece: bytes) -> None:
        """Send bytes of a channel."""
        self.stream.send_bytes(channel, piece, later=self.is_patient)

    def lost(self, channel: int, size: int) -> None:
        """Tell the host that ``size`` bytes of a channel were discarded."""
        self.event("lost", channel=channel, bytes=size)

    def result(self, **fields: Any) -> None:
        """Respond with a result."""
        self.respond(fields)

    def fail(self, code: str, message: str, hint: str = "") -> None:
        """Respond with an error."""
        self.respond(RpcError(code, message, hint))

    def respond(self, outcome: dict[str, Any] | RpcError) -> None:
        """Send the outcome, which ends the call. Further outcomes are ignored."""
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
        """Return the number of bytes that may be sent now. After 0, ``on_writable`` is called later."""
        return self.stream.room()

    def consumed(self, credit: int) -> None:
        """Return the credit of handled bytes, so that the host may send more."""
        self.stream.consumed(credit)

    def move_to(self, stream: Stream) -> None:
        """Continue on another stream, because the host has repeated the call."""
        self.stream.handler = None
        stream.handler = CallStream(self)
        self.stream = stream


class CallStream:
    """Passes the events of a stream to the callbacks of its call, as long as the call is in progress."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def on_bytes(self, channel: int, data: bytes, credit: int) -> None:
        """Pass bytes on, or drop them if the handler expects none."""
        call = self._call
        if call.on_bytes is not None and call.outcome is None:
            call.on_bytes(channel, data, credit)
        else:
            call.consumed(credit)

    def on_end(self) -> None:
        """Pass the end of the host's bytes on."""
        if self._call.on_end is not None and self._call.outcome is None:
            self._call.on_end()

    def on_writable(self) -> None:
        """Report that more can be sent, even after the response."""
        if self._call.on_writable is not None:
            self._call.on_writable()

    def on_gone(self) -> None:
        """Report the end of the stream once, if the call is in progress."""
        callback, self._call.on_gone = self._call.on_gone, None
        if callback is not None and self._call.outcome is None:
            callback()


class RpcServer:
    """Validates the calls of the host and passes them to their handlers.

    Args:
        router: Streams of the link.
        is_asleep: Returns True while only ``guest.wake`` is served.
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
        """Add handlers of calls.

        Args:
            handlers: Name of the call -> handler.
        """
        self._handlers.update(handlers)

    def on_opened(self, event: events.Opened) -> None:
        """Handle the stream of a call: execute the call, or respond as to an earlier call with the same id."""
        stream = self._router.stream(event.stream)
        try:
            name, id_, args = parse_request(event.head, self._handlers, asleep=self._is_asleep())
        except RpcError as error:
            stream.reset(error.code, error.message, error.hint)
            return
        running = self._running.get(id_)
        if id_ in self._outcomes:
            earlier, outcome = self._outcomes[id_]
            conflict = RpcError("conflict", f"The id was used for an earlier call of {earlier}.", "Use a new id.")
            Call(stream, name, id_, args, self._on_outcome).respond(outcome if earlier == name else conflict)
        elif running is not None and running.name == name:
            running.move_to(stream)
        else:
            self._begin(Call(stream, name, id_, args, self._on_outcome))

    def hold_starts(self) -> None:
        """Delay calls that start a process or a cell until :meth:`release_starts`. Idempotent."""
        if self._held is None:
            self._held = []

    def release_starts(self) -> None:
        """Execute the delayed calls, except those whose stream is over. Idempotent."""
        held, self._held = self._held or [], None
        for call in held:
            if call.stream.is_open:
                self._run(call)
            else:
                self.abandon(call)

    def forget_all_results(self) -> None:
        """Forget all outcomes, because the guest runs as another sandbox from now on."""
        self._outcomes.clear()

    def forget_result(self, id_: str, name: str) -> None:
        """Refuse an id from now on, because its process or cell is no longer kept.

        Args:
            id_: Id of the call.
            name: Name of the call.
        """
        self._keep(id_, name, RpcError("process_not_found", "A call with this id has ended, and its result is no longer kept.", "Use a new id."))

    def abandon(self, call: Call) -> None:
        """Forget a call that ended without an outcome, so that a repeated call with its id is executed."""
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
        """Keep the outcome of a memoized call for repetitions of its id."""
        if call.outcome is not None and self._running.get(call.id) is call:
            del self._running[call.id]
            self._keep(call.id, call.name, call.outcome)

    def _keep(self, id_: str, name: str, outcome: dict[str, Any] | RpcError) -> None:
        self._outcomes[id_] = (name, outcome)
        while len(self._outcomes) > MAX_OUTCOMES:
            self._outcomes.popitem(last=False)


def parse_request(head: Any, served: Container[str], *, asleep: bool) -> tuple[str, str, dict[str, Any]]:
    """Return name, id and arguments of a call. Pure.

    Args:
        head: First message of the call's stream.
        served: Names of the calls that have a handler.
        asleep: True while only ``guest.wake`` is served.

    Raises:
        RpcError: The call is malformed or unknown, or the guest must be woken first.
    """
    if type(head) is not dict or type(head.get("call")) is not str or type(head.get("args")) is not dict:
        raise RpcError("invalid_request", "The call has no name or no arguments.")
    id_ = head.get("id")
    if type(id_) is not bytes or len(id_) != schema.CALL_ID_BYTES:
        raise RpcError("invalid_request", "The id of the call is not 16 bytes.")
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
