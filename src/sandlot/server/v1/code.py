"""Code: run in a context that keeps its variables, followed, interrupted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.model.executions import (
    CellError,
    CellStarted,
    Channel,
    Cleared,
    CodeAccepted,
    CodeEnded,
    CodeEvent,
    CodePosition,
    Display,
    Output,
    OutputGap,
)
from sandlot.model.streams import Stream
from sandlot.server.v1.common import IdempotencyKey, cancel_on_disconnect, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.code import (
    BegunAnswer,
    CellAnswer,
    CodeBody,
    DisplayAnswer,
    ErrorAnswer,
    ExecutedAnswer,
    FollowQuery,
    InterruptedAnswer,
    KeptCellAnswer,
)
from sandlot.web import streaming

OFFSETS = 3
DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/code", tags=["code"])


@router.post(
    "",
    responses={
        **documented_response(
            ExecutedAnswer, "It ended; with 'Accept: text/event-stream' or 'application/x-ndjson' events as it runs.", events="cell"
        ),
        202: {"model": BegunAnswer, "description": "It runs in the background, or waits for its turn."},
    },
)
async def run(sandbox: str, body: CodeBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Run code in a context. Unless it is in the background, it is interrupted when the client goes away; its variables stay."""
    code, principal, cell = get_node(request).code, get_principal(request), body.cell()
    if body.background:
        return json_response(BegunAnswer(execution=await code.launch(principal, sandbox, cell, idempotency_key=idempotency_key)), 202)
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, code.stream(principal, sandbox, cell, idempotency_key=idempotency_key))
        return streaming.event_response(request, _told(stream, CodePosition()), stream.aclose)
    return json_response(
        ExecutedAnswer.executed(await cancel_on_disconnect(request, code.run(principal, sandbox, cell, idempotency_key=idempotency_key)))
    )


@router.get(
    "/{execution}",
    responses=documented_response(
        KeptCellAnswer, "By now; with 'Accept: text/event-stream' or 'application/x-ndjson' events until it ends.", events="cell"
    ),
)
async def follow(sandbox: str, execution: str, query: Annotated[FollowQuery, Query()], request: Request) -> Response:
    """Read, or follow, what a run of code gives, for as long as the sandbox keeps it. Nothing happens to it when the client goes away."""
    code, principal = get_node(request).code, get_principal(request)
    if streaming.accepts_events(request):
        start = CodePosition(*(gone_on(request.headers.get("last-event-id", "")) or query.offsets))
        stream = await cancel_on_disconnect(request, code.follow(principal, sandbox, execution, start))
        return streaming.event_response(request, _told(stream, start), stream.aclose)
    work = code.read(principal, sandbox, execution, CodePosition(*query.offsets), wait_s=query.wait)
    return json_response(KeptCellAnswer.kept(await cancel_on_disconnect(request, work)))


@router.post("/{execution}/interrupt", responses=documented_response(InterruptedAnswer, "It was told."))
async def interrupt(sandbox: str, execution: str, request: Request) -> Response:
    """Interrupt one run of code, as Ctrl-C would; one that waits for its turn never runs."""
    return json_response(InterruptedAnswer(running=await get_node(request).code.interrupt(get_principal(request), sandbox, execution)))


def gone_on(event_id: str) -> tuple[int, int, int] | None:
    """Where a client of events goes on that was cut off: events, and both streams' offsets, after the last event that it saw. Pure.

    Args:
        event_id: What it says that was (HTML standard, 9.2.4); None comes of what is none of ours.
    """
    parts = event_id.split("-")
    if len(parts) != OFFSETS or not all(each.isascii() and each.isdecimal() and len(each) <= DIGITS for each in parts):
        return None
    stdout_from, stderr_from, events_from = (int(each) for each in parts)
    return events_from, stdout_from, stderr_from


async def _told(stream: Stream[CodeEvent], start: CodePosition) -> AsyncIterator[streaming.StreamEvent]:
    """All that an execution gives, as events; each says by its id where to go on after it: ``STDOUT-STDERR-EVENTS``."""
    output, events = streaming.OutputEvents({Channel.STDOUT: start.stdout or 0, Channel.STDERR: start.stderr or 0}), start.events
    execution = ""
    async for item in stream:
        if isinstance(item, Output | OutputGap):
            for told in output.feed(item):
                yield told._replace(id=f"{output.position}-{events}")
            continue
        for told in output.end():  # half a character came before this
            yield told._replace(id=f"{output.position}-{events}")
        if isinstance(item, CodeAccepted):
            execution = item.execution
            yield streaming.StreamEvent("accepted", {"execution": execution}, f"{output.position}-{events}")
        elif isinstance(item, CodeEnded):
            yield streaming.StreamEvent("exit", CellAnswer.of(item.status).model_dump())
        else:
            events += 1
            yield _event(execution, item)._replace(id=f"{output.position}-{events}")


def _event(execution: str, item: CellStarted | Display | Cleared | CellError) -> streaming.StreamEvent:
    if isinstance(item, CellStarted):
        return streaming.StreamEvent("started", {"execution": execution, "execution_count": item.count})
    if isinstance(item, Display):
        return streaming.StreamEvent("display", DisplayAnswer.of(item).model_dump())
    if isinstance(item, Cleared):
        return streaming.StreamEvent("clear", {"wait": item.wait})
    return streaming.StreamEvent("error", ErrorAnswer.of(item).model_dump())
