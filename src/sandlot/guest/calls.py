"""Calls from the host: checked against the schema, done once however often they are asked for, answered on their stream.

Laws:
- A call's arguments are checked before its handler sees them; a bad one is refused and nothing was done.
- Ids are remembered (law 6): a repeated call that is done answers as it did; one that is under way goes on on the new
  stream. The memory is forgotten when the guest is woken as another sandbox, because a clone is one.
- A handler that fails answers ``internal``; the guest lives on.
"""

from __future__ import annotations

from sandlot.guest.flow.loop import log_exception
from sandlot.guest.flow.outputs import Port
from sandlot.protocol import events, schema
from sandlot.protocol.fast_imports import OrderedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sandlot.guest.flow.wire import Wire

REMEMBERED_CALLS = 4096
NO_STREAM = -1

#: Calls that may be asked again without harm, or that keep their own memory under the call's id.
UNREMEMBERED = frozenset(
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


#: Calls that start something, which waits while it is held (``Calls.hold_starts``).
STARTING = frozenset({"process.start", "kernel.create", "kernel.execute"})


class Refusal(Exception):  # noqa: N818 - an answer, not a defect
    """A call cannot be done; the host is told. ``code`` is one of the model's ErrorCode texts."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class Call(Port):
    """One call under way: its arguments, and the stream that its answers go to.

    The hooks ``on_bytes``, ``on_end``, ``on_gone`` and ``on_writable`` are set by handlers that need them; ``on_gone`` is
    called once when the stream is over without the handler's doing. ``on_answered`` is the dispatcher's.
    """

    __slots__ = ("_wire", "args", "id", "is_patient", "name", "on_answered", "on_bytes", "on_end", "on_gone", "on_writable", "outcome", "stream")

    def __init__(self, wire: Wire, stream: int, name: str, id_: str, args: dict[str, Any]) -> None:
        self._wire = wire
        self.stream = stream
        self.name = name
        self.id = id_
        self.args = args
        self.outcome: dict[str, Any] | Refusal | None = None
        self.is_patient = False
        """Whether what it tells on the way may wait for a moment, because its answer is about to come."""
        self.on_answered: Callable[[], object] | None = None
        self.on_bytes: Callable[[int, bytes, int], object] | None = None
        self.on_end: Callable[[], object] | None = None
        self.on_gone: Callable[[], object] | None = None
        self.on_writable: Callable[[], object] | None = None

    def event(self, event: str, /, **fields: Any) -> None:
        """Tell something on the way."""
        self._wire.connection.send(self.stream, {"event": event, **fields})
        self._flush()

    def result(self, **fields: Any) -> None:
        """Answer; the call is over."""
        self.answer(fields)

    def fail(self, code: str, message: str, hint: str = "") -> None:
        """Refuse; the call is over."""
        self.answer(Refusal(code, message, hint))

    def answer(self, outcome: dict[str, Any] | Refusal) -> None:
        """Send an outcome; only the first one counts."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        connection = self._wire.connection
        if isinstance(outcome, Refusal):
            connection.reset(self.stream, outcome.code, outcome.message, hint=outcome.hint)
        else:
            connection.send(self.stream, {"result": outcome})
            connection.end(self.stream)
        self._wire.flush_soon()
        if self.on_answered is not None:
            self.on_answered()

    def room(self) -> int:
        """Bytes that may be queued now; ``on_writable`` is called when there is room again."""
        return self._wire.connection.room(self.stream)

    def data(self, channel: int, piece: bytes) -> None:
        """Queue bytes."""
        self._wire.connection.send_bytes(self.stream, channel, piece)
        self._flush()

    def _flush(self) -> None:
        if self.is_patient:
            self._wire.flush_later()
        else:
            self._wire.flush_soon()

    def lost(self, channel: int, size: int) -> None:
        """Tell that bytes of a channel are no longer kept."""
        self.event("lost", channel=channel, bytes=size)

    def consumed(self, size: int) -> None:
        """The host's bytes were dealt with: it may send as many more."""
        self._wire.connection.consumed(self.stream, size)
        self._wire.flush_soon()

    def moved_to(self, stream: int) -> None:
        """Go on on another stream, after the link was made anew."""
        self.stream = stream


class Calls:
    """The dispatcher: events of the connection in, handlers called.

    Args:
        handlers: call name -> what does it.
    """

    __slots__ = ("_by_stream", "_held", "_remembered", "_under_way", "handlers", "wire")

    def __init__(self, handlers: dict[str, Callable[[Call], object]]) -> None:
        self.handlers = handlers
        self.wire: Wire
        self._by_stream: dict[int, Call] = {}
        self._held: list[Call] | None = None
        self._under_way: dict[str, Call] = {}
        self._remembered: OrderedDict[str, tuple[str, dict[str, Any] | Refusal]] = OrderedDict()

    def handle(self, event: events.Event) -> None:
        """One event of the connection."""
        if isinstance(event, events.Opened):
            self._opened(event)
        elif isinstance(event, events.StreamEvent):
            self._on_stream(event)
        elif isinstance(event, (events.Greeted, events.Lost)):
            self.drop_streams()

    def drop_streams(self) -> None:
        """Every stream is gone; calls that can go on without one do."""
        gone, self._by_stream = self._by_stream, {}
        for call in gone.values():
            call.moved_to(NO_STREAM)  # stream numbers begin anew: the old one may soon be somebody else's
            self._gone(call)

    def forget_all(self) -> None:
        """Forget ids: this is another sandbox from now on."""
        self._remembered.clear()

    def hold_starts(self) -> None:
        """Let calls that start something wait, until :meth:`release_starts`. Idempotent."""
        if self._held is None:
            self._held = []

    def release_starts(self) -> None:
        """Do what waited, but for what nobody waits for any more. Idempotent."""
        held, self._held = self._held or [], None
        for call in held:
            if self._by_stream.get(call.stream) is call:
                self._do(call)
            else:
                self.abandon(call)

    @property
    def open_streams(self) -> int:
        """Calls that have a stream."""
        return len(self._by_stream)

    def _opened(self, event: events.Opened) -> None:
        connection = self.wire.connection
        head = event.head
        problem = self._problem(head)
        if problem is not None:
            connection.reset(event.stream, problem.code, problem.message, hint=problem.hint)
            self.wire.flush_soon()
            return
        name, id_ = head["call"], head["id"].hex()
        known = self._remembered.get(id_)
        call = Call(self.wire, event.stream, name, id_, head["args"])
        self._by_stream[event.stream] = call
        if known is not None:
            call.answer(known[1] if known[0] == name else Refusal("conflict", f"The id was used for {known[0]} before.", "Use a fresh id."))
            return
        earlier = self._under_way.get(id_)
        if earlier is not None and earlier.name == name:
            earlier.moved_to(event.stream)
            self._by_stream[event.stream] = earlier
            return
        if name not in UNREMEMBERED:
            self._under_way[id_] = call
        if self._held is not None and name in STARTING:
            self._held.append(call)
        else:
            self._do(call)

    def _do(self, call: Call) -> None:
        try:
            self.handlers[call.name](call)
        except Refusal as refusal:
            call.answer(refusal)
        except Exception as error:  # noqa: BLE001 - the far side gets an answer whatever happens
            log_exception()
            call.fail("internal", f"The guest failed: {type(error).__name__}: {error}")
        self._settle(call)

    def _problem(self, head: Any) -> Refusal | None:
        if type(head) is not dict or type(head.get("call")) is not str or type(head.get("args")) is not dict:
            return Refusal("invalid_request", "A call needs a name and arguments.")
        id_ = head.get("id")
        if type(id_) is not bytes or len(id_) != schema.CALL_ID_BYTES:
            return Refusal("invalid_request", "A call needs an id of 16 bytes.")
        name = head["call"]
        if name not in schema.CALLS or name not in self.handlers:
            return Refusal("unsupported", f"This guest has no call {name[:50]!r}.")
        if self.wire.connection.asleep and name != "guest.wake":
            return Refusal("conflict", "The guest is asleep.", "Wake it first.")
        wrong = schema.mismatch(schema.CALLS[name]["args"], head["args"])
        if wrong:
            return Refusal("invalid_request", f"{name}: {wrong}.")
        for field in schema.CALLS[name]["args"]:
            head["args"].setdefault(field, None)
        return None

    def _on_stream(self, event: events.StreamEvent) -> None:
        call = self._by_stream.get(event.stream)
        if isinstance(event, (events.Bytes, events.Received)):
            if isinstance(event, events.Bytes) and call is not None and call.on_bytes is not None and call.outcome is None:
                call.on_bytes(event.channel, event.data, event.credit)
            else:
                self.wire.connection.consumed(event.stream, event.credit)
        elif call is None:
            return
        elif isinstance(event, events.WasReset):
            del self._by_stream[event.stream]
            self._gone(call)
        elif isinstance(event, events.Ended):
            self._ended(call)
        elif isinstance(event, events.Writable) and call.on_writable is not None:
            call.on_writable()
        if call is not None:
            self._settle(call)

    def _ended(self, call: Call) -> None:
        if call.on_end is not None and call.outcome is None:
            call.on_end()
        if call.outcome is not None:
            self._by_stream.pop(call.stream, None)
        else:  # nothing more comes of the host by which it could be forgotten
            call.on_answered = lambda: self._by_stream.pop(call.stream, None)

    def _gone(self, call: Call) -> None:
        if call.outcome is None and call.on_gone is not None:
            hook, call.on_gone = call.on_gone, None
            hook()
        self._settle(call)

    def _settle(self, call: Call) -> None:
        """Remember an outcome, for the same id asked again."""
        if call.outcome is None or self._under_way.get(call.id) is not call:
            return
        del self._under_way[call.id]
        self._remember(call.id, call.name, call.outcome)

    def past(self, id_: str, name: str) -> None:
        """A process or cell is no longer kept: its id asked again is refused, not done again."""
        self._remember(id_, name, Refusal("process_not_found", "That was done before, and its result is no longer kept.", "Use a fresh id."))

    def _remember(self, id_: str, name: str, outcome: dict[str, Any] | Refusal) -> None:
        self._remembered[id_] = (name, outcome)
        while len(self._remembered) > REMEMBERED_CALLS:
            self._remembered.popitem(last=False)

    def abandon(self, call: Call) -> None:
        """A call ended without an outcome (its body never came whole): asked again, it starts anew."""
        self._under_way.pop(call.id, None)
