"""MCP over streamable HTTP: sessions of the MCP SDK behind the keys of the service.

The MCP SDK and pydantic's models take half a second to import, so the first request imports them, in a thread.

Invariants:
- A request has been authenticated before it gets here. A session belongs to the key that opened it; to other keys it does not exist.
- The number of sessions, the size of a request and the time for which an unused session is kept are bounded.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from sandlot.mcp.http_security import find_refusal
from sandlot.model.access import Principal
from sandlot.web.dependencies import cancel_on_disconnect

if TYPE_CHECKING:
    from sandlot.mcp.http_sessions import Sessions

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
ACCEPT: Final = (b"accept", b"application/json, text/event-stream")


class McpService:
    """The MCP endpoints of one service.

    Args:
        stop: Event that ends the service, and with it all sessions.
        allowed_hosts: Host names of the service, see :func:`sandlot.mcp.http_security.find_refusal`.
    """

    def __init__(self, stop: asyncio.Event, allowed_hosts: tuple[str, ...] = ()) -> None:
        self.allowed_hosts = frozenset(allowed_hosts)
        self._stop = stop
        self._opening: dict[str, asyncio.Task[Sessions]] = {}

    async def sessions(self, endpoint: McpEndpoint) -> Sessions:
        """Return the sessions of an endpoint, which begin with its first request."""
        opening = self._opening.get(endpoint.module)
        if opening is None:
            opening = self._opening[endpoint.module] = asyncio.create_task(self._open(endpoint))
        return await asyncio.shield(opening)

    async def _open(self, endpoint: McpEndpoint) -> Sessions:
        sessions_module: Any = await asyncio.to_thread(importlib.import_module, "sandlot.mcp.http_sessions")
        server_module: Any = await asyncio.to_thread(importlib.import_module, endpoint.module)
        sessions: Sessions = sessions_module.Sessions(server_module.create_http_server, has_sessions=endpoint.has_sessions)
        await sessions.start(self._stop)
        return sessions


class McpEndpoint:
    """ASGI application of one endpoint. It finds the service in ``app.state.mcp``.

    Args:
        module: Module with a function ``create_http_server``, which takes the :class:`sandlot.mcp.http_sessions.Sessions` and returns the server.
        has_sessions: Clients of the revisions with sessions get sessions. False: each request stands alone, and the response is JSON.
    """

    def __init__(self, module: str, *, has_sessions: bool = True) -> None:
        self.module = module
        self.has_sessions = has_sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = HTTPConnection(scope)
        service: McpService = request.app.state.mcp
        principal: Principal = scope["state"]["principal"]
        server = scope.get("server")
        refusal = find_refusal(scope["headers"], None if server is None or server[1] is None else server[0], service.allowed_hosts)
        if refusal is not None:
            status, reason = refusal
            await JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": reason}}, status)(scope, receive, send)
            return
        sessions = await service.sessions(self)
        if self.has_sessions:
            await sessions.handle(_with_accept_header(scope), receive, send, principal)
        else:
            body = await receive()  # the whole body
            answering = sessions.handle(_with_accept_header(scope), _replayed(body), send, principal)
            await cancel_on_disconnect(Request(scope, receive), answering)


def _replayed(body: Message) -> Receive:
    """Return a function that receives one message, and nothing after it."""
    messages = [body]

    async def receive() -> Message:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop()

    return receive


def _with_accept_header(scope: Scope) -> Scope:
    """Return the scope with the header ``Accept`` that the protocol requires, if the client sent none or ``*/*``."""
    if any(name == b"accept" and value not in {b"", b"*/*"} for name, value in scope["headers"]):
        return scope
    headers = [(name, value) for name, value in scope["headers"] if name != b"accept"]
    return {**scope, "headers": [*headers, ACCEPT]}
