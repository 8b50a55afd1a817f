"""A real MCP server on loopback that demands a credential, for agents that call its tools."""

from __future__ import annotations

import asyncio
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
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.support.tenants import PNG


@dataclass
class ToolServer:
    """A running server.

    Args:
        url: URL of its endpoint.
        token: Token that each request must carry.
        added: Pairs of numbers of the calls of ``add``.
    """

    url: str
    token: str
    added: list[tuple[int, int]] = field(default_factory=list)


@contextmanager
def tool_server(token: str) -> Iterator[ToolServer]:
    """Run a server with the tools ``add``, ``headers``, ``fail``, ``hang``, ``repeat`` and ``draw``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = ToolServer(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", token)
        app = _guarded(_server(running).streamable_http_app(), token)
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
