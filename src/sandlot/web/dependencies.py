"""What every route, ours and a vendor's, asks of its request: who sent it, the core that answers, its body, and whether it is still wanted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request

from sandlot.core.node import Node
from sandlot.model.access import Principal
from sandlot.web.errors import BodyRefusedError
from sandlot.web.listener import HUNG_UP
from sandlot.web.streaming import wait_for_disconnect

HANGUP_POLL_S = 0.5
"""How often it is looked whether a client has hung up of whom nothing is read meanwhile."""

_Result = TypeVar("_Result")


def get_node(request: HTTPConnection) -> Node:
    """The core that answers a request."""
    node: Node = request.app.state.node
    return node


def get_principal(request: HTTPConnection) -> Principal:
    """Who sent a request; the frame around it has found that out."""
    principal: Principal = request.scope["state"]["principal"]
    return principal


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do some work, but cancel it when the client goes away. The request's body must have been read.

    Raises:
        ClientDisconnect: It went away.
    """
    return await _cancel_when(wait_for_disconnect(request.receive), work)


async def cancel_on_hangup(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do some work that takes the request's body as it goes, but cancel it when the client hangs up, also while nothing of the body is taken.

    Raises:
        ClientDisconnect: It went away.
    """
    hung_up = request.scope["state"].get(HUNG_UP, lambda: False)

    async def leaving() -> None:
        while not hung_up():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(HANGUP_POLL_S)

    return await _cancel_when(leaving(), work)


async def _cancel_when(leaving: Coroutine[Any, Any, object], work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do some work, but cancel it when its client leaves."""
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


async def iter_body(request: Request) -> AsyncIterator[bytes]:
    """A request's body as it comes; the next piece is taken when the last one was used.

    Raises:
        LimitError: ``too_large``.
        ClientDisconnect: The client went away.
    """
    try:
        async for chunk in request.stream():
            if chunk:
                yield chunk
    except BodyRefusedError as error:
        raise error.error from None
