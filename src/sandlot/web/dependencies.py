"""Access to the parts of a request, for native and vendor routes: node, principal, body, and cancellation when the client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from starlette.requests import ClientDisconnect, HTTPConnection

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.model.ids import SANDBOX_ID
from sandlot.web.errors import BodyRefusedError
from sandlot.web.json_body import JsonRoute
from sandlot.web.listener import HUNG_UP
from sandlot.web.preview_urls import PreviewAddress, PreviewAddresses, no_previews
from sandlot.web.streaming import wait_for_disconnect

HANGUP_POLL_S = 0.5
"""Interval at which a connection is checked while nothing is read from it."""

MAX_LENGTH_DIGITS = 19
"""Digits of a length that no body has; no integer of that many digits is parsed."""

_Result = TypeVar("_Result")


def get_node(request: HTTPConnection) -> Node:
    """Return the node of the app."""
    node: Node = request.app.state.node
    return node


def get_principal(request: HTTPConnection) -> Principal:
    """Return the principal of a request, which the middleware has authenticated."""
    principal: Principal = request.scope["state"]["principal"]
    return principal


def get_previews(request: HTTPConnection) -> PreviewAddresses:
    """Return the address of the previews of the service.

    Raises:
        UnsupportedError: The service has no address for previews.
    """
    previews: PreviewAddresses | None = request.app.state.previews
    if previews is None or not previews.is_enabled:
        raise no_previews()
    return previews


def has_previews(request: HTTPConnection) -> bool:
    """Return True if the service has an address for previews, or gets one on demand."""
    previews: PreviewAddresses | None = request.app.state.previews
    return previews is not None and previews.is_enabled


async def get_preview_address(request: HTTPConnection) -> PreviewAddress | None:
    """Return the address of the previews of the service; None if it has none. A local service opens its listener first."""
    previews: PreviewAddresses | None = request.app.state.previews
    return await previews.require_address() if previews is not None and previews.is_enabled else None


async def get_sandbox_id(request: HTTPConnection, id_or_name: str) -> str:
    """Return the id of a sandbox that a path names by its id or its name.

    A name means the caller's own live sandbox with this name. An id is returned as it is, and never looked up as a name.

    Raises:
        NotFoundError: The caller has no live sandbox with the name (code ``sandbox_not_found``).
    """
    if SANDBOX_ID.fullmatch(id_or_name):
        return id_or_name
    return (await get_node(request).sandboxes.get(get_principal(request), id_or_name)).id


class SandboxNameRoute(JsonRoute):
    """A route that takes the name of a sandbox wherever its path has ``{sandbox}``, and passes the id to its endpoint.

    The name is resolved once, before the request body is read. This is a class of routes, because a dependency costs a request 10 µs.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the route, behind the lookup of the name."""
        handle = super().get_route_handler()
        if "{sandbox}" not in self.path_format:
            return handle

        async def resolve_and_handle(request: Request) -> Response:
            parameters = request.path_params
            parameters["sandbox"] = await get_sandbox_id(request, parameters["sandbox"])
            return await handle(request)

        return resolve_and_handle


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of ``work``, and cancel it if the client disconnects. The request's body must have been read.

    Raises:
        ClientDisconnect: The client disconnected.
    """
    return await _cancel_when(wait_for_disconnect(request.receive), work)


async def cancel_on_hangup(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of ``work``, which reads the request's body, and cancel it if the client hangs up, also while it reads nothing.

    Raises:
        ClientDisconnect: The client disconnected.
    """
    hung_up = request.scope["state"].get(HUNG_UP, lambda: False)

    async def wait_for_hangup() -> None:
        while not hung_up():  # noqa: ASYNC110 - the kernel reports it only when asked
            await asyncio.sleep(HANGUP_POLL_S)

    return await _cancel_when(wait_for_hangup(), work)


async def _cancel_when(leaving: Coroutine[Any, Any, object], work: Coroutine[Any, Any, _Result]) -> _Result:
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(leaving)
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise ClientDisconnect
    return task.result()


def announced_bytes(request: Request) -> int | None:
    """Return the size of a request's body as the client announced it; None if the client did not."""
    length = request.headers.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() and len(length) < MAX_LENGTH_DIGITS else None


async def iter_body(request: Request) -> AsyncIterator[bytes]:
    """Yield a request's body as it arrives. The next chunk is read when the last one has been used.

    Raises:
        LimitError: ``too_large``.
        ClientDisconnect: The client disconnected.
    """
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except BodyRefusedError as error:
        raise error.error from None
