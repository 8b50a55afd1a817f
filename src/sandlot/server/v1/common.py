"""What all routes of the native API use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Header, Request
from pydantic import BaseModel, Field

from sandlot.model.errors import ErrorCode
from sandlot.server.composition import RunningService
from sandlot.web import errors, streaming
from sandlot.web.models import ResponseModel

UserName = Literal["user", "root"]

IdempotencyKey = Annotated[
    str | None,
    Header(description="Your own name for this request, for example a UUID: sent again with it, the same request joins what it began before."),
]
"""The header of a route that starts something in a sandbox, by the name ``idempotency_key``."""

EventTable = Mapping[str, type[ResponseModel]]
"""Name of an event of a stream -> model of its data."""

_WHY: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/Problem"}}
PROBLEM: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {errors.MEDIA_TYPE: _WHY}}
    for status, description in (
        ("4XX", "Not done, because of the request; the body says why and what to do."),
        ("5XX", "Not done, because of the service or its host; the body says why and what to do."),
    )
}


class Problem(ResponseModel):
    """Why something was not done (RFC 9457)."""

    type: str = Field(description="Always about:blank; ``code`` tells problems apart.")
    title: str = Field(description="The status in words.", examples=["Not Found"])
    status: int = Field(description="As in the answer's head.", examples=[404])
    detail: str = Field(description="What happened, for a person.", examples=["There is no sandbox sb-k3v9-x2m4c7qpl5tnbdwy."])
    code: str = Field(description=f"Stable. By now: {', '.join(ErrorCode)}. A newer service may have others.", examples=["sandbox_not_found"])
    hint: str = Field(description="What to do next; empty where ``detail`` says it.")
    retryable: bool = Field(description="Whether the same request may succeed later without a change; Retry-After says when.")
    request_id: str = Field(description="Stands in the service's log as well.")
    fields: dict[str, Any] = Field(description="Details for programs; which ones depends on ``code``.")


def service_of(request: Request) -> RunningService:
    """The service that answers a request."""
    service: RunningService = request.app.state.service
    return service


def documented_response(
    model: type[BaseModel], description: str, status: int = 200, *, events: EventTable | None = None
) -> dict[int | str, dict[str, Any]]:
    """What a route that answers by :func:`json_response` tells the OpenAPI document.

    Args:
        model: What it answers.
        description: When it does.
        status: With which status.
        events: What it answers where the client asks for events.
    """
    told: dict[str, Any] = {"model": model, "description": description}
    if events is not None:
        told["content"] = _event_streams(events)
    return {status: told, **PROBLEM}


def only_events(events: EventTable, description: str) -> dict[int | str, dict[str, Any]]:
    """What a route that answers nothing but events tells the OpenAPI document.

    Args:
        events: What it answers.
        description: What they tell.
    """
    return {200: {"description": description, "content": _event_streams(events)}, **PROBLEM}


def raw_body(description: str, media_type: str = "application/octet-stream", *, required: bool = True) -> dict[str, Any]:
    """What a route that streams its body tells the OpenAPI document (``openapi_extra``)."""
    return {
        "requestBody": {"description": description, "required": required, "content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}
    }


def _event_streams(events: EventTable) -> dict[str, Any]:
    """An event stream in its two forms: each event by ``itemSchema``, OpenAPI 3.2's word, which readers of 3.1 that do not know it skip."""
    models = {name: {"$ref": f"#/components/schemas/{model.__name__}"} for name, model in events.items()}
    sent = [_event(name, {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}) for name, schema in models.items()]
    lines = [_event(name, schema) for name, schema in models.items()]
    return {
        streaming.SSE_MEDIA_TYPE: {"itemSchema": {"description": "Server-sent events.", "oneOf": sent}},
        streaming.NDJSON_MEDIA_TYPE: {"itemSchema": {"description": "The same events, each a line of JSON.", "oneOf": lines}},
    }


def _event(name: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": ["event", "data"], "properties": {"event": {"const": name}, "id": {"type": "string"}, "data": data}}
