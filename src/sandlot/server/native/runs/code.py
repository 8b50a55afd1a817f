"""Code: run in a context that keeps its variables, followed, interrupted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.execution.code import CodeExecution
from sandlot.core.records.execution_log import ExecutionDescription
from sandlot.model.executions import CellError, CellStarted, Channel, Cleared, Display
from sandlot.server.native.common import also, node_of, reply, sandbox_of, unless_gone
from sandlot.server.native.runs.again import Key, named
from sandlot.server.native.schemas.code import (
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
from sandlot.web import streams

OFFSETS = 3
DIGITS = 18

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/code", tags=["code"])


@router.post(
    "",
    responses={
        **also(ExecutedAnswer, "It ended; with 'Accept: text/event-stream' or 'application/x-ndjson' events as it runs.", events="cell"),
        202: {"model": BegunAnswer, "description": "It runs in the background, or waits for its turn."},
    },
)
async def run(sandbox: str, body: CodeBody, request: Request, idempotency_key: Key = None) -> Response:
    """Run code in a context. Unless it is in the background, it is interrupted when the client goes away; its variables stay."""
    code, box, cell = node_of(request).code, sandbox_of(request, sandbox), body.cell()
    description = ExecutionDescription(id=named(box.id, idempotency_key, body))
    if body.background:
        return reply(BegunAnswer(execution=await code.launch(box, cell, description)), 202)
    if streams.wanted(request):
        execution = await unless_gone(request, code.start(box, cell, description))
        return streams.events(request, _told(execution), execution.close)
    return reply(ExecutedAnswer.executed(await unless_gone(request, code.run(box, cell, description))))


@router.get(
    "/{execution}",
    responses=also(KeptCellAnswer, "By now; with 'Accept: text/event-stream' or 'application/x-ndjson' events until it ends.", events="cell"),
)
async def follow(sandbox: str, execution: str, query: Annotated[FollowQuery, Query()], request: Request) -> Response:
    """Read, or follow, what a run of code gives, for as long as the sandbox keeps it. Nothing happens to it when the client goes away."""
    code, box = node_of(request).code, sandbox_of(request, sandbox)
    if streams.wanted(request):
        events_from, stdout_from, stderr_from = gone_on(request.headers.get("last-event-id", "")) or query.offsets
        await unless_gone(request, code.check_known(box, execution))  # a stream that has begun can only fail, which is no 404
        followed = await code.follow(box, execution, events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from)
        return streams.events(request, _told(followed, events_from, stdout_from or 0, stderr_from or 0), followed.close)
    events_from, stdout_from, stderr_from = query.offsets
    work = code.collect(box, execution, events_from=events_from, stdout_from=stdout_from, stderr_from=stderr_from, wait_s=query.wait)
    return reply(KeptCellAnswer.kept(await unless_gone(request, work)))


@router.post("/{execution}/interrupt", responses=also(InterruptedAnswer, "It was told."))
async def interrupt(sandbox: str, execution: str, request: Request) -> Response:
    """Interrupt one run of code, as Ctrl-C would; one that waits for its turn never runs."""
    return reply(InterruptedAnswer(running=await node_of(request).code.interrupt(sandbox_of(request, sandbox), execution)))


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


async def _told(execution: CodeExecution, events: int = 0, stdout_from: int = 0, stderr_from: int = 0) -> AsyncIterator[streams.Event]:
    """All that an execution gives, as events; each says by its id where to go on after it: ``STDOUT-STDERR-EVENTS``."""
    output = streams.OutputEvents({Channel.STDOUT: stdout_from, Channel.STDERR: stderr_from})
    yield streams.event("accepted", {"execution": execution.id}, f"{output.position}-{events}")
    async for item in execution:
        if isinstance(item, CellStarted | Display | Cleared | CellError):
            for told in output.end():  # half a character came before this
                yield told._replace(id=f"{output.position}-{events}")
            events += 1
            yield _event(execution, item)._replace(id=f"{output.position}-{events}")
        else:
            for told in output.tell(item):
                yield told._replace(id=f"{output.position}-{events}")
    for told in output.end():
        yield told._replace(id=f"{output.position}-{events}")
    yield streams.event("exit", CellAnswer.of(await execution.outcome()).model_dump())


def _event(execution: CodeExecution, item: CellStarted | Display | Cleared | CellError) -> streams.Event:
    if isinstance(item, CellStarted):
        return streams.event("started", {"execution": execution.id, "execution_count": item.count})
    if isinstance(item, Display):
        return streams.event("display", DisplayAnswer.of(item).model_dump())
    if isinstance(item, Cleared):
        return streams.event("clear", {"wait": item.wait})
    return streams.event("error", ErrorAnswer.of(item).model_dump())
