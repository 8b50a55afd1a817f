"""Parts that the routes of several resources share: parameters, and their descriptions in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Header, Request
from pydantic import BaseModel, Field

from sandlot.model.errors import ErrorCode, InvalidRequestError
from sandlot.model.faults import Fault
from sandlot.model.specs import USER_PATTERN, User
from sandlot.server.composition import RunningService
from sandlot.web import errors, streaming
from sandlot.web.models import ResponseModel, Text

_After = TypeVar("_After", int, int | None)

UserName = Annotated[Text, Field(json_schema_extra={"pattern": f"^{USER_PATTERN}$"}, examples=["user"])]
"""User in a sandbox, for readers of the document like :data:`SandboxPath`."""

SandboxPath = Annotated[Text, Field(json_schema_extra={"minLength": 1})]
"""Path in a sandbox. The minimum is for readers of the document; the node checks paths itself."""

Cursor = Annotated[Text, Field(json_schema_extra={"pattern": "^[A-Za-z0-9_=-]+$"})]
"""Cursor of a page, for readers of the document like :data:`SandboxPath`."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Key of this request, for example a UUID. A request that is sent again with the same key joins the earlier one and "
        "starts nothing new."
    ),
]
"""Type of a parameter with the name ``idempotency_key``."""

LastEventId = Annotated[str | None, Header(description="`id` of the last received event, to continue a stream.")]
"""Type of a parameter with the name ``last_event_id``."""

EventTable = Mapping[str, type[ResponseModel]]
"""Name of an event of a stream -> model of its data."""

_WHY: dict[str, Any] = {"schema": {"$ref": "#/components/schemas/Problem"}}
PROBLEM: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {errors.MEDIA_TYPE: _WHY}}
    for status, description in (
        ("4XX", "The request is refused; the body has the reason and a hint."),
        ("5XX", "The service or its host failed; the body has the reason and a hint."),
    )
}


def parse_user(name: str | None) -> User | None:
    """Return the user that a request names. None: that of the sandbox.

    Raises:
        InvalidRequestError: The name cannot be that of a user.
    """
    return None if name is None else User(name)


class Problem(ResponseModel):
    """Problem document of an error (RFC 9457)."""

    type: str = Field(description="Always `about:blank`; use `code` to tell problems apart.")
    title: str = Field(description="Name of the HTTP status.", examples=["Not Found"])
    status: int = Field(description="HTTP status of the response.", examples=[404])
    detail: str = Field(description="Message for people.", examples=["There is no sandbox sb-k3v9-x2m4c7qpl5tnbdwy."])
    code: str = Field(
        description=f"Stable code of the error. Known codes: {', '.join(ErrorCode)}. Newer versions may add codes.", examples=["sandbox_not_found"]
    )
    hint: str = Field(description="Action that solves the problem; empty if there is none.")
    retryable: bool = Field(description="True if the same request may succeed later; `Retry-After` has the seconds to wait.")
    fault: Fault = Field(description="Cause: `code`, `request`, `limit`, `capacity`, `platform` or `lost`.", examples=["request"])
    request_id: str = Field(description="Id of the request, which is also in the log of the service.")
    fields: dict[str, Any] = Field(description="Details for programs, depending on `code`.")


def get_service(request: Request) -> RunningService:
    """Return the service that received a request."""
    service: RunningService = request.app.state.service
    return service


def documented_response(
    model: type[BaseModel], description: str, status: int = 200, *, events: EventTable | None = None
) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that returns a model itself instead of leaving this to FastAPI.

    Args:
        model: Model of the response.
        description: Noun phrase for the response.
        status: Status of the response.
        events: Events that the route streams to clients that accept an event stream.
    """
    response: dict[str, Any] = {"model": model, "description": description}
    if events is not None:
        response["content"] = _event_streams(events)
    return {status: response, **PROBLEM}


def only_events(events: EventTable, description: str) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that always streams events."""
    return {200: {"description": description, "content": _event_streams(events)}, **PROBLEM}


def raw_body(description: str, media_type: str = "application/octet-stream", *, required: bool = True) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route that reads its body as a stream."""
    return {
        "requestBody": {"description": description, "required": required, "content": {media_type: {"schema": {"type": "string", "format": "binary"}}}}
    }


def _event_streams(events: EventTable) -> dict[str, Any]:
    """Return the content of an event stream in its two media types. ``itemSchema`` is a keyword of OpenAPI 3.2; readers of 3.1 ignore it."""
    models = {name: {"$ref": f"#/components/schemas/{model.__name__}"} for name, model in events.items()}
    server_sent = [
        _event(name, {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}) for name, schema in models.items()
    ]
    lines = [_event(name, schema) for name, schema in models.items()]
    return {
        streaming.SSE_MEDIA_TYPE: {"itemSchema": {"description": "Server-sent events.", "oneOf": server_sent}},
        streaming.NDJSON_MEDIA_TYPE: {"itemSchema": {"description": "The same events as lines of JSON.", "oneOf": lines}},
    }


def _event(name: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": ["event", "data"], "properties": {"event": {"const": name}, "id": {"type": "string"}, "data": data}}


def sequence_number(text: str, field: str, *, max_digits: int = 18) -> int:
    """Return the sequence number of an event that a client sent back.

    Args:
        text: The number.
        field: Name of the parameter or header.
        max_digits: Number of digits that the column of the numbers holds.

    Raises:
        InvalidRequestError: The text is not a number, or is too long.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= max_digits):
        raise InvalidRequestError(
            f"`{field}` {text[:64]!r} is not the sequence number of an event.",
            hint="Pass `next_cursor` of the previous page, or the `sequence` of an event.",
            fields={"field": field},
        )
    return int(text)


def stream_start(after: _After, last_event_id: str | None, *, max_digits: int = 18) -> _After:
    """Return the sequence number after which a stream of events begins.

    Args:
        after: Parameter of the request.
        last_event_id: Header ``Last-Event-ID``, which a client sends that continues a stream. None: the stream begins after ``after``.
        max_digits: Number of digits that the column of the numbers holds.

    Raises:
        InvalidRequestError: The header is not a number, or is too long.
    """
    return after if last_event_id is None else sequence_number(last_event_id, "Last-Event-ID", max_digits=max_digits)
