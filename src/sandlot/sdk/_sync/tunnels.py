# Generated from src/sandlot/sdk/_async/tunnels.py by scripts/unasync.py; change that file.
"""Tunnels to ports of a sandbox, and forwarded local ports."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Self

from sandlot.model.errors import SandlotError, UnavailableError
from sandlot.sdk import requests, responses, websocket
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.local_listener import Connection, Listener
from sandlot.sdk._sync.transport import Transport


class Tunnel:
    """A connection to a program that listens on a port of the sandbox. Iterate over it for the bytes that the program sends.

    One thread may receive while another one sends.
    """

    def __init__(self, transport: Transport, socket: backend.Socket, port: int) -> None:
        self._transport = transport
        self._socket = socket
        self._is_receive_ended = self._is_over = False
        self.port = port
        """Port inside the sandbox."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Generator[bytes]:
        while (piece := self.receive()) is not None:
            yield piece

    def receive(self) -> bytes | None:
        """Wait for the next bytes. Returns None when the program has closed its direction.

        Raises:
            ConflictError: The program reset the connection, or the sandbox was suspended.
            SandboxEndedError: The sandbox has ended.
            UnavailableError: The connection to the service broke.
        """
        while not self._is_receive_ended and not self._is_over:
            if piece := self._next():
                return piece
        return None

    def send(self, data: bytes) -> None:
        """Send bytes; waits while the program does not read.

        Raises:
            UnavailableError: The connection broke; :meth:`receive` raises the reason.
        """
        for at in range(0, len(data), backend.CHUNK_BYTES):
            with websocket.translated(self._transport.target, hint=websocket.TUNNEL_HINT):
                self._socket.send(bytes(data[at : at + backend.CHUNK_BYTES]))

    def end(self) -> None:
        """Close our direction: the program reads the end of the input and may continue to send.

        Raises:
            UnavailableError: The connection broke; :meth:`receive` raises the reason.
        """
        with websocket.translated(self._transport.target, hint=websocket.TUNNEL_HINT):
            self._socket.send(json.dumps({"end": True}))

    def wait(self) -> None:
        """Wait until both directions are closed, and skip what the program sends until then. Errors as for :meth:`receive`."""
        while not self._is_over:
            self._next()

    def close(self) -> None:
        """Close the tunnel. If a direction is still open, the program sees a reset connection."""
        self._socket.close()

    def _next(self) -> bytes:
        """Receive one message and return its bytes, which may be none."""
        try:
            with websocket.translated(self._transport.target, hint=websocket.TUNNEL_HINT):
                message = self._socket.recv()
        except UnavailableError as error:
            if not websocket.ended_well(error):
                raise
            self._is_receive_ended = self._is_over = True
            return b""
        if not isinstance(message, str):
            return bytes(message)
        event = json.loads(message)
        match event.get("event"):
            case "end":
                self._is_receive_ended = True
            case "failure":
                raise responses.error_from_problem(event)
            case str():
                pass  # an event of a newer service
            case _:
                raise websocket.invalid_message_error(self._transport.target)
        return b""


class PortForward:
    """A port of this machine whose connections are forwarded to a port of the sandbox. Close it, or use it as a context manager."""

    def __init__(self, transport: Transport, sandbox: str, port: int, host: str, on_error: backend.Callback[SandlotError] | None) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self._on_error = on_error
        self._listener = Listener(self._serve)
        self._tunnels: set[Tunnel] = set()
        self._closed = False
        self.port = port
        """Port inside the sandbox."""
        self.local_host = host
        """Address on this machine."""
        self.local_port = 0
        """Port on this machine."""

    @property
    def address(self) -> str:
        """Address and port on this machine, as ``HOST:PORT``."""
        return f"{self.local_host}:{self.local_port}"

    def _start(self, local_port: int) -> None:
        """Listen on a port; 0 chooses a free one."""
        self.local_port = self._listener.start(self.local_host, local_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._closed = True
        self._listener.stop()
        for tunnel in list(self._tunnels):
            tunnel.close()
        self._listener.close()

    def _serve(self, connection: Connection) -> None:
        """Forward one connection until both ends have closed it or one has reset it."""
        try:
            tunnel = open_tunnel(self._transport, self._sandbox, self.port)
        except SandlotError as error:
            connection.cut()
            backend.call(self._on_error, error)
            return
        self._tunnels.add(tunnel)
        try:
            with backend.beside() as start:
                if self._closed:
                    tunnel.close()
                start(self._send, connection, tunnel)
                while (piece := tunnel.receive()) is not None:
                    connection.write(piece)
                connection.end()
                tunnel.wait()
        except (SandlotError, OSError):
            connection.cut()
        finally:
            self._tunnels.discard(tunnel)
            tunnel.close()

    def _send(self, connection: Connection, tunnel: Tunnel) -> None:
        """Forward what the local client sends until it closes its direction."""
        try:
            while piece := connection.read():
                tunnel.send(piece)
            tunnel.end()
        except OSError:
            tunnel.close()
        except SandlotError:
            return  # receive() raises the reason


def open_tunnel(transport: Transport, sandbox: str, port: int) -> Tunnel:
    """Connect to a port of a sandbox."""
    return Tunnel(transport, transport.web_socket(f"/v1/sandboxes/{requests.path_segment(sandbox)}/ports/{port}/tunnel"), port)


def forward_port(
    transport: Transport, sandbox: str, port: int, host: str, local_port: int, on_error: backend.Callback[SandlotError] | None
) -> PortForward:
    """Listen on a local port, or on a free one if it is 0, and forward its connections."""
    forward = PortForward(transport, sandbox, port, host, on_error)
    forward._start(local_port)  # noqa: SLF001 - a class of this module
    return forward
