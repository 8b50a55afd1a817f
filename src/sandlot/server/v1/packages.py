"""Packages: installed by pip, npm or apt, followed as that goes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.server.v1.common import IdempotencyKey, cancel_on_disconnect, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.processes import told_of
from sandlot.server.v1.schemas.processes import FinishedAnswer, PackagesBody
from sandlot.web import streaming

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/packages", tags=["packages"])


@router.post(
    "",
    responses=documented_response(FinishedAnswer, "It ended, well or not; with 'Accept: text/event-stream' events as it runs.", events="process"),
)
async def install(sandbox: str, body: PackagesBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Install packages. It is ended when the client goes away; an install that fails is an answer with its exit code and the manager's words."""
    packages, principal, params = get_node(request).packages, get_principal(request), body.asked()
    if streaming.accepts_events(request):
        stream = await cancel_on_disconnect(request, packages.stream(principal, sandbox, params, idempotency_key=idempotency_key))
        return streaming.event_response(request, told_of(stream), stream.aclose)
    return json_response(
        FinishedAnswer.finished(await cancel_on_disconnect(request, packages.install(principal, sandbox, params, idempotency_key=idempotency_key)))
    )
