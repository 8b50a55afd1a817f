"""Packages: installed by pip, npm or apt, followed as that goes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.core.records.execution_log import ExecutionDescription
from sandlot.server.native.common import also, node_of, principal_of, reply, sandbox_of, unless_gone
from sandlot.server.native.processes import told_of
from sandlot.server.native.runs.again import Key, named
from sandlot.server.native.schemas.processes import FinishedAnswer, PackagesBody
from sandlot.web import streams

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/packages", tags=["packages"])


@router.post(
    "",
    responses=also(FinishedAnswer, "It ended, well or not; with 'Accept: text/event-stream' events as it runs.", events="process"),
)
async def install(sandbox: str, body: PackagesBody, request: Request, idempotency_key: Key = None) -> Response:
    """Install packages. It is ended when the client goes away; an install that fails is an answer with its exit code and the manager's words."""
    box, what, quota = sandbox_of(request, sandbox), body.asked(), principal_of(request).quota
    packages, description = node_of(request).packages, ExecutionDescription(id=named(box.id, idempotency_key, body))
    if streams.wanted(request):
        run = await unless_gone(request, packages.start(box, what, quota, description))
        return streams.events(request, told_of(run), run.close)
    return reply(FinishedAnswer.finished(await unless_gone(request, packages.install(box, what, quota, description)), None))
