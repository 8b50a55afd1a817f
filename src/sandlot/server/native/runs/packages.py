"""Packages: installed by pip, npm or apt, followed as that goes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.server.native.common import IdempotencyKey, also, node_of, principal_of, reply, unless_gone
from sandlot.server.native.processes import told_of
from sandlot.server.native.schemas.processes import FinishedAnswer, PackagesBody
from sandlot.web import streams

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/packages", tags=["packages"])


@router.post(
    "",
    responses=also(FinishedAnswer, "It ended, well or not; with 'Accept: text/event-stream' events as it runs.", events="process"),
)
async def install(sandbox: str, body: PackagesBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Install packages. It is ended when the client goes away; an install that fails is an answer with its exit code and the manager's words."""
    packages, principal, params = node_of(request).packages, principal_of(request), body.asked()
    if streams.wanted(request):
        stream = await unless_gone(request, packages.stream(principal, sandbox, params, idempotency_key=idempotency_key))
        return streams.events(request, told_of(stream), stream.aclose)
    return reply(FinishedAnswer.finished(await unless_gone(request, packages.install(principal, sandbox, params, idempotency_key=idempotency_key))))
