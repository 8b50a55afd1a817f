"""The package index as programs inside see it: a port of the sandbox's own loopback, which is carried to the host (law 5).

Laws:
- One TCP connection is one stream of the service ``packages``; nothing here reads what is on it.
- Bytes pass as fast as the slower end takes them and nothing blocks (law 4): what waits of one connection is bounded by a stream's window.
- A half that is closed is closed on the other side too. What is cut off is reset, so that it cannot pass for whole.
- At most :data:`CONNECTIONS` are carried at once, fewer than the streams that a guest may have. Others wait in the kernel's queue; a connection
  that is merely kept alive gives way to them. Whoever opens thousands fills that queue, and nothing else.
- A stream is opened with a connection's first bytes: who says nothing costs the host nothing.
- When the link is made anew, or comes to rest, connections that have a stream are reset (law 7), and the port goes on listening. Package managers
  ask again after that. Between two services, what is asked waits for the second one in the link's pipe, and is reset by its greeting.
"""

from __future__ import annotations

import struct
import time
from fcntl import ioctl
from itertools import islice

from sandlot.guest.flow.loop import GONE, READ, WRITE, log
from sandlot.protocol import events, schema
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.fast_imports import deque, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sandlot.guest.main import Guest

ADDRESS = ("127.0.0.1", schema.PACKAGES_PORT)
CONNECTIONS = 48
"""Three quarters of the streams that a guest may have; more than any package manager opens unless it is told to."""
BACKLOG = 128
PAUSE_S = 0.1
"""Seconds between two attempts to accept a connection, or to open its stream, while as many are open as are allowed."""
YIELD_S = 1.0
"""A connection gives way when for so long nothing has come for it, and it has asked nothing since something did."""
READ_BYTES = 65536
PIECES = 64
"""At most so many frames' bytes as one write; Linux takes 1,024 (IOV_MAX)."""

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IFREQ = struct.Struct("16sh14x")
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close() tells the far side by RST (socket(7))."""


class Relay:
    """The port and the connections that it carries."""

    __slots__ = ("_guest", "_is_paused", "_listener", "by_stream", "carried")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._listener: socket.socket | None = None
        self._is_paused = False
        self.carried: set[Carried] = set()
        self.by_stream: dict[int, Carried] = {}

    def listen(self) -> None:
        """Open the port. A sandbox in which that cannot be done has no packages, and says so in the log."""
        try:
            listener = _listening()
        except OSError as error:
            log(f"no port for packages: {error}")
            return
        self._listener = listener
        self._guest.loop.watch(listener.fileno(), READ, self._accept)

    def handle(self, event: events.StreamEvent) -> bool:
        """An event of a stream of a connection; whether it was one."""
        carried = self.by_stream.get(event.stream)
        if carried is None:
            return False
        carried.on_stream(event)
        return True

    def drop_streams(self) -> None:
        """The link was made anew, or comes to rest: what was on its way is lost, and its owners are told so."""
        gone, self.by_stream = self.by_stream, {}
        for carried in gone.values():
            carried.cut()

    def left(self, carried: Carried) -> None:
        """A connection is over, so that there is room for another."""
        self.carried.discard(carried)
        self.by_stream.pop(carried.stream, None)
        self._resume()

    def _accept(self, _mask: int) -> None:
        if self._listener is None or (len(self.carried) >= CONNECTIONS and not self._make_room()):
            self._pause()
            return
        try:
            descriptor, _ = self._listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - the C half's name of accept
        except BlockingIOError:
            return
        except OSError as error:  # descriptors are used up, or it was reset before: the queue is no reason to spin
            log(f"packages: {error}")
            self._pause()
            return
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        # What is written is whole batches already; and a last small piece must not wait for an acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.carried.add(Carried(self._guest, self, connection))

    def _make_room(self) -> bool:
        """End the connection that has been idle for longest, where one may be ended."""
        before_s = time.monotonic() - YIELD_S
        idle = [carried for carried in self.carried if carried.idle_since_s <= before_s]
        if idle:
            min(idle, key=lambda carried: carried.idle_since_s).close()
        return bool(idle)

    def _pause(self) -> None:
        if self._listener is not None and not self._is_paused:
            self._is_paused = True
            self._guest.loop.unwatch(self._listener.fileno())
            self._guest.loop.after(PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._listener is not None and self._is_paused:
            self._is_paused = False
            self._guest.loop.watch(self._listener.fileno(), READ, self._accept)


class Carried:
    """One connection, and its stream once it has said something."""

    __slots__ = ("_asked", "_client_ended", "_closed", "_due", "_guest", "_host_ended", "_last_s", "_out", "_relay", "_socket", "stream")

    def __init__(self, guest: Guest, relay: Relay, connection: socket.socket) -> None:
        self._guest = guest
        self._relay = relay
        self._socket = connection
        self._out: deque[tuple[memoryview, int]] = deque()
        self._due = False
        self._asked = False
        self._client_ended = False
        self._host_ended = False
        self._closed = False
        self._last_s = time.monotonic()
        self.stream = 0
        guest.loop.watch(connection.fileno(), READ, self._ready)

    @property
    def idle_since_s(self) -> float:
        """Since when nobody waits for anything on it (monotonic); infinite where somebody may."""
        return float("inf") if self._asked or self._out else self._last_s

    def on_stream(self, event: events.StreamEvent) -> None:
        """Something came from the host."""
        if isinstance(event, events.Bytes):
            self._out.append((memoryview(event.data), event.credit))
            self._write_soon()
        elif isinstance(event, events.Received):
            self._guest.wire.connection.consumed(event.stream, event.credit)
        elif isinstance(event, events.Ended):
            self._host_ended = True
            self._write_soon()
        elif isinstance(event, events.WasReset):
            self.cut()
        elif isinstance(event, events.Writable):
            self._watch()

    def cut(self) -> None:
        """End it so that whoever reads knows that it is not whole. Idempotent."""
        if not self._closed:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close()

    def close(self) -> None:
        """Let go of it, and of its stream where that goes on. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._guest.loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._out.clear()
        if self._relay.by_stream.get(self.stream) is self:
            self._guest.wire.connection.reset(self.stream, "conflict", "The connection was closed.")
            self._guest.wire.flush_soon()
        self._relay.left(self)

    def _ready(self, mask: int) -> None:
        if mask & WRITE:
            self._write()
        if self._closed:
            return
        if mask & READ:
            self._read()
        elif mask & GONE:
            self.close()

    def _read(self) -> None:
        if not self.stream and self._guest.wire.connection.is_full:
            # Closed connections count until their RESET is sent. The request stays in the socket until then.
            self._asked = True
            self._guest.loop.unwatch(self._socket.fileno())
            self._guest.loop.after(PAUSE_S, self._watch)
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if data:
            self._send(data)
        elif self.stream:
            self._client_ended = True
            self._guest.wire.connection.end(self.stream)
            self._guest.wire.flush_soon()
            self._finish()
        else:
            self.close()

    def _send(self, data: bytes) -> None:
        connection = self._guest.wire.connection
        if not self.stream:
            self.stream = 0 if connection.asleep else self._opened()
            if not self.stream:
                self.cut()
                return
            self._relay.by_stream[self.stream] = self
        self._asked = True
        connection.send_bytes(self.stream, schema.BODY, data)
        self._guest.wire.flush_soon()
        self._watch()

    def _opened(self) -> int:
        """Open the connection's stream; 0 if the link is not ready, because no host has greeted it."""
        try:
            return self._guest.wire.connection.open({"service": schema.PACKAGES, "args": {}})
        except ProtocolError:
            return 0

    def _write_soon(self) -> None:
        if not self._due:  # frames come many at a time: what they bring is one write
            self._due = True
            self._guest.loop.soon(self._write)

    def _write(self) -> None:
        self._due = False
        if self._closed:
            return
        try:
            while self._out:
                self._took(self._socket.sendmsg([piece for piece, _ in islice(self._out, PIECES)]))
        except BlockingIOError:
            pass
        except OSError:  # nobody reads it any more
            self.close()
            return
        self._finish()

    def _took(self, size: int) -> None:
        self._asked = False
        self._last_s = time.monotonic()
        while size:
            piece, credit = self._out[0]
            if len(piece) > size:
                self._out[0] = (piece[size:], credit)
                break
            size -= len(piece)
            self._out.popleft()
            self._guest.wire.connection.consumed(self.stream, credit)
        self._guest.wire.flush_soon()

    def _finish(self) -> None:
        """Pass the host's end on once all before it is written; over where both have ended."""
        if self._host_ended and not self._out:
            if self._client_ended:
                self.close()
                return
            try:
                self._socket.shutdown(socket.SHUT_WR)
            except OSError:
                self.close()
                return
        self._watch()

    def _watch(self) -> None:
        if self._closed:
            return
        reads = not self._client_ended and (not self.stream or self._guest.wire.connection.room(self.stream) > 0)
        self._guest.loop.watch(self._socket.fileno(), (READ if reads else 0) | (WRITE if self._out else 0), self._ready)


def _listening() -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _raise_loopback(listener)
    listener.bind(ADDRESS)
    listener.listen(BACKLOG)
    return listener


def _raise_loopback(any_socket: socket.socket) -> None:
    """Bring the loopback of a new network namespace up (netdevice(7)), where the runtime has not: gVisor and container runtimes do."""
    name, flags = _IFREQ.unpack(ioctl(any_socket.fileno(), _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0)))
    if not flags & _IFF_UP:
        ioctl(any_socket.fileno(), _SIOCSIFFLAGS, _IFREQ.pack(name, flags | _IFF_UP))
