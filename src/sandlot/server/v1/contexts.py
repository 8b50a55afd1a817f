"""Contexts: kernels with state, each of one language and with its own variables."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.executions import Context
from sandlot.server.v1.code import InterruptResponse
from sandlot.server.v1.common import PROBLEM, IdempotencyKey, documented_response
from sandlot.web.dependencies import SandboxRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response


class CreateContextRequest(RequestModel):
    """A context to make."""

    language: Text = Field(default="python", description="python, bash or javascript.", examples=["python"])
    cwd: Text | None = Field(default=None, description="The folder to start in, absolute; /workspace where left out.", examples=["/workspace"])
    env: Metadata = Field(default_factory=dict, description="Environment of everything that runs in it.")


class ContextResponse(ResponseModel):
    """A context as it is now."""

    id: str = Field(examples=["ctx-9f1c2a7be04d5836"])
    language: str = Field(examples=["python"])
    cwd: str = Field(description="The folder that it starts in.", examples=["/workspace"])
    state: str = Field(description="starting, idle, busy, or stopped: it starts with its next run.", examples=["idle"])
    execution_count: int = Field(description="How many cells it has run.")
    pid: int | None = Field(description="Its process in the sandbox.")

    @classmethod
    def of(cls, context: Context) -> ContextResponse:
        """What is told of it."""
        return cls(
            id=context.id,
            language=context.language,
            cwd=context.cwd,
            state=context.state,
            execution_count=context.execution_count,
            pid=context.pid,
        )


class ContextsResponse(ResponseModel):
    """The contexts of a sandbox."""

    contexts: list[ContextResponse]


router = APIRouter(prefix="/v1/sandboxes/{sandbox}/contexts", tags=["contexts"], route_class=SandboxRoute)


@router.post("", status_code=201, responses=documented_response(ContextResponse, "It is there.", 201))
async def create(sandbox: str, body: CreateContextRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Make another context. Where the client goes away meanwhile, there is none, unless it can ask again by an Idempotency-Key."""
    contexts = get_node(request).contexts
    work = contexts.create(get_principal(request), sandbox, body.language, cwd=body.cwd, env=body.env, idempotency_key=idempotency_key)
    return json_response(ContextResponse.of(await cancel_on_disconnect(request, work)), 201)


@router.get("", responses=documented_response(ContextsResponse, "All of them."))
async def list_contexts(sandbox: str, request: Request) -> Response:
    """List the contexts of a sandbox."""
    return json_response(
        ContextsResponse(contexts=[ContextResponse.of(each) for each in await get_node(request).contexts.list(get_principal(request), sandbox)])
    )


@router.get("/{context}", responses=documented_response(ContextResponse, "It."))
async def get(sandbox: str, context: str, request: Request) -> Response:
    """Look at one context."""
    return json_response(ContextResponse.of(await get_node(request).contexts.get(get_principal(request), sandbox, context)))


@router.delete("/{context}", status_code=204, responses=PROBLEM)
async def delete(sandbox: str, context: str, request: Request) -> Response:
    """End a context and everything that runs in it. One that is there always starts anew with its next run."""
    await get_node(request).contexts.delete(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.post("/{context}/restart", status_code=204, responses=PROBLEM)
async def restart(sandbox: str, context: str, request: Request) -> Response:
    """Begin anew: its variables are gone, what ran in it is ended, what waited for its turn never runs."""
    await get_node(request).contexts.restart(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.post("/{context}/interrupt", responses=documented_response(InterruptResponse, "It was told."))
async def interrupt(sandbox: str, context: str, request: Request) -> Response:
    """Interrupt what runs in a context, as Ctrl-C would."""
    return json_response(InterruptResponse(running=await get_node(request).contexts.interrupt(get_principal(request), sandbox, context)))
