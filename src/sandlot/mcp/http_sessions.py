"""Sessions of streamable HTTP on the MCP SDK, and the server of the endpoint ``/mcp`` on the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import INTERNAL_ERROR
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from sandlot.mcp.hosts.node import NodeHost
from sandlot.mcp.http import MAX_BODY_BYTES
from sandlot.mcp.server import CallScope, Context, create_server, wants_progress
from sandlot.mcp.session_sandboxes import SessionSandboxes
from sandlot.model.access import Principal
from sandlot.model.buffer_budget import BufferBudget

MAX_SESSIONS: Final = 2000
"""Maximum sessions of an endpoint. A session takes 44 KB of memory (measured)."""
MAX_SESSIONS_PER_OWNER: Final = MAX_SESSIONS // 4
SESSION_IDLE_S: Final = 30 * 60.0

_RESPONSE: Final = "mcp_response"
"""Key in the state of a request: its :class:`PendingResponse`."""


class PendingResponse:
    """Response to one request, whose results take memory from the budget of the owner until they have been sent.

    Attributes:
        is_streamed: True if the response has begun as a stream of server-sent events.
    """

    def __init__(self, budget: BufferBudget) -> None:
        self.is_streamed = False
        self._budget = budget
        self._taken_bytes = 0
        self._is_over = False

    def take(self, size_bytes: int) -> None:
        """Take memory. Nothing is taken for a request whose client is gone, because its results are dropped.

        Raises:
            UnavailableError: The budget is used up (``busy``).
        """
        if not self._is_over:
            self._budget.take(size_bytes)
            self._taken_bytes += size_bytes

    def wrap_send(self, send: Send) -> Send:
        """Return a function that sends the response and sets ``is_streamed``."""

        async def send_and_inspect(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.is_streamed = Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
            await send(message)

        return send_and_inspect

    def close(self) -> None:
        """Give the memory back."""
        self._is_over = True
        self._budget.give(self._taken_bytes)
        self._taken_bytes = 0


class Sessions:
    """Sessions of one endpoint.

    Args:
        create: Function that returns the server of the sessions.
        has_sessions: Clients of the revisions with sessions get sessions.

    Attributes:
        session_sandboxes: Sandboxes of the sessions.
    """

    def __init__(self, create: Callable[[Sessions], Server[Any]], *, has_sessions: bool = True) -> None:
        self.session_sandboxes = SessionSandboxes(MAX_SESSIONS)
        self._manager = StreamableHTTPSessionManager(
            create(self),
            stateless=not has_sessions,
            json_response=not has_sessions,
            session_idle_timeout=SESSION_IDLE_S,
            max_sessions=MAX_SESSIONS,
            max_request_body_size=MAX_BODY_BYTES,
        )
        self._running: asyncio.Task[None] | None = None

    async def start(self, stop: asyncio.Event) -> None:
        """Serve sessions until an event is set."""
        started = asyncio.get_running_loop().create_future()
        self._running = asyncio.create_task(self._run(stop, started))
        await started

    async def handle(self, scope: Scope, receive: Receive, send: Send, principal: Principal) -> None:
        """Answer an authenticated request."""
        user = AuthenticatedUser(AccessToken(token=principal.owner, client_id=principal.owner, scopes=[]))
        if not self._has_room(Request(scope), principal.owner):
            reason = f"The API key has {MAX_SESSIONS_PER_OWNER} open sessions. Close sessions that are not used."
            await JSONResponse({"jsonrpc": "2.0", "id": None, "error": {"code": INTERNAL_ERROR, "message": reason}}, 503)(scope, receive, send)
            return
        response = scope["state"][_RESPONSE] = PendingResponse(HTTPConnection(scope).app.state.node.buffers.of(principal.owner))
        try:
            await self._manager.handle_request({**scope, "user": user}, receive, response.wrap_send(send))
        finally:
            response.close()
        if scope["method"] == "DELETE":
            await self._end(Request(scope))

    def _has_room(self, request: Request, owner: str) -> bool:
        """Return False if the request would open a session beyond the maximum of its owner."""
        if request.headers.get(MCP_SESSION_ID_HEADER) is not None or request.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS:
            return True
        owners = self._manager._session_owners  # noqa: SLF001 - the MCP SDK counts all sessions together
        return sum(each["client_id"] == owner for each in owners.values()) < MAX_SESSIONS_PER_OWNER

    async def _run(self, stop: asyncio.Event, started: asyncio.Future[None]) -> None:
        async with self._manager.run():
            started.set_result(None)
            await stop.wait()

    async def _end(self, request: Request) -> None:
        session = request.headers.get(MCP_SESSION_ID_HEADER, "")
        session_sandbox = self.session_sandboxes.pop(session_key(request, session))
        if session_sandbox is not None:
            await session_sandbox.end(_host(request))


def create_http_server(sessions: Sessions) -> Server[Any]:
    """Return the server of ``/mcp``, which offers each caller the sandboxes of its key on this node."""
    return create_server(partial(_scope, sessions.session_sandboxes))


def request_of(context: Context) -> Request:
    """Return the HTTP request of a message."""
    return cast("Request", context.request)


def principal_of(request: Request) -> Principal:
    """Return the principal of a request."""
    principal: Principal = request.scope["state"]["principal"]
    return principal


def session_key(request: Request, session: str) -> str:
    """Return the key of a session, which no other owner can name."""
    return f"{principal_of(request).owner} {session}"


def _scope(session_sandboxes: SessionSandboxes, context: Context) -> CallScope:
    request = request_of(context)
    session = request.headers.get(MCP_SESSION_ID_HEADER)
    is_stateless = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    session_sandbox = None if session is None or is_stateless else session_sandboxes.get(session_key(request, session))
    keys, owner = request.app.state.service.api_keys, principal_of(request).owner
    response: PendingResponse = request.scope["state"][_RESPONSE]
    # A session always gets a stream. The revision without sessions begins one with the first report of progress, or after 15 s.
    begins_streamed = not is_stateless or wants_progress(context)
    return CallScope(_host(request), session_sandbox, lambda: keys.working_for(owner), response.take, lambda: begins_streamed or response.is_streamed)


def _host(request: Request) -> NodeHost:
    state = request.app.state
    return NodeHost(state.node, principal_of(request), state.previews)
