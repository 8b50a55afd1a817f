"""Code: run in a kernel that keeps its variables."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response

from sandlot.core.runs import code
from sandlot.core.runs.code import Execution
from sandlot.link.types import CellError, Display, Lost, Output
from sandlot.server.native.common import also, reply, sandbox_of, unless_gone
from sandlot.server.native.schemas.code import CellAnswer, CodeBody, DisplayAnswer, ErrorAnswer, ExecutedAnswer
from sandlot.web import streams

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/code", tags=["code"])


@router.post("", responses=also(ExecutedAnswer, "It ended; with 'Accept: text/event-stream' events as it runs.", events="cell"))
async def run(sandbox: str, body: CodeBody, request: Request) -> Response:
    """Run code. It is interrupted when the client goes away; its variables stay."""
    box = sandbox_of(request, sandbox)
    cell = body.cell()
    if streams.wanted(request):
        execution = await unless_gone(request, code.start(box, cell))
        return streams.events(request, _told(execution), execution.close)
    return reply(ExecutedAnswer.executed(await unless_gone(request, code.execute(box, cell))))


async def _told(execution: Execution) -> AsyncIterator[streams.Event]:
    yield streams.event("started", {"execution": execution.id})
    output = streams.OutputEvents()
    async for item in execution:
        if isinstance(item, Display):
            yield streams.event("display", DisplayAnswer.of(item).model_dump())
        elif isinstance(item, CellError):
            yield streams.event("error", ErrorAnswer.of(item).model_dump())
        elif isinstance(item, Output | Lost):
            for told in output.tell(item):
                yield told
    for told in output.end():
        yield told
    yield streams.event("exit", CellAnswer.of(await execution.outcome()).model_dump())
