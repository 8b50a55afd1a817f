"""Events of sandboxes, snapshots and volumes: schemas, event stream and routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from sandlot.model.errors import InvalidRequestError
from sandlot.model.faults import Fault
from sandlot.model.ids import SandboxId
from sandlot.model.records import EVENT_TYPES, EventRecord
from sandlot.server.v1.common import Cursor, EventTable, LastEventId, Problem, documented_response, sequence_number, stream_start
from sandlot.web import streaming
from sandlot.web.dependencies import get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import QueryModel, ResponseModel, Text, json_response


class PositionEvent(ResponseModel):
    """Start of a stream of events."""

    after: int = Field(description="The following events have larger sequence numbers.")


class EventResponse(ResponseModel):
    """An event."""

    sequence: int = Field(description="Sequence number, larger than those of earlier events.")
    type: str = Field(description="Type such as `sandbox.created`. Newer versions may add types.")
    at: datetime = Field(description="Time of the event.")
    owner: str = Field(description="Id of the key that owns the object, or `local`.")
    sandbox: str | None = Field(description="Id of the sandbox; null for events of volumes.")
    fault: Fault | None = Field(description="Cause of a failure, such as a sandbox that ran out of memory; null for other events.")
    data: dict[str, Any] = Field(description="Details, depending on the type.")

    @classmethod
    def of(cls, record: EventRecord) -> EventResponse:
        """Return the response for an event."""
        event = record.event
        return cls(
            sequence=record.sequence,
            type=event.type,
            at=event.at,
            owner=event.owner,
            sandbox=event.sandbox,
            fault=record.fault,
            data=dict(event.data),
        )


class EventsResponse(ResponseModel):
    """A page of events."""

    events: list[EventResponse]
    next_cursor: str | None = Field(description="Cursor of the next page; null if there are no more events.")
    last: int = Field(description="Largest sequence number of the page, or `after` if the page is empty. Later events follow it.")


class EventsQuery(QueryModel):
    """Events to list or to follow."""

    after: int | None = Field(
        default=None,
        ge=0,
        lt=2**62,
        description="Only events with a larger sequence number. Without it, a list begins with the oldest event, and a stream with the next one. "
        "Not with `order=desc`.",
    )
    order: Literal["asc", "desc"] = Field(default="asc", description="`asc`: oldest first. `desc`: newest first, for lists only.")
    cursor: Cursor | None = Field(default=None, description="`next_cursor` of the previous page, which had the same order.")
    limit: int = Field(default=100, ge=1, le=1000, description="Largest number of events.")
    sandbox: Text | None = Field(default=None, description="Only events of this sandbox, by its id.")


SANDBOX_EVENTS: EventTable = {"position": PositionEvent, **dict.fromkeys(EVENT_TYPES, EventResponse), "failure": Problem}

router = APIRouter(prefix="/v1", tags=["events"], route_class=JsonRoute)


@router.get(
    "/events",
    responses=documented_response(
        EventsResponse, "A page of events, or a stream of new events with `Accept: text/event-stream`.", events=SANDBOX_EVENTS
    ),
)
async def list_events(
    query: Annotated[EventsQuery, Query()],
    request: Request,
    last_event_id: LastEventId = None,
) -> Response:
    """List or follow events of the caller's objects; operators get those of all keys."""
    principal, history = get_principal(request), get_node(request).history
    sandbox = None if query.sandbox is None else SandboxId(query.sandbox)
    if query.order == "desc":
        if query.after is not None or streaming.accepts_events(request):
            raise InvalidRequestError(
                "`order=desc` cannot be combined with `after` or with a stream.", hint="Omit `order`.", fields={"field": "order"}
            )
        before = None if query.cursor is None else sequence_number(query.cursor, "cursor")
        latest = await history.latest_events(principal, sandbox=sandbox, before=before, limit=query.limit)
        return json_response(
            EventsResponse(
                events=[EventResponse.of(record) for record in latest.items],
                next_cursor=str(latest.items[-1].sequence) if latest.more else None,
                last=latest.items[0].sequence if latest.items else 0,
            )
        )
    after = query.after if query.cursor is None else sequence_number(query.cursor, "cursor")
    if streaming.accepts_events(request):
        start = stream_start(after, last_event_id)
        begin = await history.last_sequence() if start is None else start
        stream = await history.follow_events(principal, sandbox=sandbox, after=begin)
        return streaming.event_response(request, _feed(begin, stream), stream.aclose)
    page = await history.events(principal, sandbox=sandbox, after=after or 0, limit=query.limit)
    last = page.items[-1].sequence if page.items else after or 0
    return json_response(
        EventsResponse(events=[EventResponse.of(record) for record in page.items], next_cursor=str(last) if page.more else None, last=last)
    )


async def _feed(begin: int, records: AsyncIterator[EventRecord]) -> AsyncIterator[streaming.StreamEvent]:
    # Sent at once, so that a client that is disconnected before the first event knows where to continue.
    yield streaming.StreamEvent("position", {"after": begin}, begin)
    async for record in records:
        yield streaming.StreamEvent(record.event.type, EventResponse.of(record).model_dump(mode="json"), record.sequence)
