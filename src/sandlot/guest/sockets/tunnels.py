"""Ports of programs inside, as the host reaches them: a connection to the sandbox's own loopback, carried on the stream of a call.

Laws:
- Nothing but 127.0.0.1 and ::1 is connected to, in that order, as the sandbox's ordinary user. No network is used: a sandbox without one has this.
- Bytes pass as fast as the slower end takes them and nothing blocks (law 4): what waits of one tunnel is bounded by a stream's window for the
  program, and by what a stream queues and one read for the host. At most :data:`TUNNELS` are open at once.
- A half that is closed is closed on the other side too: the host's END is the program's end of file, the program's is the event ``end``. What is
  cut off is reset, so that it cannot pass for whole.
- Who takes nothing any more may still say something: what a program no longer reads is dropped, and what it wrote is read to its end.
- A tunnel ends with its stream: when the link is made anew or comes to rest (law 7), its connection is reset. A copy has no tunnel of what it was
  copied from.
"""

from __future__ import annotations

import errno
import struct
from itertools import islice

from sandlot.guest.calls import Refusal
from sandlot.guest.files.paths import As
from sandlot.guest.flow.loop import GONE, READ, WRITE
from sandlot.guest.spawn import account
from sandlot.protocol import schema
from sandlot.protocol.fast_imports import deque, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandlot.guest.calls import Call
    from sandlot.guest.flow.loop import Timer
    from sandlot.guest.main import Guest

