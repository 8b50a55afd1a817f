"""Sandboxes: made, listed, looked at, changed, ended; suspended and resumed; copied; those that have ended.

Law: A rest that was begun goes on where its client goes away; what would be made for it is not.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from sandlot.compat.common import VENDOR_KEY, find_sandboxes
from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.addressing import CONTROL, any_sandbox, id_of, url_of
from sandlot.compat.tensorlake.control.schemas import (
    ArchiveAnswer,
    ArchivedAnswer,
    ArchivedQuery,
    CopiesAnswer,
    CopyQuery,
    CreateBody,
    DetachBody,
    MountBody,
    SandboxesAnswer,
    UpdateBody,
    WaitQuery,
)
from sandlot.compat.tensorlake.translate import milliseconds
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import ENDED, ForkParams, SandboxFilter, SandboxInfo
from sandlot.model.states import State
from sandlot.web import pagination
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.models import json_response

SANDBOXES = "/sandboxes"
ONE = "/sandboxes/{sandbox}"
ARCHIVED = "/archived-sandboxes"
ACCEPTED = 202


@CONTROL.route("POST", SANDBOXES)
async def create(body: CreateBody, request: Request) -> Response:
    """Make a sandbox; it runs when this is answered, whether its client wanted to wait for that or not."""
    sandbox = await cancel_on_disconnect(request, get_node(request).sandboxes.create(get_principal(request), translate.new_sandbox(body)))
    return json_response(translate.made(sandbox, url_of(request, sandbox.id)), ACCEPTED if body.wait is False else 200)


@CONTROL.route("GET", SANDBOXES)
async def list_sandboxes(request: Request) -> Response:
    """All that live, oldest first."""
    sandboxes = await find_sandboxes(get_node(request), get_principal(request), SandboxFilter())
    return json_response(SandboxesAnswer(sandboxes=[translate.sandbox(sandbox, url_of(request, sandbox.id)) for sandbox in sandboxes]))


@CONTROL.route("GET", ONE)
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox; also at one that has ended."""
    return _told(request, await any_sandbox(request, sandbox))


@CONTROL.route("PATCH", ONE)
async def update(sandbox: str, body: UpdateBody, request: Request) -> Response:
    """Change a sandbox's name, limits or whether a request wakes it."""
    box = await any_sandbox(request, sandbox)
    return _told(request, await get_node(request).sandboxes.update(get_principal(request), box.id, translate.update(body, box)))


@CONTROL.route("DELETE", ONE)
async def kill(sandbox: str, request: Request) -> Response:
    """End a sandbox, and all that is in it. Again and again the same."""
    await get_node(request).sandboxes.kill(get_principal(request), await id_of(request, sandbox))
    return Response(status_code=204)


@CONTROL.route("POST", f"{ONE}/suspend")
async def suspend(sandbox: str, waits: Annotated[WaitQuery, Query()], request: Request) -> Response:
    """Write a sandbox's memory to the disk and give it back; it has been done when this is answered with 200."""
    id_ = await id_of(request, sandbox)
    info = await get_node(request).sandboxes.hibernate(get_principal(request), id_, wait_s=_wait_s(waits))
    return _changed(request, info, State.HIBERNATED, waits)


@CONTROL.route("POST", f"{ONE}/resume")
async def resume(sandbox: str, waits: Annotated[WaitQuery, Query()], request: Request) -> Response:
    """Let a sandbox go on where it was; it runs when this is answered with 200."""
    id_ = await id_of(request, sandbox)
    info = await get_node(request).sandboxes.resume(get_principal(request), id_, wait_s=_wait_s(waits))
    return _changed(request, info, State.RUNNING, waits)


@CONTROL.route("POST", f"{ONE}/copy")
async def copy(sandbox: str, query: Annotated[CopyQuery, Query()], request: Request) -> Response:
    """Make sandboxes that are what one is at this moment. A client that goes away meanwhile leaves none behind."""
    box = await any_sandbox(request, sandbox)
    words = {name: word for name, word in box.metadata.items() if name in {VENDOR_KEY, translate.IMAGE_KEY}}
    work = get_node(request).sandboxes.fork(get_principal(request), box.id, ForkParams(count=query.times, metadata=words))
    copies = [translate.made(each, url_of(request, each.id)) for each in await cancel_on_disconnect(request, work)]
    return json_response(CopiesAnswer(source_sandbox_id=box.id, sandboxes=copies))


@CONTROL.route("POST", f"{ONE}/file_systems")
async def attach(sandbox: str, body: MountBody, request: Request) -> Response:
    """Put a file system into a sandbox that runs; it is there when this is answered."""
    id_ = await id_of(request, sandbox)
    (mount,) = translate.volumes([body])
    return _told(request, await get_node(request).sandboxes.attach_volume(get_principal(request), id_, mount))


@CONTROL.route("DELETE", f"{ONE}/file_systems")
async def detach(sandbox: str, body: DetachBody, request: Request) -> Response:
    """Take one out; 409 while something inside uses it."""
    id_ = await id_of(request, sandbox)
    return _told(request, await get_node(request).sandboxes.detach_volume(get_principal(request), id_, body.mount_path))


@CONTROL.route("GET", ARCHIVED)
async def list_archived(query: Annotated[ArchivedQuery, Query()], request: Request) -> Response:
    """A page of those that have ended, oldest first, for as long as their records are kept."""
    if query.direction != "forward":
        raise InvalidRequestError("Pages go forward only.", hint="Keep the cursors of the pages that you have seen.", fields={"field": "direction"})
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).sandboxes.list(get_principal(request), SandboxFilter(states=ENDED), after=after, limit=query.limit)
    following = pagination.encode_cursor(Position(page.items[-1].created_at, page.items[-1].id)) if page.more else None
    return json_response(ArchiveAnswer(sandboxes=[_archived(request, sandbox) for sandbox in page.items], next_cursor=following))


@CONTROL.route("GET", f"{ARCHIVED}/{{archived}}")
async def get_archived(archived: str, request: Request) -> Response:
    """Look at one that has ended."""
    sandbox = await any_sandbox(request, archived)
    if translate.status(sandbox) != "terminated":
        raise NotFoundError(
            f"Sandbox {sandbox.id} has not ended.",
            code=ErrorCode.SANDBOX_NOT_FOUND,
            hint="Look at it among those that live.",
            fields={"sandbox": sandbox.id},
        )
    return json_response(_archived(request, sandbox))


def _wait_s(waits: WaitQuery) -> float | None:
    """How long its client waits, in seconds; None where for as long as it takes."""
    return None if waits.wait_ms is None else waits.wait_ms / 1000


def _changed(request: Request, sandbox: SandboxInfo, wanted: State, waits: WaitQuery) -> Response:
    """What a work has made of a sandbox; 202 where that takes longer than its client waits, and it goes on by itself."""
    return _told(request, sandbox, 200 if waits.wait_ms is None or sandbox.state is wanted else ACCEPTED)


def _told(request: Request, sandbox: SandboxInfo, status: int = 200) -> Response:
    return json_response(translate.sandbox(sandbox, url_of(request, sandbox.id)), status)


def _archived(request: Request, sandbox: SandboxInfo) -> ArchivedAnswer:
    told = translate.sandbox(sandbox, url_of(request, sandbox.id))
    return ArchivedAnswer(**dict(told), archived_at=milliseconds(sandbox.ended_at or sandbox.created_at))
