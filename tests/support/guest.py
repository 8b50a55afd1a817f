"""Parts of the guest for tests of single modules: a loop whose time a test moves, a recording call, and a link without I/O."""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any, cast

from sandlot.guest.connection import LinkConnection
from sandlot.guest.lifecycle import GuestLifecycle
from sandlot.guest.loop import READ_BYTES, Loop, Timer
from sandlot.guest.main import LinkEventDispatcher
from sandlot.guest.output import OutputLog
from sandlot.guest.rpc import RpcServer
from sandlot.guest.streams import StreamRouter
from sandlot.protocol import events
from sandlot.protocol.connection import GUEST, HOST, Connection


class ManualLoop:
    """A loop with timers only.

    Attributes:
        now_s: Its time.
    """

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._soon: list[Callable[[], object]] = []
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Timer]] = []

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        timer = Timer(self.now_s + delay_s, callback)
        heapq.heappush(self._timers, (timer.due_s, next(self._numbers), timer))
        return timer

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._soon.append(callback)

    def turn(self) -> None:
        """End one iteration: call back what was to be called soon."""
        soon, self._soon = self._soon, []
        for callback in soon:
            callback()

    def hold_clock(self) -> None:
        """Time stands still unless the test moves it."""

    def release_clock(self) -> None:
        """Likewise."""

    def advance(self, seconds: float) -> None:
        """Let time pass, and call back what becomes due meanwhile."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0][0] <= end_s:
            self.now_s, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self.now_s = end_s


class RecordingCall:
    """A call whose client reads everything at once.

    Attributes:
        id: Id of the call.
        args: Arguments of the call.
        fields: Fields of the events, in order.
        room_bytes: What :meth:`room` returns.
        sent: Events by name, output as ``(channel, bytes)`` and results as dictionaries, in order.
    """

    def __init__(self, args: dict[str, Any] | None = None, *, room: int = 1 << 30) -> None:
        self.id = "call"
        self.args = args or {}
        self.sent: list[Any] = []
        self.room_bytes = room
        self.fields: list[dict[str, object]] = []
        self.is_patient = False
        self.on_bytes: Any = None
        self.on_end: Any = None
        self.on_gone: Any = None
        self.on_writable: Any = None

    def room(self) -> int:
        return self.room_bytes

    def data(self, channel: int, piece: bytes) -> None:
        self.sent.append((channel, piece))

    def lost(self, channel: int, size: int) -> None:
        self.sent.append(("lost", channel, size))

    def respond(self, outcome: Any) -> None:  # noqa: ANN401 - any result or error
        self.sent.append(outcome)

    def consumed(self, credit: int) -> None:
        """The host may send more."""

    def event(self, event: str, /, **fields: object) -> None:
        self.sent.append(event)
        self.fields.append(fields)

    def result(self, **fields: Any) -> None:  # noqa: ANN401 - any field
        self.sent.append(fields)


class JoinedLink:
    """A host and the guest's end of the link with its streams and calls, joined without I/O.

    Attributes:
        host: The host's end.
        protocol: The guest's end.
        router: Streams of the guest.
        rpc: Calls of the guest; a test adds the handlers.
    """

    def __init__(self) -> None:
        self.host = Connection(HOST)
        self.protocol = Connection(GUEST, asleep=False)
        self.router = StreamRouter(cast("LinkConnection", self))
        self.rpc = RpcServer(self.router, self.is_asleep)
        self.dispatcher = LinkEventDispatcher(self.router, self.rpc, cast("GuestLifecycle", None))
        self.greet()

    def is_asleep(self) -> bool:
        return self.protocol.asleep

    def flush_soon(self) -> None:
        """What is queued is moved by :meth:`move`."""

    def flush_later(self) -> None:
        """Likewise."""

    def greet(self) -> None:
        """Let a new host connect."""
        self.host.hello(os.urandom(16))
        self.move()

    def move(self) -> list[events.Event]:
        """Move everything there is, both ways; return the events of the host."""
        received: list[events.Event] = []
        moved = True
        while moved:
            moved = False
            while (frame := self.host.next_frame()) is not None:
                moved = True
                for event in self.protocol.receive(frame):
                    self.dispatcher.on_event(event)
            while batch := self.protocol.next_batch():
                moved = True
                received += self.host.receive(batch)
            for event in self.protocol.take_events():
                self.dispatcher.on_event(event)
        return received

    def open(self, name: object, args: object, id_: object = None) -> int:
        """Open the stream of a call; return its id."""
        return self.host.open({"call": name, "id": os.urandom(16) if id_ is None else id_, "args": args})

    def ask(self, name: object, args: object, id_: object = None) -> tuple[int, list[events.Event]]:
        """Make a call that sends no bytes; return its stream and the events of the host."""
        stream = self.open(name, args, id_)
        self.host.end(stream)
        return stream, self.move()


class JoinedLinkWithLoop(JoinedLink):
    """A joined link beside a real loop, for guest services that use sockets.

    Attributes:
        received: Events of the host, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop()
        self.received: list[events.Event] = []

    @property
    def opened(self) -> list[events.Opened]:
        """Streams that the guest has opened."""
        return [event for event in self.received if isinstance(event, events.Opened)]

    def turn(self) -> None:
        """Run one turn of the loop, and move everything there is."""
        self.loop.call_later(0.01, lambda: None)  # maximum time of a turn
        self.loop.turn()
        self.received += self.move()

    def until(self, is_so: Callable[[], object]) -> None:
        """Run turns until a condition holds."""
        while not is_so():
            self.turn()


def flood(outputs: OutputLog, channels: Iterable[int]) -> bool:
    """Write as long as the guest reads, at most four times what it keeps; whether it stopped before it dropped anything."""
    for channel in channels:
        buffer = outputs.buffers[channel]
        while outputs.may_read(channel) and buffer.end < 4 * buffer.limit:
            buffer.append(b"x" * READ_BYTES)
    return all(outputs.buffers[channel].start == 0 for channel in channels)