TUNNELS = 64
"""A third of the streams that the host may have, so that the rest of the calls get through."""
CONNECT_S = 10.0
"""For a program that listens and accepts nobody: the kernel would go on asking for minutes (tcp_syn_retries, tcp(7))."""
READ_BYTES = 65536
PIECES = 64
"""At most so many frames' bytes as one write; Linux takes 1,024 (IOV_MAX)."""

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close() tells the far side by RST (socket(7))."""
_UNDER_WAY = (0, errno.EINPROGRESS)


class Tunnels:
    """The tunnels that are open."""

    __slots__ = ("_guest", "open")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self.open: set[Tunnel] = set()
        guest.calls.handlers["port.connect"] = self.connect

    def connect(self, call: Call) -> None:
        """``port.connect``."""
        port = call.args["port"]
        if not 0 < port <= schema.MOST_PORT:
            raise Refusal("invalid_request", f"There is no port {port}.", f"Use 1 to {schema.MOST_PORT}.")
        if port == schema.PACKAGES_PORT:
            raise Refusal("port_not_found", f"Port {port} is the service's own.", "Let the program listen on another one.")
        if len(self.open) >= TUNNELS:
            raise Refusal("limit_exceeded", f"{TUNNELS} connections to ports of the sandbox are open.", "Close one that nobody uses.")
        tunnel = Tunnel(self._guest, self, call, port)
        self.open.add(tunnel)
        tunnel.try_next()


class Tunnel:
    """One connection and its call."""

    __slots__ = (
        "_addresses",
        "_call",
        "_due",
        "_guest",
        "_host_ended",
        "_is_deaf",
        "_out",
        "_port",
        "_program_ended",
        "_shut",
        "_socket",
        "_timer",
        "_tunnels",
    )

    def __init__(self, guest: Guest, tunnels: Tunnels, call: Call, port: int) -> None:
        self._guest = guest
        self._tunnels = tunnels
        self._call = call
        self._port = port
        self._addresses: Iterator[tuple[int, str]] = iter(zip((socket.AF_INET, socket.AF_INET6), schema.LOOPBACK, strict=True))
        self._socket: socket.socket | None = None
        self._out: deque[tuple[memoryview, int]] = deque()
        self._due = False
        self._host_ended = False
        self._program_ended = False
        self._shut = False
        self._is_deaf = False
        self._timer: Timer | None = guest.loop.after(CONNECT_S, self._too_late)
        call.on_bytes, call.on_end, call.on_gone = self._take, self._end, self.cut

    # -- connecting -------------------------------------------------------------------------------------------------

    def try_next(self) -> None:
        """Connect to the next address that there is; refuse where none is left."""
        for family, address in self._addresses:
            try:
                with As(account("user")):
                    made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT:
                    continue
                self._fail("limit_exceeded", f"No connection could be made: {error.strerror}.", "Let the programs inside close some of theirs.")
                return
            if made.connect_ex((address, self._port)) in _UNDER_WAY:
                self._socket = made
                self._guest.loop.watch(made.fileno(), WRITE, lambda _mask, address=address: self._connected(address))  # type: ignore[misc]
                return
            made.close()
        self._fail(
            "port_not_found", f"Nothing listens on port {self._port}.", "Start what is to listen there first, on 127.0.0.1 or on every address."
        )

    def _connected(self, address: str) -> None:
        made = self._socket
        if made is None:
            return
        # Where nobody listens, a port that this end was given itself connects to itself (simultaneous open, RFC 9293 3.5).
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or made.getsockname()[:2] == (address, self._port):
            self._let_go()
            self.try_next()
            return
        self._stop_timer()
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what is written is whole batches already
        self._call.on_writable = self._watch
        self._call.event("connected", address=address)
        self._write_soon()
        self._watch()

    def _too_late(self) -> None:
        self._timer = None
        self._fail("timeout", f"What listens on port {self._port} accepted nobody for {CONNECT_S:g} s.", "Look whether the program still runs.")

    # -- from the host ----------------------------------------------------------------------------------------------

    def _take(self, channel: int, data: bytes, credit: int) -> None:
        if channel != schema.BODY or self._is_deaf:
            self._call.consumed(credit)
            return
        self._out.append((memoryview(data), credit))
        self._write_soon()

    def _end(self) -> None:
        self._host_ended = True
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._due:  # frames come many at a time: what they bring is one write
            self._due = True
            self._guest.loop.soon(self._write)

    def _write(self) -> None:
        self._due = False
        if self._socket is None or self._timer is not None:
            return
        try:
            while self._out:
                self._wrote(self._socket.sendmsg([piece for piece, _ in islice(self._out, PIECES)]))
            if self._host_ended and not self._shut:
                self._shut = True
                self._socket.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self._listens_no_more()
        self._finish()

    def _wrote(self, size: int) -> None:
        while size:
            piece, credit = self._out[0]
            if len(piece) > size:
                self._out[0] = (piece[size:], credit)
                return
            size -= len(piece)
            self._out.popleft()
            self._call.consumed(credit)

    def _listens_no_more(self) -> None:
        self._is_deaf = True
        while self._out:
            self._call.consumed(self._out.popleft()[1])

    # -- from the program -------------------------------------------------------------------------------------------

    def _ready(self, mask: int) -> None:
        if mask & (WRITE | GONE) and self._out:
            self._write()
        if mask & (READ | GONE) and self._reads:
            self._read()

    @property
    def _reads(self) -> bool:
        return self._socket is not None and not self._program_ended and self._call.room() > 0

    def _read(self) -> None:
        assert self._socket is not None  # noqa: S101 - what _reads says
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._fail("conflict", "The program broke the connection off.", "Look at what it printed.")
            return
        if data:
            self._call.data(schema.BODY, data)
            self._watch()
        else:
            self._program_ended = True
            self._call.event("end")
            self._finish()

    # -- both -------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Over where both have ended, or the program has and takes nothing any more."""
        if self._program_ended and (self._shut or self._is_deaf):
            self._let_go()
            self._leave()
            self._call.result()
        else:
            self._watch()

    def _watch(self) -> None:
        if self._socket is None or self._timer is not None:
            return
        mask = (READ if self._reads else 0) | (WRITE if self._out else 0)
        if mask:
            self._guest.loop.watch(self._socket.fileno(), mask, self._ready)
        else:  # a connection that is over would be told of without end (EPOLLHUP, epoll_ctl(2))
            self._guest.loop.unwatch(self._socket.fileno())

    def cut(self) -> None:
        """End it so that the program knows that it is not whole. Idempotent."""
        if self._socket is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._let_go()
        self._leave()

    def _fail(self, code: str, message: str, hint: str) -> None:
        self.cut()
        self._call.fail(code, message, hint)

    def _let_go(self) -> None:
        made, self._socket = self._socket, None
        if made is not None:
            self._guest.loop.unwatch(made.fileno())
            made.close()

    def _leave(self) -> None:
        self._stop_timer()
        self._out.clear()
        self._tunnels.open.discard(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
