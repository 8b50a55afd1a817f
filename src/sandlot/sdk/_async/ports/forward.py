"""A local port that is carried to one inside."""

from __future__ import annotations

from typing import Self

from sandlot.model.errors import SandlotError
from sandlot.sdk._async import backend
from sandlot.sdk._async.client import AsyncClient
from sandlot.sdk._async.ports.local import Connection, Listener
from sandlot.sdk._async.ports.tunnel import AsyncTunnel


class AsyncForward:
    """A port of this machine: each connection to it is one to a port inside. Close it, or use it as a context manager."""

    def __init__(self, client: AsyncClient, sandbox: str, port: int, host: str, on_error: backend.Callback[SandlotError] | None) -> None:
        self._client = client
        self._sandbox = sandbox
        self._on_error = on_error
        self._listener = Listener(self._serve)
        self._tunnels: set[AsyncTunnel] = set()
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

    async def begin(self, local_port: int) -> Self:
        """Listen; whoever made it has."""
        self.local_port = await self._listener.begin(self.local_host, local_port)
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Listen no more, and break off every connection. Idempotent."""
        self._closed = True
        self._listener.stop()
        for tunnel in list(self._tunnels):
            await tunnel.aclose()
        await self._listener.aclose()

    async def _serve(self, connection: Connection) -> None:
        """Carry one connection until both have ended, or either is broken off."""
        try:
            tunnel = await AsyncTunnel.open(self._client, self._sandbox, self.port)
        except SandlotError as error:
            connection.cut()
            await backend.call(self._on_error, error)
            return
        self._tunnels.add(tunnel)
        try:
            async with backend.beside() as start:
                if self._closed:
                    await tunnel.aclose()
                start(self._send, connection, tunnel)
                while (piece := await tunnel.receive()) is not None:
                    await connection.write(piece)
                connection.end()
                await tunnel.wait()
        except (SandlotError, OSError):
            connection.cut()
        finally:
            self._tunnels.discard(tunnel)
            await tunnel.aclose()

    async def _send(self, connection: Connection, tunnel: AsyncTunnel) -> None:
        """What the local client sends, to the end of its half."""
        try:
            while piece := await connection.read():
                await tunnel.send(piece)
            await tunnel.end()
        except OSError:
            await tunnel.aclose()
        except SandlotError:
            return  # whoever receives is told why
