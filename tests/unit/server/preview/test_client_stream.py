"""Bytes of client connections over real sockets."""

from __future__ import annotations

import asyncio
import socket

from sandlot.server.preview.client_stream import ClientStream
from tests.unit.server.preview.world import WAIT_S


async def accept() -> tuple[ClientStream, socket.socket]:
    """Return a connection and its client, which has not read what fills the buffers of the kernel."""
    accepted: asyncio.Queue[ClientStream] = asyncio.Queue()
    server = await asyncio.get_running_loop().create_server(lambda: ClientStream(accepted.put_nowait), "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname(), timeout=WAIT_S)
    stream = await accepted.get()
    server.close()
    while not stream.transport.get_write_buffer_size():
        stream.transport.write(bytes(65536))
    return stream, client


async def test_closing_ends_after_a_time_although_the_client_reads_nothing() -> None:
    stream, client = await accept()
    stream.close(0.05)
    async with asyncio.timeout(WAIT_S):
        await stream.closed
    client.close()


async def test_closing_waits_for_a_client_that_reads() -> None:
    stream, client = await accept()
    stream.transport.write(b"end")
    stream.close(WAIT_S)
    assert not stream.closed.done()
    received = await asyncio.to_thread(lambda: b"".join(iter(lambda: client.recv(65536), b"")))
    assert received.endswith(b"end")
    await stream.closed
    client.close()
