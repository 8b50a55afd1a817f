"""Server of ``sudo``: a socket through which programs in the sandbox start programs as root.

gVisor ignores set-uid bits, so an ordinary sudo cannot work. The ``sudo`` of the images sends its command to the guest, which
runs as root. This does not weaken the isolation: the security boundary is the sandbox, not the uid.

A client sends one message, encoded by ``protocol/values.py``, together with its three standard descriptors:
``{"op": "sudo", "argv", "env", "cwd"}``. The response is ``{"status": number}`` or ``{"error": text}``. The status
is the exit code, or 128 + the number of the signal that has ended the program. If the client closes the connection, its program is killed.
"""

from __future__ import annotations

import os
import struct

from sandlot.guest.errors import RpcError
from sandlot.guest.loop import READ, WRITE, log
from sandlot.guest.process.accounts import lookup_account
from sandlot.guest.process.procfs import kill_tree
from sandlot.protocol import schema, values
from sandlot.protocol.fast_imports import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage
    from typing import Any

    from sandlot.guest.loop import Loop
    from sandlot.guest.process.spawn import Spawner

SOCKET_PATH = "/run/sandlot/guest.sock"
MAX_MESSAGE_BYTES = 2 * 1024 * 1024
MAX_CLIENTS = 128
STANDARD_STREAMS = 3
_FD = struct.Struct("i")
_REQUEST = {"op": "str", "argv": "list[str]", "env": "map[str]", "cwd": "str"}


class SudoServer:
    """Listening socket of ``sudo``, and its connected clients.

    Args:
        loop: The guest's loop.
        spawner: Starts the programs.
    """

    __slots__ = ("_clients", "_loop", "_spawner")

    def __init__(self, loop: Loop, spawner: Spawner) -> None:
        self._loop = loop
        self._spawner = spawner
        self._clients: set[SudoRequest] = set()

    def listen(self) -> None:
        """Open the socket and begin to accept clients. If this fails, log the error. The sandbox then has no sudo."""
        try:
            os.makedirs(os.path.dirname(SOCKET_PATH), 0o755, exist_ok=True)
            if os.path.lexists(SOCKET_PATH):
                os.unlink(SOCKET_PATH)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
            listener.bind(SOCKET_PATH)
            os.chmod(SOCKET_PATH, 0o666)  # noqa: S103 - every program in a sandbox may become root of the sandbox
            listener.listen(64)
        except OSError as error:
            log(f"cannot open the socket of sudo, {SOCKET_PATH}: {error}")
            return
        self._loop.watch(listener.fileno(), READ, lambda _mask: self._accept(listener))

    def _accept(self, listener: socket.socket) -> None:
        try:
            descriptor, _ = listener._accept()  # type: ignore[attr-defined]  # noqa: SLF001 - the C module has no accept()
        except OSError:
            return
        if len(self._clients) >= MAX_CLIENTS:
            os.close(descriptor)
            return
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        self._clients.add(SudoRequest(self._loop, self._spawner, connection, self._clients))


class SudoRequest:
    """One client of ``sudo``: its connection, and the program that was started for its request.

    Args:
        loop: The guest's loop.
        spawner: Starts the program.
        connection: Accepted, non-blocking socket; ownership passes to this object.
        clients: All connected clients. This object removes itself from the set when its connection is closed.
    """

    __slots__ = ("_clients", "_fds", "_has_response", "_loop", "_out", "_pid", "_requests", "_socket", "_spawner")

    def __init__(self, loop: Loop, spawner: Spawner, connection: socket.socket, clients: set[SudoRequest]) -> None:
        self._loop = loop
        self._spawner = spawner
        self._socket = connection
        self._clients = clients
        self._requests = values.MessageReader(MAX_MESSAGE_BYTES)
        self._out = bytearray()
        self._fds: list[int] = []
        self._has_response = False
        self._pid = 0
        loop.watch(connection.fileno(), READ, self._on_ready)

    def on_exit(self, status: int, _usage: struct_rusage) -> None:
        """Send the exit status of the program to the client.

        Args:
            status: Status of wait(2).
        """
        self._pid = 0
        if self in self._clients:
            self._respond({"status": 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)})

    def on_killed(self, _reason: str) -> None:
        """Do nothing when the guest kills the program: ``on_exit`` follows and responds with the signal."""

    def _respond(self, message: dict[str, Any]) -> None:
        """Send a response to the client, then close the connection."""
        self._out += values.encode_message(message)
        self._has_response = True
        self._write()

    def _close(self) -> None:
        """Close the connection, and kill the program if it still runs. Idempotent."""
        if self not in self._clients:
            return
        self._clients.discard(self)
        self._loop.unwatch(self._socket.fileno())
        self._socket.close()
        self._close_fds()
        if self._pid:
            kill_tree(self._pid, signal.SIGKILL)

    def _on_ready(self, mask: int) -> None:
        if mask & WRITE:
            self._write()
        if mask & ~WRITE and self in self._clients:
            self._read()

    def _read(self) -> None:
        fds: list[int] = []
        try:
            if self._pid:
                data = self._socket.recv(65536)
            else:
                data, fds = self._receive_with_fds()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._fds += fds
        if not data or len(self._fds) > STANDARD_STREAMS:
            self._close()
        elif not self._pid and not self._has_response:
            self._requests.feed(data)
            self._parse()

    def _receive_with_fds(self) -> tuple[bytes, list[int]]:
        data, ancillary, _, _ = self._socket.recvmsg(65536, socket.CMSG_LEN(STANDARD_STREAMS * _FD.size), socket.MSG_CMSG_CLOEXEC)
        fds: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += [number for (number,) in _FD.iter_unpack(payload[: len(payload) - len(payload) % _FD.size])]
        return data, fds

    def _parse(self) -> None:
        try:
            raw = self._requests.take()
        except values.MessageTooLargeError:
            self._respond({"error": f"The command with its environment is larger than {MAX_MESSAGE_BYTES} bytes."})
            return
        if raw is None:
            return
        try:
            self._start(values.decode(raw))
        except values.EncodingError as error:
            self._respond({"error": f"The message of the sudo client cannot be decoded: {error}."})
        except RpcError as error:
            self._respond({"error": error.message})
        finally:
            self._close_fds()

    def _start(self, request: Any) -> None:
        if schema.validate_fields(_REQUEST, request) or request["op"] != "sudo" or not request["argv"] or len(self._fds) != STANDARD_STREAMS:
            self._respond({"error": f"The request needs `op`, `argv`, `env`, `cwd` and {STANDARD_STREAMS} descriptors; {len(self._fds)} were sent."})
            return
        account = lookup_account("root")
        env = {**request["env"], "HOME": account.home, "USER": "root", "LOGNAME": "root"}
        stdin, stdout, stderr = self._fds
        self._pid = self._spawner.spawn(request["argv"], account, (stdin, stdout, stderr), self, env=env, cwd=request["cwd"])

    def _close_fds(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _write(self) -> None:
        try:
            while self._out:
                sent = self._socket.send(memoryview(self._out)[:65536])
                del self._out[:sent]
        except BlockingIOError:
            self._loop.watch(self._socket.fileno(), READ | WRITE, self._on_ready)
            return
        except OSError:
            self._close()
            return
        if self._has_response:
            self._close()
