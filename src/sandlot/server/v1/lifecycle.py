"""Sandboxes that rest, and those that come of one: pause, resume, hibernate, wake, fork, tree, promote.

Law: A rest that was begun goes on where its client goes away; what would be made for it is not.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from sandlot.server.v1.common import cancel_on_disconnect, documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.sandboxes import SandboxAnswer
from sandlot.server.v1.schemas.saved import ForkBody, ForksAnswer, PromotedAnswer, ResumeBody, TreeAnswer

router = APIRouter(prefix="/v1/sandboxes/{sandbox}", tags=["sandboxes"])


@router.post("/pause", responses=documented_response(SandboxAnswer, "It is paused."))
async def pause(sandbox: str, request: Request) -> Response:
    """Freeze a sandbox where it is. Nothing in it runs, its memory stays, and its timeout stands still. Again and again the same."""
    return json_response(SandboxAnswer.of(await get_node(request).sandboxes.pause(get_principal(request), sandbox)))


@router.post("/resume", responses=documented_response(SandboxAnswer, "It runs."))
async def resume(sandbox: str, request: Request, body: ResumeBody | None = None) -> Response:
    """Let a sandbox that is paused or hibernated go on where it was. One that runs is left as it is."""
    return await _resumed(sandbox, request, body)


@router.post("/hibernate", responses=documented_response(SandboxAnswer, "It is hibernated."))
async def hibernate(sandbox: str, request: Request) -> Response:
    """Write a sandbox's memory to the disk and give it back. Connections into it are cut; what runs inside goes on when it wakes."""
    return json_response(SandboxAnswer.of(await get_node(request).sandboxes.hibernate(get_principal(request), sandbox)))


@router.post("/wake", responses=documented_response(SandboxAnswer, "It runs."))
async def wake(sandbox: str, request: Request, body: ResumeBody | None = None) -> Response:
    """Let a hibernated sandbox go on where it was; another word for resume."""
    return await _resumed(sandbox, request, body)


@router.post("/fork", status_code=201, responses=documented_response(ForksAnswer, "They run.", 201))
async def fork(
    sandbox: str,
    body: ForkBody,
    request: Request,
    idempotency_key: Annotated[str | None, Header(description="Your own name for this request: sent again, it gives the forks that it gave.")] = None,
) -> Response:
    """Make sandboxes that are what one is at this moment. It goes on; a client that goes away meanwhile leaves none behind."""
    work = get_node(request).sandboxes.fork(get_principal(request), sandbox, body.asked(), idempotency_key=idempotency_key)
    return json_response(ForksAnswer.of(await cancel_on_disconnect(request, work)), 201)


@router.get("/tree", responses=documented_response(TreeAnswer, "They."))
async def tree(sandbox: str, request: Request) -> Response:
    """Tell the forks that a sandbox belongs to: what it came of, and what came of that. Those that ended are told as long as they are kept."""
    return json_response(TreeAnswer.of(await get_node(request).sandboxes.tree(get_principal(request), sandbox)))


@router.post("/promote", responses=documented_response(PromotedAnswer, "It is the only one of its parent's forks that lives."))
async def promote(sandbox: str, request: Request) -> Response:
    """Keep one fork and end its siblings, with all that came of them. Their parent lives on."""
    return json_response(PromotedAnswer.of(await get_node(request).sandboxes.promote(get_principal(request), sandbox)))


async def _resumed(sandbox: str, request: Request, body: ResumeBody | None) -> Response:
    sandboxes, principal = get_node(request).sandboxes, get_principal(request)
    if body is None or body.timeout is None:
        return json_response(SandboxAnswer.of(await sandboxes.resume(principal, sandbox)))
    return json_response(SandboxAnswer.of(await sandboxes.resume(principal, sandbox, timeout_s=body.timeout)))
