"""What all routes of the native API use."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Header, Request
from pydantic import BaseModel

from sandlot.server.composition import RunningService
from sandlot.server.v1.schemas.events import STREAMS
from sandlot.web import errors, streaming
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import json_response

__all__ = [
    "PROBLEM",
    "IdempotencyKey",
    "cancel_on_disconnect",
    "cancel_on_hangup",
    "documented_response",
    "get_node",
    "get_principal",
    "iter_body",
    "json_response",
    "only_events",
    "raw_body",
    "service_of",
]

IdempotencyKey = Annotated[
    str | None,
    Header(description="Your own name for this request, for example a UUID: sent again with it, the same request joins what it began before."),
]
"""The header of a route that starts something in a sandbox, by the name ``idempotency_key``."""

_WHY: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/Problem"}}
PROBLEM: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {errors.MEDIA_TYPE: _WHY}}
    for status, description in (
        ("4XX", "Not done, because of the request; the body says why and what to do."),
        ("5XX", "Not done, because of the service or its host; the body says why and what to do."),
    )
}


def service_of(request: Request) -> RunningService:
    """The service that answers a request."""
    service: RunningService = request.app.state.service
    return service


def documented_response(model: type[BaseModel], description: str, status: int = 200, *, events: str | None = None) -> dict[int | str, dict[str, Any]]:
    """What a route that answers by :func:`json_response` tells the OpenAPI document.

    Args:
        model: What it answers.
        description: When it does.
        status: With which status.
        events: Which of :data:`STREAMS` it answers where the client asks for events.
    """
    told: dict[str, Any] = {"model": model, "description": description}
    if events is not None:
        told["content"] = _event_streams(events)
    return {status: told, **PROBLEM}


def only_events(stream: str, description: str) -> dict[int | str, dict[str, Any]]:
    """What a route that answers nothing but events tells the OpenAPI document.

    Args:
        stream: Which of :data:`STREAMS`.
        description: What they tell.
    """
    return {200: {"description": description, "content": _event_streams(stream)}, **PROBLEM}


def raw_body(description: str, media_type: str = "application/octet-stream", *, required: bool = True) -> dict[str, Any]:
    """What a route that streams its body tells the OpenAPI document (``openapi_extra``)."""
    return {
        "requestBody": {"description": description, "required": required, "content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}
    }


def _event_streams(stream: str) -> dict[str, Any]:
    """An event stream in its two forms: each event by ``itemSchema``, OpenAPI 3.2's word, which readers of 3.1 that do not know it skip."""
    models = {name: {"$ref": f"#/components/schemas/{model.__name__}"} for name, model in STREAMS[stream].items()}
    sent = [_event(name, {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}) for name, schema in models.items()]
    lines = [_event(name, schema) for name, schema in models.items()]
    return {
        streaming.SSE_MEDIA_TYPE: {"itemSchema": {"description": "Server-sent events.", "oneOf": sent}},
        streaming.NDJSON_MEDIA_TYPE: {"itemSchema": {"description": "The same events, each a line of JSON.", "oneOf": lines}},
    }


def _event(name: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": ["event", "data"], "properties": {"event": {"const": name}, "id": {"type": "string"}, "data": data}}
