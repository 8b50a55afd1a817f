"""What all routes of the native API use."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from sandlot.server.compose import Service
from sandlot.server.native.schemas.base import Answer
from sandlot.web.asking import body_of, core_of, principal_of, sandbox_of, unless_gone

__all__ = ["PROBLEM", "also", "body_of", "core_of", "principal_of", "reply", "sandbox_of", "service_of", "unless_gone"]

PROBLEM: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Not done; the body says why and what to do.", "content": {"application/problem+json": {}}},
    "5XX": {"description": "Not done; the body says why and what to do.", "content": {"application/problem+json": {}}},
}


def service_of(request: Request) -> Service:
    """The service that answers a request."""
    service: Service = request.app.state.service
    return service


def reply(answer: Answer, status: int = 200) -> Response:
    """A model as a response, encoded once."""
    # Straight to bytes: an answer may hold megabytes of output, and model_dump_json() would make them twice.
    return Response(answer.__pydantic_serializer__.to_json(answer), status_code=status, media_type="application/json")


def also(model: type[BaseModel], description: str, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route that answers by :func:`reply` tells the OpenAPI document."""
    return {status: {"model": model, "description": description}, **PROBLEM}
