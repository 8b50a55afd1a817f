"""A preview listener whose sandboxes are servers of the test on loopback, and raw clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from sandlot.core.forwarding.previews import preview_denied
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError, SandlotError
from sandlot.model.ids import SandboxId
from sandlot.model.previews import PreviewAccess, preview_label
from sandlot.server.preview.listener import PreviewListener
from sandlot.server.settings import Settings
from sandlot.server.vendors import VENDORS
from sandlot.web.request_turns import RequestTurns

SANDBOX = SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa")
OTHER = SandboxId("sb-aaaa-bbbbbbbbbbbbbbbb")
PORT = 3000
WAIT_S = 20
MAX_CONNECTIONS = 64

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def token_of(sandbox: str, port: int = PORT) -> str:
    """Return the token that opens a port in these tests."""
    return f"{preview_label(SandboxId(sandbox), port)}.local.9999999999.signature"


class Program:
    """A server that records what arrives at each connection, and follows a script after each request head."""

    def __init__(self) -> None:
        self.connections: list[bytearray] = []
        self.closed = asyncio.Event()
        self.respond: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]] = self._hello
        """Function that gets the data that has arrived since its last call."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def received(self) -> bytes:
        """All bytes that have arrived."""
        return b"".join(self.connections)

    async def start(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    @property
    def port(self) -> int:
        """Port on the loopback of this machine."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Close the server and its connections."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        received = bytearray()
        self.connections.append(received)
        try:
            while data := await reader.read(65536):
                received += data
                await self.respond(data, writer)
        except ConnectionError:
            pass
        finally:
            self.closed.set()
            writer.close()

    @staticmethod
    async def _hello(data: bytes, writer: asyncio.StreamWriter) -> None:
        if b"\r\n\r\n" in data:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")


class _Tunnel:
    """A tunnel to a program of the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._reading: asyncio.Task[bytes] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._reading = asyncio.ensure_future(self._reader.read(65536))
        try:
            data = await self._reading
        except asyncio.CancelledError:
            if self._writer.is_closing():
                raise StopAsyncIteration from None
            raise
        except OSError:
            raise ConflictError("The program reset the connection.", code=ErrorCode.CONFLICT) from None
        if not data:
            raise StopAsyncIteration
        return data

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise ConflictError("The tunnel has ended.", code=ErrorCode.CONFLICT)
        self._writer.write(data)
        with contextlib.suppress(OSError):
            await self._writer.drain()

    async def end(self) -> None:
        self._writer.write_eof()

    async def wait_ended(self) -> None:
        await self._writer.wait_closed()

    async def aclose(self) -> None:
        self._writer.close()
        if self._reading is not None:
            self._reading.cancel()


class World:
    """A preview listener with programs in two sandboxes.

    Attributes:
        authorized: Number of decisions about access.
        tunnels: Number of tunnels that were opened.
        public: Sandboxes whose ports need no token.
        is_running: False while the sandboxes are suspended.
        problems: Errors of the next attempts to open a tunnel.
    """

    def __init__(self) -> None:
        self.programs = {SANDBOX: Program(), OTHER: Program()}
        self.authorized = self.tunnels = 0
        self.public: set[str] = set()
        self.is_running = True
        self.problems: list[SandlotError] = []
        self.clients: list[Connection] = []
        self.listener: PreviewListener
        self.port = 0

    @property
    def program(self) -> Program:
        """Program of the first sandbox."""
        return self.programs[SANDBOX]

    @property
    def host(self) -> str:
        """Host of the preview of the first sandbox."""
        return self.listener.address.host(SANDBOX, PORT)

    def authorize(self, sandbox: str, port: int, tokens: Iterable[str], header_tokens: Iterable[str]) -> PreviewAccess:
        """Take the place of the service's own decision."""
        self.authorized += 1
        token = next((each for each in (*header_tokens, *tokens) if each == token_of(sandbox, port)), None)
        if token is None and sandbox not in self.public:
            raise preview_denied()
        return PreviewAccess(OPERATOR, SandboxId(sandbox), port, f"localhost:{port}", self.is_running, token, None if token is None else 60.0)

    async def connect(self, principal: Any, sandbox: str, port: int) -> _Tunnel:  # noqa: ANN401 - unused
        """Open a tunnel to a program."""
        del principal
        if self.problems:
            raise self.problems.pop()
        if port != PORT:
            raise NotFoundError("Nothing listens.", code=ErrorCode.PORT_NOT_FOUND)
        self.tunnels += 1
        return _Tunnel(*await asyncio.open_connection("127.0.0.1", self.programs[SandboxId(sandbox)].port))

    def head(
        self, target: str = "/", *headers: str, method: str = "GET", sandbox: SandboxId = SANDBOX, version: str = "1.1", token: bool = True
    ) -> bytes:
        """Return the head of a request in the host form."""
        lines = [f"{method} {target} HTTP/{version}", f"Host: {self.listener.address.host(sandbox, PORT)}", *headers]
        if token:
            lines.append(f"X-Sandlot-Preview-Token: {token_of(sandbox)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    async def open(self) -> Connection:
        """Open a client connection."""
        client = Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client

    async def request(self, data: bytes) -> Response:
        """Send a request over a new connection, and return the response."""
        client = await self.open()
        try:
            client.write(data)
            return await client.response()
        finally:
            client.close()


class Response:
    """A response as it arrived."""

    def __init__(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    def values(self, name: str) -> list[str]:
        """Return the values of a header."""
        return [value for each, value in self.headers if each == name]


class Connection:
    """A raw client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def abort(self) -> None:
        """Reset the connection."""
        self._writer.transport.abort()

    async def read(self, size: int) -> bytes:
        """Return exactly so many bytes."""
        async with asyncio.timeout(WAIT_S):
            return await self._reader.readexactly(size)

    async def read_to_end(self) -> bytes:
        """Return all bytes until the end of the connection; an error of the connection is an end."""
        data = bytearray()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WAIT_S):
                while piece := await self._reader.read(65536):
                    data += piece
        return bytes(data)

    async def response_head(self) -> Response:
        """Return the next response without its body."""
        async with asyncio.timeout(WAIT_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines[1:] if line)]
        return Response(int(lines[0].split()[1]), headers, b"")

    async def response(self, *, has_body: bool = True) -> Response:
        """Return the next response."""
        found = await self.response_head()
        if not has_body:
            return found
        if length := found.values("content-length"):
            body = await self.read(int(length[0]))
        elif found.values("transfer-encoding"):
            body = await self._chunks()
        else:
            body = await self.read_to_end()
        return Response(found.status, found.headers, body)

    async def _chunks(self) -> bytes:
        body = bytearray()
        async with asyncio.timeout(WAIT_S):
            while size := int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16):
                body += await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            while (await self._reader.readuntil(b"\r\n")) != b"\r\n":
                pass
        return bytes(body)


@asynccontextmanager
async def preview_world(folder: Path, **settings: Any) -> AsyncGenerator[World]:  # noqa: ANN401 - any setting
    """Run a preview listener, and count the connections that are left."""
    world = World()
    node: Any = SimpleNamespace(previews=SimpleNamespace(authorize=world.authorize), tunnels=SimpleNamespace(connect=world.connect))
    for program in world.programs.values():
        await program.start()
    chosen = Settings(**{"data_dir": folder, "preview_port": 0, **settings})
    world.listener = PreviewListener(chosen, node, VENDORS, RequestTurns(), max_connections=MAX_CONNECTIONS, local=False)
    try:
        await world.listener.open()
        world.port = world.listener.bound_port
        yield world
    finally:
        for client in world.clients:
            client.close()
        await world.listener.aclose()
        for program in world.programs.values():
            await program.stop()
