"""A package registry of a test's own, on a loopback port: it says what it is told to say, breaks off and stalls on order, and remembers who asked."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that came.

    Args:
        path: With its query.
        headers: In lower case.
    """

    path: str
    headers: Mapping[str, str]


@dataclass(slots=True)
class Said:
    """What is answered.

    Args:
        body: All of it.
        status: HTTP's.
        headers: Beside Content-Length.
        cut_at: The connection breaks after so many bytes of the body.
        hold_at: After so many bytes it waits for ``held``.
        held: Set it, and the rest follows.
        chunked: Nobody is told the length.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_at: int | None = None
    hold_at: int | None = None
    held: asyncio.Event = field(default_factory=asyncio.Event)
    chunked: bool = False


Answering = Said | Callable[[Asked], Said]


class Upstream:
    """It.

    Args:
        origin: Where.
    """

    def __init__(self) -> None:
        self.origin = ""
        self.says: dict[str, Answering] = {}
        """Path -> answer; 404 where there is none."""
        self.asked: list[Asked] = []

    @property
    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [each.path for each in self.asked]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
                asked = Asked(first.split(" ")[1], headers)
                self.asked.append(asked)
                found = self.says.get(asked.path, Said(status=404))
                if not await _say(writer, found(asked) if callable(found) else found):
                    break
        writer.close()


@asynccontextmanager
async def upstream(tls: ssl.SSLContext | None = None) -> AsyncIterator[Upstream]:
    """One for as long as the context is open.

    Args:
        tls: It speaks HTTPS with that certificate.
    """
    here = Upstream()
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await here.connected(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            connections.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    here.origin = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield here
    finally:
        server.close()
        for task in [*connections]:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _say(writer: asyncio.StreamWriter, said: Said) -> bool:
    """Whether the connection goes on."""
    sent = () if said.status in {204, 304} else (("Transfer-Encoding", "chunked"),) if said.chunked else (("Content-Length", str(len(said.body))),)
    head = "".join(f"{name}: {value}\r\n" for name, value in (*said.headers.items(), *sent))
    writer.write(f"HTTP/1.1 {said.status} X\r\n{head}\r\n".encode("latin-1"))
    edges = sorted({0, len(said.body), *(each for each in (said.cut_at, said.hold_at) if each is not None)})
    for start, end in zip(edges, [*edges[1:], None], strict=True):
        if said.hold_at == start:
            await writer.drain()
            await said.held.wait()
        if said.cut_at == start:
            await writer.drain()
            writer.transport.abort()
            return False
        piece = said.body[start:end]
        if piece:
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n" if said.chunked else piece)
    if said.chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True
