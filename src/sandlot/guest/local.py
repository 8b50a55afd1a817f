"""The socket inside the sandbox: ``sudo``, and streams to services of the host (law 5).

gVisor ignores setuid bits, so an ordinary sudo cannot work; ours asks the guest, which is root already. That gives away
nothing: the boundary is the sandbox, not the uid inside it.

A client sends one message (``protocol/values.py``), for ``sudo`` with its standard descriptors beside it:

- ``{"op": "sudo", "argv", "env", "cwd"}`` answered by ``{"status": n}``, 128 + n for a signal, or ``{"error": text}``.
  When the client goes away, what it started is killed.
- ``{"op": "dial", "service", "args"}`` turns the socket into a stream to that service of the host.
"""

from __future__ import annotations

import os
import struct

from sandlot.guest.calls import Refusal
from sandlot.guest.flow.loop import READ, WRITE, log
from sandlot.guest.spawn import account, environment, start
from sandlot.guest.tasks import kill_tree
from sandlot.protocol import events, schema, values
from sandlot.protocol.errors import TooMany
from sandlot.protocol.fast_imports import deque, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sandlot.guest.main import Guest

PATH = "/run/sandlot/guest.sock"
MESSAGE_BYTES = 2 * 1024 * 1024
CLIENTS = 128
STANDARD_STREAMS = 3
FD = struct.Struct("i")
_SUDO = {"op": "str", "argv": "list[str]", "env": "map[str]", "cwd": "str"}
_DIAL = {"op": "str", "service": "str", "args": "map"}


class Local:
    """The listening socket and its clients."""

    __slots__ = ("_guest", "_listener", "by_pid", "by_stream", "clients")

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._listener: socket.socket | None = None
        self.clients: set[Client] = set()
        self.by_pid: dict[int, Client] = {}
        self.by_stream: dict[int, Client] = {}

    def listen(self) -> None:
        """Open the socket; a sandbox whose image forbids it has no sudo, and says so in the log."""
        try:
            os.makedirs(os.path.dirname(PATH), 0o755, exist_ok=True)
            if os.path.lexists(PATH):
                os.unlink(PATH)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            listener.bind(PATH)
            os.chmod(PATH, 0o666)  # noqa: S103 - everybody in a sandbox may become root of it
            listener.listen(64)
        except OSError as error:
            log(f"no local socket: {error}")
            return
        self._listener = listener
        self._guest.loop.watch(listener.fileno(), READ, lambda _mask: self._accept(listener))

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended; whether it was sudo's."""
        client = self.by_pid.pop(pid, None)
        if client is None:
            return False
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        client.pid = 0
        client.reply({"status": code})
        return True

    def handle(self, event: events.StreamEvent) -> bool:
        """An event of a stream that a client dialled; whether it was one."""
        client = self.by_stream.get(event.stream)
        if client is None:
            return False
        client.on_stream(event)
        return True

    def drop_streams(self) -> None:
        """The link was made anew: dialled streams are gone."""
        for client in list(self.by_stream.values()):
            client.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - the C half's name of accept
        except OSError:
            return
        if len(self.clients) >= CLIENTS:
            os.close(descriptor)
            return
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        self.clients.add(Client(self._guest, self, connection))


