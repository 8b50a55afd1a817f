"""Local connections for those who forward ports; its twin is written by hand too."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

from sandlot.sdk._async.backend import CHUNK_BYTES

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: close() tells the far side by RST (socket(7)), which abort() alone does only where something is unread."""


class Connection:
    """One client on this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """What it sends next; b"" once it sends no more."""
        return await self._reader.read(CHUNK_BYTES)

    async def write(self, data: bytes) -> None:
        """Send it something; waits while it takes nothing."""
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        """Send no more."""
        self._writer.write_eof()

    def cut(self) -> None:
        """End it so that it knows that it is not whole. Idempotent."""
        transport = self._writer.transport
        if not transport.is_closing():  # one that is may have no socket any more
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        transport.abort()

    async def aclose(self) -> None:
        """End it. Idempotent."""
        self._writer.close()


class Listener:
    """Connections of this machine, each served in a task of its own until the listener is closed."""

    def __init__(self, serve: Callable[[Connection], Awaitable[None]]) -> None:
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, host: str, port: int) -> int:
        """Listen; the port.

        Raises:
            OSError: The port is somebody else's.
        """
        self._server = await asyncio.start_server(self._accepted, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Listen no more. Idempotent."""
        if self._server is not None:
            self._server.close()

    async def aclose(self) -> None:
        """Listen no more, and end what is served. Idempotent."""
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
