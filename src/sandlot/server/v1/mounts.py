"""Volumes of a sandbox that runs: attached to it, and detached. A new one is asked for with its own: see POST /v1/sandboxes.

Law: What was begun is finished where its client goes away.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.server.v1.common import documented_response, get_node, get_principal, json_response
from sandlot.server.v1.schemas.sandboxes import SandboxAnswer
from sandlot.server.v1.schemas.volumes import DetachQuery, MountBody

router = APIRouter(prefix="/v1/sandboxes/{sandbox}/volumes", tags=["volumes"])


@router.post("", responses=documented_response(SandboxAnswer, "It has it."))
async def attach(sandbox: str, body: MountBody, request: Request) -> Response:
    """Attach a volume to a sandbox that runs; one that rests is resumed for it. Again and again the same. Where its isolation cannot: 501."""
    return json_response(SandboxAnswer.of(await get_node(request).sandboxes.attach_volume(get_principal(request), sandbox, body.asked())))


@router.delete("", responses=documented_response(SandboxAnswer, "It has it no more."))
async def detach(sandbox: str, query: Annotated[DetachQuery, Query()], request: Request) -> Response:
    """Detach a volume from a sandbox; what is in it stays. While anything inside has a file of it open, or works in it: 409."""
    return json_response(SandboxAnswer.of(await get_node(request).sandboxes.detach_volume(get_principal(request), sandbox, query.path)))
