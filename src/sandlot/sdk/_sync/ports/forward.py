# Made from src/sandlot/sdk/_async/ports/forward.py by scripts/unasync.py; change that file, not this one.
"""A local port that is carried to one inside."""

from __future__ import annotations

from typing import Self

from sandlot.model.errors import SandlotError
from sandlot.sdk._sync import backend
from sandlot.sdk._sync.client import Client
from sandlot.sdk._sync.ports.local import Connection, Listener
from sandlot.sdk._sync.ports.tunnel import Tunnel


class Forward:
    """A port of this machine: each connection to it is one to a port inside. Close it, or use it as a context manager."""

    def __init__(self, client: Client, sandbox: str, port: int, host: str, on_error: backend.Callback[SandlotError] | None) -> None:
        self._client = client
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

    def begin(self, local_port: int) -> Self:
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
            tunnel = Tunnel.open(self._client, self._sandbox, self.port)
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
