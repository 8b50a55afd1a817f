"""Local TCP connections of forwarded ports. The other half has its own version, also written by hand."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

from sandlot.sdk._async.backend import CHUNK_BYTES

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with a time of 0: close() sends RST (socket(7)); abort() alone sends it only while input is unread."""


class Connection:
    """A connection from a client on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """Wait for the next bytes; b"" once the client has closed its direction."""
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Send bytes; waits while the client does not read."""
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Close our direction."""
        self._writer.write_eof()

    def cut(self) -> None:
        """Reset the connection, so that the client sees that it is incomplete. Idempotent."""
        transport = self._writer.transport
        if not transport.is_closing():  # a closing transport may have no socket
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        self._writer.close()


class Listener:
    """A local listener that serves each connection in its own task until the listener is closed."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port.

        Raises:
            OSError: The port is in use.
        """
        self._server = await asyncio.start_server(self._accepted, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Stop listening. Idempotent."""
        if self._server is not None:
            self._server.close()

    async def aclose(self) -> None:
        """Stop listening and end all connections. Idempotent."""
        self.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._attend(Connection(reader, writer)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attend(self, connection: Connection) -> None:
        try:
            await self._serve(connection)
        except asyncio.CancelledError:
            connection.cut()
            raise
        finally:
            await connection.aclose()
