"""Sandboxes: made, listed, looked at, prolonged, paused, resumed, ended; their templates.

Laws:
- Pausing is hibernating, where the isolation can: the vendor's pause takes nothing of the host. Where it cannot, a sandbox is frozen.
- One that is paused is not resumed by what is asked of it: that is refused (409) until somebody resumes it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.node import Node
from sandlot.core.sandbox import Sandbox
from sandlot.doors.e2bwords import told
from sandlot.doors.sandbase import translate
from sandlot.doors.sandbase.wire import PauseBody, RefreshBody, ResumeBody, SandboxBody, StatusQuery, TimeoutBody, done
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError
from sandlot.model.ports import DriverCapability
from sandlot.model.sandboxes import UpdateSandboxParams
from sandlot.model.service import TemplateInfo
from sandlot.model.states import is_terminal
from sandlot.web.asking import node_of, principal_of, unless_gone

E2B = "e2b-"
"""How the clients of E2B call themselves: e2b-python-sdk/2.63.0, e2b-js-sdk/2.30.0."""

router = APIRouter()


@router.post("/sandboxes")
async def create(body: SandboxBody, request: Request) -> Response:
    """Create a sandbox. A client that goes away meanwhile leaves none behind."""
    return await made(body, request)


async def made(body: SandboxBody, request: Request) -> Response:
    """Create a sandbox, whoever's client asks for it."""
    node = node_of(request)
    known = await node.templates.list(principal_of(request))
    params = translate.new_sandbox(body, [each.name for each in known])
    sandbox = await unless_gone(request, node.manager.create(principal_of(request), params))
    return told(opened(node, sandbox), 201)


@router.get("/sandboxes")
async def list_sandboxes(query: Annotated[StatusQuery, Query()], request: Request) -> Response:
    """List sandboxes, newest first: those that live, or those of a status."""
    wanted = translate.statuses(query.status)
    sandboxes = node_of(request).registry.list(principal_of(request), ended=not translate.LIVE.issuperset(wanted))
    found = [translate.sandbox(sandbox) for sandbox in reversed(sandboxes)]
    return told([each for each in found if each["status"] in wanted])


@router.get("/sandboxes/{sandbox}")
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox, also at one that has ended, for as long as it is known."""
    node = node_of(request)
    if by_e2b(request):
        return told(opened(node, live(request, sandbox)))
    box = await node.registry.load(sandbox, principal_of(request))
    return told(translate.sandbox(box) if is_terminal(box.state) else opened(node, box))


@router.delete("/sandboxes/{sandbox}")
@router.post("/sandboxes/{sandbox}/shutdown")
async def kill(sandbox: str, request: Request) -> Response:
    """End a sandbox; answered when its processes are dead."""
    node, principal = node_of(request), principal_of(request)
    await node.manager.kill(principal, live(request, sandbox).id)
    return done()


@router.post("/sandboxes/{sandbox}/pause")
async def pause(sandbox: str, request: Request, _body: PauseBody | None = None) -> Response:
    """Keep a sandbox, memory and files, until it is resumed. It goes on where the client goes away meanwhile."""
    node, principal = node_of(request), principal_of(request)
    box = live(request, sandbox)
    if by_e2b(request) and translate.status(box) == translate.PAUSED:
        raise ConflictError(f"Sandbox {box.id} is paused already.", code=ErrorCode.CONFLICT, fields={"sandbox": box.id})
    can = await node.drivers.capabilities_for(box.spec.isolation, DriverCapability.SNAPSHOT)
    if can.can(DriverCapability.SNAPSHOT):
        await node.manager.hibernate(principal, box.id)
    else:
        await node.manager.pause(principal, box.id)
    return done()


@router.post("/sandboxes/{sandbox}/resume")
@router.post("/sandboxes/{sandbox}/connect")
async def resume(sandbox: str, request: Request, body: ResumeBody | None = None) -> Response:
    """Let a sandbox go on where it was, with its timeout anew; where a timeout is given, from now on that one holds."""
    node, principal = node_of(request), principal_of(request)
    box = live(request, sandbox)
    if body is None or body.timeout is None:
        await node.manager.resume(principal, box.id)
    else:
        seconds = translate.timeout(body.timeout)
        if translate.status(box) == translate.PAUSED:
            await node.manager.resume(principal, box.id, timeout_s=seconds)
        else:
            await node.manager.update(principal, box.id, UpdateSandboxParams(timeout_s=seconds))
    return told(opened(node, box))


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
    known = await node_of(request).templates.list(principal_of(request))
    return told([translate.template(name, about) for name, about in translate.templates(known)])


@router.get("/templates/aliases/{alias}")
async def alias(alias: str, request: Request) -> Response:
    """Which template a name is."""
    name, _ = await _template(request, alias)
    return told({"templateID": name, "public": True})


@router.get("/templates/{template}")
async def get_template(template: str, request: Request) -> Response:
    """Look at a template."""
    name, about = await _template(request, template)
    return told(translate.template(name, about))


def by_e2b(request: Request) -> bool:
    """Whether E2B's client asks: its answers differ from Sandbase's in a few places."""
    return request.headers.get("user-agent", "").startswith(E2B)


def live(request: Request, sandbox: str) -> Sandbox:
    """The sandbox that a request is about.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is none, or it is somebody else's.
        SandboxEndedError: It has ended.
    """
    box = node_of(request).registry.find(sandbox, principal_of(request))
    if box.ended.is_set() or box.end_requested.is_set():
        raise box.ended_error()
    return box


async def _template(request: Request, asked: str) -> tuple[str, TemplateInfo]:
    known = await node_of(request).templates.list(principal_of(request))
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
    node, principal = node_of(request), principal_of(request)
    box = live(request, sandbox)
    if translate.status(box) == translate.PAUSED and not by_e2b(request):
        raise box.suspended_error()
    await node.manager.update(principal, box.id, UpdateSandboxParams(timeout_s=timeout_s))
    return done()


def opened(node: Node, sandbox: Sandbox) -> dict[str, object]:
    """A sandbox as whoever made it, or connects to it, is told of it: with what opens it to E2B's client."""
    return translate.sandbox(sandbox, node.tokens.sandbox_token(OPERATOR, sandbox.id))
