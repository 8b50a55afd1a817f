"""Sandboxes: create, list, look, change, kill."""

from __future__ import annotations

import base64
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import InvalidRequestError
from sandlot.server.native.common import PROBLEM, also, core_of, principal_of, reply, sandbox_of, unless_gone
from sandlot.server.native.schemas.sandboxes import CreateBody, SandboxAnswer, SandboxesAnswer, SandboxesQuery, UpdateBody, UsageAnswer

router = APIRouter(prefix="/v1/sandboxes", tags=["sandboxes"])


@router.post("", status_code=201, responses=also(SandboxAnswer, "It runs.", 201))
async def create(body: CreateBody, request: Request) -> Response:
    """Create a sandbox and wait until it runs. A client that goes away meanwhile leaves none behind."""
    box = await unless_gone(request, core_of(request).sandboxes.create(body.asked(), principal_of(request)))
    return reply(SandboxAnswer.of(box), 201)


@router.get("", responses=also(SandboxesAnswer, "A page of them, oldest first."))
async def list_sandboxes(query: Annotated[SandboxesQuery, Query()], request: Request) -> Response:
    """List sandboxes."""
    boxes = core_of(request).sandboxes.all(principal_of(request), ended=query.all)
    if query.cursor is not None:
        after = _position(query.cursor)
        boxes = [box for box in boxes if _key(box) > after]
    page = boxes[: query.limit]
    following = base64.urlsafe_b64encode("~".join(_key(page[-1])).encode()).decode() if len(boxes) > len(page) else None
    return reply(SandboxesAnswer(sandboxes=[SandboxAnswer.of(box) for box in page], next_cursor=following))


@router.get("/{sandbox}", responses=also(SandboxAnswer, "It."))
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox; also at one that ended, for a while."""
    return reply(SandboxAnswer.of(sandbox_of(request, sandbox)))


@router.patch("/{sandbox}", responses=also(SandboxAnswer, "It, changed."))
async def update(sandbox: str, body: UpdateBody, request: Request) -> Response:
    """Change a sandbox's deadline, metadata or limits: all of what is asked, or nothing."""
    limits = None if body.limits is None else body.limits.change()
    box = await core_of(request).sandboxes.update(sandbox, principal_of(request), timeout_s=body.timeout, metadata=body.metadata, limits=limits)
    return reply(SandboxAnswer.of(box))


@router.delete("/{sandbox}", status_code=204, responses=PROBLEM)
async def kill(sandbox: str, request: Request) -> Response:
    """End a sandbox and remove it. Answered when its processes are dead; again and again the same."""
    await core_of(request).sandboxes.kill(sandbox, principal_of(request))
    return Response(status_code=204)


@router.get("/{sandbox}/usage", responses=also(UsageAnswer, "So far."))
async def usage(sandbox: str, request: Request) -> Response:
    """What a sandbox has used, and of how much."""
    return reply(UsageAnswer.of(await core_of(request).sandboxes.usage(sandbox, principal_of(request))))


def _key(box: Sandbox) -> tuple[str, str]:
    return box.created_at.isoformat(timespec="microseconds"), box.id


def _position(cursor: str) -> tuple[str, str]:
    try:
        text = base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except ValueError:
        text = ""
    created_at, mark, id_ = text.partition("~")
    if not mark:
        raise InvalidRequestError("The cursor is not one.", hint="Use next_cursor of the page before.", fields={"field": "cursor"})
    return created_at, id_
