# Made from src/sandlot/sdk/_async/tunnels.py by scripts/unasync.py; change that file, not this one.
"""Connections to ports inside a sandbox: one tunnel, or a local port that is forwarded."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Self

from sandlot.model.errors import InternalError, SandlotError, UnavailableError
from sandlot.sdk import requests, responses, websocket
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.local_listener import Connection, Listener
from sandlot.sdk._sync.transport import Transport


class Tunnel:
    """A connection to what listens on a port inside: bytes both ways. Iterate it for what the program sends.

    Of two threads one may receive and the other send.
    """

    def __init__(self, transport: Transport, socket: backend.Socket, port: int) -> None:
        self._transport = transport
        self._socket = socket
        self._ended = False
        self._over = False
        self.port = port
        """The port inside."""

    @classmethod
    def open(cls, transport: Transport, sandbox: str, port: int) -> Self:
        """Connect; ``sandbox.tunnel`` is the way to it.

        Raises:
            InvalidRequestError: There is no such port.
            NotFoundError: ``port_not_found``: nothing listens there.
            LimitError: It has 64 connections already.
            TimeoutExceededError: What listens there accepts nobody for 10 s.
            ConflictError: ``sandbox_paused``: it rests and is not resumed by being used.
            SandboxEndedError: It has ended.
        """
        return cls(transport, transport.web_socket(f"/v1/sandboxes/{requests.path_segment(sandbox)}/ports/{port}/tunnel"), port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Generator[bytes]:
        while (piece := self.receive()) is not None:
            yield piece

    def receive(self) -> bytes | None:
        """What the program sends next; None once it has ended its half.

        Raises:
            ConflictError: The program broke the connection off, or the sandbox came to rest.
            SandboxEndedError: The sandbox ended.
            UnavailableError: The connection to the service broke.
        """
        while not self._ended and not self._over:
            if piece := self._next():
                return piece
        return None

    def send(self, data: bytes) -> None:
        """Send the program something; waits while it takes nothing.

        Raises:
            UnavailableError: The connection broke; who receives is told why.
        """
        for at in range(0, len(data), backend.CHUNK_BYTES):
            with websocket.translated(self._transport.target, hint=websocket.TUNNEL_HINT):
                self._socket.send(bytes(data[at : at + backend.CHUNK_BYTES]))

    def end(self) -> None:
        """Send no more: the program reads to the end of what there is, and may go on sending.

        Raises:
            UnavailableError: The connection broke; who receives is told why.
        """
        with websocket.translated(self._transport.target, hint=websocket.TUNNEL_HINT):
            self._socket.send(json.dumps({"end": True}))

    def wait(self) -> None:
        """Wait until both halves have ended; what the program sends until then is passed over.

        Raises:
            SandlotError: As for :meth:`receive`.
        """
        while not self._over:
            self._next()

    def close(self) -> None:
        """Close it; where a half has not ended, the program sees that it was broken off. Idempotent."""
        self._socket.close()

    def _next(self) -> bytes:
        """One message: the bytes that it brought, if any."""
        try:
            with websocket.translated(self._transport.target, hint=websocket.TUNNEL_HINT):
                message = self._socket.recv()
        except UnavailableError as error:
            if not websocket.ended_well(error):
                raise
            self._ended = self._over = True
            return b""
        if not isinstance(message, str):
            return bytes(message)
        told = json.loads(message)
        match told.get("event"):
            case "end":
                self._ended = True
            case "failure":
                raise responses.error_from_problem(told)
            case str():
                pass  # a newer service's
            case _:
                raise InternalError("The service sent a message that is none.", hint="Check that SANDLOT_URL is the address of a Sandlot service.")
        return b""


class PortForward:
    """A port of this machine: each connection to it is one to a port inside. Close it, or use it as a context manager."""

    def __init__(self, transport: Transport, sandbox: str, port: int, host: str, on_error: backend.Callback[SandlotError] | None) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self._on_error = on_error
        self._listener = Listener(self._serve)
        self._tunnels: set[Tunnel] = set()
        self._closed = False
        self.port = port
        """The port inside."""
        self.local_host = host
        """Where it listens."""
        self.local_port = 0
        """On which port."""

    @property
    def address(self) -> str:
        """Host and port of this machine."""
        return f"{self.local_host}:{self.local_port}"

    def start(self, local_port: int) -> Self:
        """Listen; whoever made it has."""
        self.local_port = self._listener.begin(self.local_host, local_port)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Listen no more, and break off every connection. Idempotent."""
        self._closed = True
        self._listener.stop()
        for tunnel in list(self._tunnels):
            tunnel.close()
        self._listener.close()

    def _serve(self, connection: Connection) -> None:
        """Carry one connection until both have ended, or either is broken off."""
        try:
            tunnel = Tunnel.open(self._transport, self._sandbox, self.port)
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
        """What the local client sends, to the end of its half."""
        try:
            while piece := connection.read():
                tunnel.send(piece)
            tunnel.end()
        except OSError:
            tunnel.close()
        except SandlotError:
            return  # whoever receives is told why
