"""What happened, listed and followed; the log of what ran, and what that wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from sandlot.model.errors import InvalidRequestError
from sandlot.model.history import LOG_CHANNELS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.ids import SandboxId
from sandlot.model.records import EventRecord
from sandlot.model.repositories import Position
from sandlot.server.v1.common import documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.executions import (
    STREAM_NAMES,
    EventAnswer,
    EventsAnswer,
    EventsQuery,
    ExecutionAnswer,
    ExecutionsAnswer,
    ExecutionsQuery,
    LogEntryAnswer,
    LogsAnswer,
    LogsQuery,
)
from sandlot.web import pagination, streaming

router = APIRouter(prefix="/v1")

_MAX_DIGITS = 18


@router.get(
    "/events",
    tags=["events"],
    responses=documented_response(EventsAnswer, "A page of them; with 'Accept: text/event-stream' as they happen.", events="events"),
)
async def list_events(
    query: Annotated[EventsQuery, Query()],
    request: Request,
    last_event_id: Annotated[str | None, Header(description="The 'id' of the last event that was seen, for a stream that goes on.")] = None,
) -> Response:
    """List what happened, oldest first, or follow what happens: your own; for an operator everybody's."""
    principal, history = get_principal(request), get_node(request).history
    sandbox = None if query.sandbox is None else SandboxId(query.sandbox)
    after = query.after if query.cursor is None else _number(query.cursor, "cursor")
    if streaming.accepts_events(request):
        asked = after if last_event_id is None else _number(last_event_id, "Last-Event-ID")
        begin = await history.last_sequence() if asked is None else asked
        stream = await history.follow_events(principal, sandbox=sandbox, after=begin)
        return streaming.event_response(request, _told(begin, stream), stream.aclose)
    page = await history.events(principal, sandbox=sandbox, after=after or 0, limit=query.limit)
    last = page.items[-1].sequence if page.items else after or 0
    return json_response(
        EventsAnswer(events=[EventAnswer.of(record) for record in page.items], next_cursor=str(last) if page.more else None, last=last)
    )


@router.get("/executions", tags=["executions"], responses=documented_response(ExecutionsAnswer, "A page of them, newest first."))
async def list_executions(query: Annotated[ExecutionsQuery, Query()], request: Request) -> Response:
    """List what ran, newest first: your own; for an operator everybody's. Kept for seven days, or as the operator has set it."""
    return await _executions(request, query)


@router.get("/executions/{execution}", tags=["executions"], responses=documented_response(ExecutionAnswer, "It."))
async def get_execution(execution: str, request: Request) -> Response:
    """Look at one run: what it was, what it wrote, how it ended."""
    return json_response(ExecutionAnswer.of(await get_node(request).history.execution(get_principal(request), execution)))


@router.get(
    "/sandboxes/{sandbox}/logs",
    tags=["executions"],
    responses=documented_response(LogsAnswer, "By now; with 'Accept: text/event-stream' events until the sandbox ends.", events="logs"),
)
async def logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """Read, or follow, what the runs of a sandbox wrote, from the log of runs: it is not asked or woken for it, and may have ended."""
    history, principal, channels = get_node(request).history, get_principal(request), LOG_CHANNELS[query.stream]
    if streaming.accepts_events(request):
        stream = await history.follow_logs(principal, sandbox, channels)
        return streaming.event_response(request, _log_events(sandbox, stream), stream.aclose)
    page = await history.logs(principal, sandbox, channels)
    return json_response(LogsAnswer(entries=[LogEntryAnswer.of(entry) for entry in page.items], more=page.more))


async def _log_events(sandbox: str, told: AsyncIterator[LogEntry | LogOutput | LogGap | LogEnd]) -> AsyncIterator[streaming.StreamEvent]:
    async for item in told:
        match item:
            case LogEntry():
                yield streaming.StreamEvent("entry", LogEntryAnswer.of(item).model_dump(mode="json"))
            case LogOutput():
                yield streaming.StreamEvent("output", {"execution": item.execution, "stream": STREAM_NAMES[item.channel], "text": item.text})
            case LogGap():
                yield streaming.StreamEvent("lost", {"execution": item.execution, "stream": STREAM_NAMES[item.channel], "bytes": item.bytes})
            case LogEnd():
                yield streaming.StreamEvent("over", {"execution": item.execution})
    yield streaming.StreamEvent("ended", {"sandbox": sandbox})


async def _executions(request: Request, query: ExecutionsQuery) -> Response:
    sandbox = None if query.sandbox is None else SandboxId(query.sandbox)
    before = pagination.decode_cursor(query.cursor)
    page = await get_node(request).history.executions(get_principal(request), sandbox=sandbox, before=before, limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(ExecutionsAnswer(executions=[ExecutionAnswer.of(record) for record in page.items], next_cursor=following))


async def _told(begin: int, happens: AsyncIterator[EventRecord]) -> AsyncIterator[streaming.StreamEvent]:
    # At once, so that a client that is cut off before anything happened knows where to go on.
    yield streaming.StreamEvent("position", {"after": begin}, begin)
    async for record in happens:
        yield streaming.StreamEvent(record.event.type, EventAnswer.of(record).model_dump(mode="json"), record.sequence)


def _number(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise InvalidRequestError(f"{field} is not the number of an event.", hint="Use the one that an event came with.", fields={"field": field})
    return int(text)
