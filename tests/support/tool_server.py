"""A real MCP server on loopback that demands a credential, for agents that call its tools."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.tenants import PNG

PIECE = b"x" * 65536


@dataclass(frozen=True)
class Flood:
    """A response without end, or a small one that becomes large.

    Args:
        method: Method of the requests that get the response.
        content_type: Its content type.
        is_compressed: Send 64 MiB that are compressed instead.
    """

    method: str
    content_type: str = "application/json"
    is_compressed: bool = False


@dataclass
class ToolServer:
    """A running server.

    Args:
        url: URL of its endpoint.
        token: Token that each request must carry.
        added: Pairs of numbers of the calls of ``add``.
        sent_bytes: Number of bytes of the flood that clients have taken.
    """

    url: str
    token: str
    added: list[tuple[int, int]] = field(default_factory=list)
    sent_bytes: int = 0


@contextmanager
def tool_server(token: str, *, flood: Flood | None = None, json_response: bool = False) -> Iterator[ToolServer]:
    """Run a server with the tools ``add``, ``headers``, ``fail``, ``hang``, ``repeat`` and ``draw``.

    Args:
        token: Token that each request must carry.
        flood: Response to requests of one method, in place of that of the server.
        json_response: Respond with JSON instead of event streams.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = ToolServer(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", token)
        app: ASGIApp = _server(running).streamable_http_app(json_response=json_response)
        app = _guarded(app if flood is None else _flooded(app, flood, running), token)
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield running
        finally:
            server.should_exit = True
            thread.join(30)


def _server(running: ToolServer) -> MCPServer:
    server = MCPServer("calculator")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        running.added.append((a, b))
        return a + b

    @server.tool()
    def headers(context: Context[Any, Any]) -> str:
        """Return the credential of the caller."""
        request: Any = context.request_context.request
        return f"You sent {request.headers['authorization']}."

    @server.tool()
    def fail() -> str:
        """Fail."""
        raise ToolError("no such number")

    @server.tool()
    async def hang() -> str:
        """Do not respond."""
        await asyncio.Event().wait()
        return ""

    @server.tool()
    def repeat(count: int) -> str:
        """Return a long text."""
        return "x" * count

    @server.tool()
    def draw() -> list[Any]:
        """Return an image."""
        return [ImageContent(type="image", data=PNG, mime_type="image/png")]

    return server


def _guarded(app: ASGIApp, token: str) -> ASGIApp:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != f"Bearer {token}".encode():
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": f"wrong token {token}".encode()})
            return
        await app(scope, receive, send)

    return guarded


def _flooded(app: ASGIApp, flood: Flood, running: ToolServer) -> ASGIApp:
    async def flooded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if json.loads(body).get("method") != flood.method:
            read: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:
                return read.pop() if read else await receive()

            await app(scope, replay, send)
            return
        headers = [(b"content-type", flood.content_type.encode()), *([(b"content-encoding", b"gzip")] if flood.is_compressed else [])]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if flood.is_compressed:
            await send({"type": "http.response.body", "body": gzip.compress(PIECE * 1024)})
            return
        await send({"type": "http.response.body", "body": b"data: " if flood.content_type == "text/event-stream" else b'"', "more_body": True})
        gone = asyncio.ensure_future(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
            running.sent_bytes += len(PIECE)
            await asyncio.sleep(0)

    return flooded
