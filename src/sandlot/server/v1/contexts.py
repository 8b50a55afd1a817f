"""Code contexts: schemas and routes."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import Field

from sandlot.model.executions import Context
from sandlot.server.v1.code import InterruptResponse
from sandlot.server.v1.common import PROBLEM, IdempotencyKey, documented_response
from sandlot.web.dependencies import SandboxNameRoute, cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import Metadata, RequestModel, ResponseModel, Text, json_response


class CreateContextRequest(RequestModel):
    """Options of a new context."""

    language: Text = Field(default="python", description="`python`, `javascript`, `typescript`, `bash` or `r`.", examples=["python"])
    cwd: Text | None = Field(default=None, description="Working directory at the start. Default: that of the sandbox.", examples=["/workspace"])
    env: Metadata = Field(default_factory=dict, description="Environment variables of the context.")


class ContextResponse(ResponseModel):
    """State of a context."""

    id: str = Field(examples=["ctx-9f1c2a7be04d5836"])
    language: str = Field(examples=["python"])
    cwd: str = Field(description="Working directory at the start.", examples=["/workspace"])
    state: str = Field(description="`starting`, `idle`, `busy`, or `stopped`: the next run starts the context.", examples=["idle"])
    execution_count: int = Field(description="Number of runs so far.")
    pid: int | None = Field(description="Process id in the sandbox.")

    @classmethod
    def of(cls, context: Context) -> ContextResponse:
        """Return the response for a context."""
        return cls(
            id=context.id,
            language=context.language,
            cwd=context.cwd,
            state=context.state,
            execution_count=context.execution_count,
            pid=context.pid,
        )


class ContextsResponse(ResponseModel):
    """All contexts of a sandbox."""

    contexts: list[ContextResponse]


router = APIRouter(prefix="/v1/sandboxes/{sandbox}/contexts", tags=["contexts"], route_class=SandboxNameRoute)


@router.post("", status_code=201, responses=documented_response(ContextResponse, "The new context.", 201))
async def create(sandbox: str, body: CreateContextRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Create a code context. If the client disconnects, the context is removed, unless the request has an Idempotency-Key."""
    contexts = get_node(request).contexts
    work = contexts.create(get_principal(request), sandbox, body.language, cwd=body.cwd, env=body.env, idempotency_key=idempotency_key)
    return json_response(ContextResponse.of(await cancel_on_disconnect(request, work)), 201)


@router.get("", responses=documented_response(ContextsResponse, "All contexts."))
async def list_contexts(sandbox: str, request: Request) -> Response:
    """List code contexts of a sandbox."""
    return json_response(
        ContextsResponse(contexts=[ContextResponse.of(each) for each in await get_node(request).contexts.list(get_principal(request), sandbox)])
    )


@router.get("/{context}", responses=documented_response(ContextResponse, "The context."))
async def get(sandbox: str, context: str, request: Request) -> Response:
    """Get a code context."""
    return json_response(ContextResponse.of(await get_node(request).contexts.get(get_principal(request), sandbox, context)))


@router.delete("/{context}", status_code=204, responses=PROBLEM)
async def delete(sandbox: str, context: str, request: Request) -> Response:
    """End a context and everything running in it. A default context starts again with its next run."""
    await get_node(request).contexts.delete(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.post("/{context}/restart", status_code=204, responses=PROBLEM)
async def restart(sandbox: str, context: str, request: Request) -> Response:
    """Restart a context. Its variables are lost, and its current and waiting runs end."""
    await get_node(request).contexts.restart(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.post("/{context}/interrupt", responses=documented_response(InterruptResponse, "Result of the interrupt."))
async def interrupt(sandbox: str, context: str, request: Request) -> Response:
    """Interrupt the code running in a context like Ctrl-C."""
    return json_response(InterruptResponse(running=await get_node(request).contexts.interrupt(get_principal(request), sandbox, context)))
