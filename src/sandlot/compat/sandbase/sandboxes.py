"""Sandboxes: made, listed, looked at, prolonged, paused, resumed, ended; their templates.

Laws:
- Pausing is hibernating, where the isolation can: the vendor's pause takes nothing of the host. Where it cannot, a sandbox is frozen.
- One that is paused is not resumed by what is asked of it: that is refused (409) until somebody resumes it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import find_live_sandbox, find_sandbox, find_sandboxes
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.compat.sandbase import translate
from sandlot.compat.sandbase.schemas import PauseBody, RefreshBody, ResumeBody, SandboxBody, StatusQuery, TimeoutBody, done
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError
from sandlot.model.sandboxes import SandboxFilter, SandboxInfo, UpdateSandboxParams
from sandlot.model.service import TemplateInfo
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal

E2B = "e2b-"
"""How the clients of E2B call themselves: e2b-python-sdk/2.63.0, e2b-js-sdk/2.30.0."""

MOST_ENDED = 1000
"""Of a list, which the vendor does not page."""

router = APIRouter()


@router.post("/sandboxes")
async def create(body: SandboxBody, request: Request) -> Response:
    """Create a sandbox. A client that goes away meanwhile leaves none behind."""
    return await made(body, request)


async def made(body: SandboxBody, request: Request) -> Response:
    """Create a sandbox, whoever's client asks for it."""
    node = get_node(request)
    known = await node.templates.list(get_principal(request))
    params = translate.new_sandbox(body, [each.name for each in known])
    sandbox = await cancel_on_disconnect(request, node.sandboxes.create(get_principal(request), params))
    return e2b_json_response(opened(request, sandbox), 201)


@router.get("/sandboxes")
async def list_sandboxes(query: Annotated[StatusQuery, Query()], request: Request) -> Response:
    """List sandboxes, newest first: those that live, or those of a status."""
    wanted = translate.statuses(query.status)
    states = SandboxFilter(states=frozenset(state for state, status in translate.STATUSES.items() if status in wanted))
    newest = None if translate.LIVE.issuperset(wanted) else MOST_ENDED
    found = await find_sandboxes(get_node(request), get_principal(request), states, newest=newest)
    return e2b_json_response([translate.sandbox(sandbox) for sandbox in reversed(found)])


@router.get("/sandboxes/{sandbox}")
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox, also at one that has ended, for as long as it is known."""
    if by_e2b(request):
        return e2b_json_response(opened(request, await live(request, sandbox)))
    found = await find_sandbox(get_node(request), get_principal(request), sandbox)
    return e2b_json_response(translate.sandbox(found) if found.is_over else opened(request, found))


@router.delete("/sandboxes/{sandbox}")
@router.post("/sandboxes/{sandbox}/shutdown")
async def kill(sandbox: str, request: Request) -> Response:
    """End a sandbox; answered when its processes are dead."""
    found = await live(request, sandbox)
    await get_node(request).sandboxes.kill(get_principal(request), found.id)
    return done()


@router.post("/sandboxes/{sandbox}/pause")
async def pause(sandbox: str, request: Request, _body: PauseBody | None = None) -> Response:
    """Keep a sandbox, memory and files, until it is resumed. It goes on where the client goes away meanwhile."""
    found = await live(request, sandbox)
    if by_e2b(request) and translate.status(found) == translate.PAUSED:
        raise ConflictError(f"Sandbox {found.id} is paused already.", code=ErrorCode.CONFLICT, fields={"sandbox": found.id})
    await get_node(request).sandboxes.suspend(get_principal(request), found.id)
    return done()


@router.post("/sandboxes/{sandbox}/resume")
@router.post("/sandboxes/{sandbox}/connect")
async def resume(sandbox: str, request: Request, body: ResumeBody | None = None) -> Response:
    """Let a sandbox go on where it was, with its timeout anew; where a timeout is given, from now on that one holds."""
    sandboxes, principal = get_node(request).sandboxes, get_principal(request)
    found = await live(request, sandbox)
    if body is None or body.timeout is None:
        found = await sandboxes.resume(principal, found.id)
    else:
        seconds = translate.timeout(body.timeout)
        if translate.status(found) == translate.PAUSED:
            found = await sandboxes.resume(principal, found.id, timeout_s=seconds)
        else:
            found = await sandboxes.update(principal, found.id, UpdateSandboxParams(timeout_s=seconds))
    return e2b_json_response(opened(request, found))


@router.post("/sandboxes/{sandbox}/timeout")
async def set_timeout(sandbox: str, body: TimeoutBody, request: Request) -> Response:
    """Let a sandbox time out so many seconds from now."""
    return await _prolonged(sandbox, request, translate.timeout(body.timeout))


@router.post("/sandboxes/{sandbox}/refreshes")
async def refresh(sandbox: str, body: RefreshBody, request: Request) -> Response:
    """The same, in the words of older pages."""
    return await _prolonged(sandbox, request, translate.timeout(body.duration, field="duration"))


@router.get("/templates")
async def list_templates(request: Request) -> Response:
    """List what a sandbox can be started from."""
    known = await get_node(request).templates.list(get_principal(request))
    return e2b_json_response([translate.template(name, about) for name, about in translate.templates(known)])


@router.get("/templates/aliases/{alias}")
async def alias(alias: str, request: Request) -> Response:
    """Which template a name is."""
    name, _ = await _template(request, alias)
    return e2b_json_response({"templateID": name, "public": True})


@router.get("/templates/{template}")
async def get_template(template: str, request: Request) -> Response:
    """Look at a template."""
    name, about = await _template(request, template)
    return e2b_json_response(translate.template(name, about))


def by_e2b(request: Request) -> bool:
    """Whether E2B's client asks: its answers differ from Sandbase's in a few places."""
    return request.headers.get("user-agent", "").startswith(E2B)


async def live(request: Request, sandbox: str) -> SandboxInfo:
    """The sandbox that a request is about.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is none, or it is somebody else's.
        SandboxEndedError: It has ended.
    """
    return await find_live_sandbox(get_node(request), get_principal(request), sandbox)


async def _template(request: Request, asked: str) -> tuple[str, TemplateInfo]:
    known = await get_node(request).templates.list(get_principal(request))
    for name, about in translate.templates(known):
        if asked in {name, about.name}:
            return name, about
    raise NotFoundError(
        f"unknown template: {asked[:64]}.",
        code=ErrorCode.NOT_FOUND,
        hint=f"There are: {', '.join(translate.names([each.name for each in known]))}.",
        fields={"template": asked[:64]},
    )


async def _prolonged(sandbox: str, request: Request, timeout_s: float) -> Response:
    found = await live(request, sandbox)
    if translate.status(found) == translate.PAUSED and not by_e2b(request):
        raise translate.not_active(found)
    await get_node(request).sandboxes.update(get_principal(request), found.id, UpdateSandboxParams(timeout_s=timeout_s))
    return done()


def opened(request: Request, sandbox: SandboxInfo) -> dict[str, object]:
    """A sandbox as whoever made it, or connects to it, is told of it: with what opens it to E2B's client."""
    return translate.sandbox(sandbox, get_node(request).tokens.sandbox_token(get_principal(request), sandbox.id))