class Client:
    """One client of the socket."""

    __slots__ = ("_closing", "_fds", "_guest", "_local", "_out", "_owed", "_requests", "_sent", "_socket", "_stream", "pid")

    def __init__(self, guest: Guest, local: Local, connection: socket.socket) -> None:
        self._guest = guest
        self._local = local
        self._socket = connection
        self._requests = values.MessageReader(MESSAGE_BYTES)
        self._out = bytearray()
        self._sent = 0
        self._owed: deque[tuple[int, int]] = deque()
        self._fds: list[int] = []
        self._stream = 0
        self._closing = False
        self.pid = 0
        guest.loop.watch(connection.fileno(), READ, self._ready)

    def reply(self, message: dict[str, Any]) -> None:
        """Answer and close."""
        self._out += values.encode_message(message)
        self._closing = True
        self._write()

    def close(self) -> None:
        """Let go of everything; what was started for this client is killed. Idempotent."""
        if self not in self._local.clients:
            return
        self._local.clients.discard(self)
        self._guest.loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._close_fds()
        if self.pid:
            kill_tree(self.pid, signal.SIGKILL)
        if self._stream:
            self._local.by_stream.pop(self._stream, None)
            self._guest.wire.connection.reset(self._stream, "conflict", "The client closed.")
            self._guest.wire.flush_soon()

    def on_stream(self, event: events.StreamEvent) -> None:
        """Something came on the dialled stream."""
        if isinstance(event, events.Bytes):
            self._out += event.data
            self._owed.append((self._sent + len(self._out), event.credit))
            self._write()
        elif isinstance(event, events.Received):
            self._guest.wire.connection.consumed(event.stream, event.credit)
        elif isinstance(event, events.Ended):
            self._closing = True
            self._write()
        elif isinstance(event, events.WasReset):
            self._local.by_stream.pop(self._stream, None)
            self._stream = 0
            self.close()
        elif isinstance(event, events.Writable):
            self._guest.loop.watch(self._socket.fileno(), self._mask(), self._ready)

    def _mask(self) -> int:
        room = not self._stream or self._guest.wire.connection.room(self._stream) > 0
        return (READ if room else 0) | (WRITE if self._out else 0)

    def _ready(self, mask: int) -> None:
        if mask & WRITE:
            self._write()
        if mask & ~WRITE and self in self._local.clients:
            self._read()

    def _read(self) -> None:
        fds: list[int] = []
        try:
            if self._stream or self.pid:
                data = self._socket.recv(65536)
            else:
                data, fds = self._receive_with_fds()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._fds += fds
        if not data:
            if self._stream:
                self._guest.wire.connection.end(self._stream)
                self._guest.wire.flush_soon()
                self._guest.loop.watch(self._socket.fileno(), WRITE if self._out else 0, self._ready)
            else:
                self.close()
            return
        if self._stream:
            self._guest.wire.connection.send_bytes(self._stream, schema.BODY, data)
            self._guest.wire.flush_soon()
            self._guest.loop.watch(self._socket.fileno(), self._mask(), self._ready)
        elif not self.pid:
            self._requests.feed(data)
            self._parse()

    def _receive_with_fds(self) -> tuple[bytes, list[int]]:
        data, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_LEN(STANDARD_STREAMS * FD.size), socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += [number for (number,) in FD.iter_unpack(payload[: len(payload) - len(payload) % FD.size])]
        return data, fds

    def _parse(self) -> None:
        try:
            raw = self._requests.take()
        except values.MessageTooLargeError:
            self.reply({"error": "The request is too large."})
            return
        if raw is None:
            return
        try:
            self._do(values.decode(raw))
        except values.BadValue as error:
            self.reply({"error": f"The request makes no sense: {error}."})
        except Refusal as refusal:
            self.reply({"error": refusal.message})
        finally:
            self._close_fds()

    def _do(self, message: Any) -> None:
        if schema.mismatch(_SUDO, message) == "" and message["op"] == "sudo" and message["argv"] and len(self._fds) == STANDARD_STREAMS:
            who = account("root")
            env = environment(who, self._guest.env, message["env"], {"HOME": who.home, "USER": "root", "LOGNAME": "root"})
            stdin, stdout, stderr = self._fds
            self.pid = start(message["argv"], env, message["cwd"], who, (stdin, stdout, stderr))
            self._local.by_pid[self.pid] = self
            self._guest.pids.watch()
        elif schema.mismatch(_DIAL, message) == "" and message["op"] == "dial":
            try:
                self._stream = self._guest.wire.connection.open({"service": message["service"], "args": message["args"]})
            except TooMany as error:
                raise Refusal("busy", f"The service cannot be reached now: {error}.") from None
            self._local.by_stream[self._stream] = self
            self._guest.wire.flush_soon()
        else:
            self.reply({"error": "The request makes no sense."})

    def _close_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _write(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(memoryview(self._out)[:65536])
                del self._out[:sent]
                self._sent += sent
                while self._owed and self._owed[0][0] <= self._sent:
                    self._guest.wire.connection.consumed(self._stream, self._owed.popleft()[1])
                    self._guest.wire.flush_soon()
        except BlockingIOError:
            self._guest.loop.watch(self._socket.fileno(), self._mask(), self._ready)
            return
        except OSError:
            self.close()
            return
        if self._closing:
            self.close()
        else:
            self._guest.loop.watch(self._socket.fileno(), self._mask(), self._ready)
