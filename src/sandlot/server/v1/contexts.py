"""Contexts: kernels with state, each of one language and with its own variables."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from sandlot.server.v1.common import PROBLEM, IdempotencyKey, cancel_on_disconnect, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.code import ContextAnswer, ContextBody, ContextsAnswer, InterruptedAnswer

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/contexts", tags=["contexts"])


@router.post("", status_code=201, responses=documented_response(ContextAnswer, "It is there.", 201))
async def create(sandbox: str, body: ContextBody, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Make another context. Where the client goes away meanwhile, there is none, unless it can ask again by an Idempotency-Key."""
    contexts = get_node(request).contexts
    work = contexts.create(get_principal(request), sandbox, body.language, cwd=body.cwd, env=body.env, idempotency_key=idempotency_key)
    return json_response(ContextAnswer.of(await cancel_on_disconnect(request, work)), 201)


@router.get("", responses=documented_response(ContextsAnswer, "All of them."))
async def list_contexts(sandbox: str, request: Request) -> Response:
    """List the contexts of a sandbox."""
    return json_response(
        ContextsAnswer(contexts=[ContextAnswer.of(each) for each in await get_node(request).contexts.list(get_principal(request), sandbox)])
    )


@router.get("/{context}", responses=documented_response(ContextAnswer, "It."))
async def get(sandbox: str, context: str, request: Request) -> Response:
    """Look at one context."""
    return json_response(ContextAnswer.of(await get_node(request).contexts.get(get_principal(request), sandbox, context)))


@router.delete("/{context}", status_code=204, responses=PROBLEM)
async def remove(sandbox: str, context: str, request: Request) -> Response:
    """End a context and everything that runs in it. One that is there always starts anew with its next run."""
    await get_node(request).contexts.delete(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.post("/{context}/restart", status_code=204, responses=PROBLEM)
async def restart(sandbox: str, context: str, request: Request) -> Response:
    """Begin anew: its variables are gone, what ran in it is ended, what waited for its turn never runs."""
    await get_node(request).contexts.restart(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.post("/{context}/interrupt", responses=documented_response(InterruptedAnswer, "It was told."))
async def interrupt(sandbox: str, context: str, request: Request) -> Response:
    """Interrupt what runs in a context, as Ctrl-C would."""
    return json_response(InterruptedAnswer(running=await get_node(request).contexts.interrupt(get_principal(request), sandbox, context)))
