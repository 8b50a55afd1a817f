"""What all routes of the native API use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from sandlot.core.sandbox import Sandbox
from sandlot.server.compose import Service
from sandlot.server.native.schemas.base import Answer
from sandlot.server.web.errors import BodyRefusedError
from sandlot.server.web.streams import gone

_Result = TypeVar("_Result")

PROBLEM: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Not done; the body says why and what to do.", "content": {"application/problem+json": {}}},
    "5XX": {"description": "Not done; the body says why and what to do.", "content": {"application/problem+json": {}}},
}


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    service: Service = request.app.state.service
    return service


def sandbox_of(request: Request, sandbox: str) -> Sandbox:
    """The sandbox that a request is about.

    Raises:
        NotFoundError: ``sandbox_not_found``.
    """
    return service_of(request).sandboxes.find(sandbox)


def reply(answer: Answer, status: int = 200) -> Response:
    """A model as a response, encoded once."""
    # Straight to bytes: an answer may hold megabytes of output, and model_dump_json() would make them twice.
    return Response(answer.__pydantic_serializer__.to_json(answer), status_code=status, media_type="application/json")


def also(model: type[BaseModel], description: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route that answers by :func:`reply` tells the OpenAPI document."""
    return {status: {"model": model, "description": description}, **PROBLEM}


async def unless_gone(request: Request, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do some work, but cancel it when the client goes away. The request's body must have been read.

    Raises:
        ClientDisconnect: It went away.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(request.receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise ClientDisconnect
    return task.result()


async def body_of(request: Request) -> AsyncIterator[bytes]:
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
