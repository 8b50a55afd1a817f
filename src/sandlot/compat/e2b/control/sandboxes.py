"""Sandboxes: made, listed, looked at, prolonged, paused, resumed, ended.

Laws:
- A sandbox that ended, or that is somebody else's, is not found: 404, also where it ends while it is asked for something.
- Pausing is hibernating, where the isolation can: E2B's keeps memory and files and takes nothing of the host. Where it cannot, it is frozen.
- What connects prolongs, and never shortens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from sandlot.compat.common import find_live_sandboxes
from sandlot.compat.e2b import translate
from sandlot.compat.e2b.control.schemas import (
    ConnectBody,
    CreateBody,
    FilterQuery,
    NetworkUpdateBody,
    PauseBody,
    RefreshBody,
    ResumeBody,
    SandboxesQuery,
    TimeoutBody,
)
from sandlot.compat.e2b_conventions import NEXT, e2b_json_response, metadata_filter
from sandlot.core.node import Node
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.errors import (
    ConflictError,
    ErrorCode,
    InvalidRequestError,
    NotFoundError,
    SandboxEndedError,
    TimeoutExceededError,
    UnavailableError,
)
from sandlot.model.repositories import Position
from sandlot.model.sandboxes import SandboxInfo, UpdateSandboxParams
from sandlot.model.specs import DEFAULT_TIMEOUT_S, OnTimeout
from sandlot.web import pagination
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal

OLD_TIMEOUT_S = 15.0
"""Of a sandbox that is made, resumed or refreshed by the calls of older clients, where they say none; as at E2B."""

router = APIRouter()

Key = Annotated[str | None, Header()]


async def find(node: Node, principal: Principal, sandbox: str) -> SandboxInfo:
    """A sandbox.

    Raises:
        NotFoundError: ``sandbox_not_found``: there is none, or none any more, or it is somebody else's.
    """
    found = await node.sandboxes.get(principal, sandbox)
    if found.id != sandbox or not translate.is_there(found):
        raise absent(sandbox)
    return found


def absent(sandbox: str) -> NotFoundError:
    """What is told of a sandbox that there is not."""
    return NotFoundError(
        f"There is no sandbox {sandbox[:64]!r}.", code=ErrorCode.SANDBOX_NOT_FOUND, hint="It may have ended.", fields={"sandbox": sandbox[:64]}
    )


@contextmanager
def unless_ended(sandbox: str) -> Iterator[None]:
    """Around what is done with a sandbox: where it ends meanwhile, it is not found; where it comes to rest, that is a conflict."""
    try:
        yield
    except SandboxEndedError:
        raise absent(sandbox) from None
    except ConflictError as error:
        if error.code is not ErrorCode.SANDBOX_PAUSED:
            raise
        raise ConflictError(error.message, code=ErrorCode.CONFLICT, hint="Connect to it first.", fields=error.fields) from None


def made(node: Node, sandbox: SandboxInfo) -> dict[str, Any]:
    """A sandbox as its maker is told of it."""
    return translate.made(sandbox, node.tokens.sandbox_token(OPERATOR, sandbox.id))


@router.post("/v2/sandboxes")
async def create(body: CreateBody, request: Request, idempotency_key: Key = None) -> Response:
    """Create a sandbox. A client that goes away meanwhile leaves none behind."""
    return await _create(body, request, DEFAULT_TIMEOUT_S, idempotency_key)


@router.post("/sandboxes")
async def create_old(body: CreateBody, request: Request, idempotency_key: Key = None) -> Response:
    """The same, as older clients ask for it."""
    return await _create(body, request, OLD_TIMEOUT_S, idempotency_key)


async def _create(body: CreateBody, request: Request, timeout_s: float, key: str | None) -> Response:
    node, principal = get_node(request), get_principal(request)
    return e2b_json_response(made(node, await cancel_on_disconnect(request, _made(node, principal, body, timeout_s, key))), 201)


async def _made(node: Node, principal: Principal, body: CreateBody, timeout_s: float, key: str | None) -> SandboxInfo:
    """A sandbox from a template, or from the snapshot of that id or name."""
    try:
        await node.templates.find(principal, translate.ours(body.template_id))
    except NotFoundError:
        params = translate.new_sandbox(body, timeout_s, snapshot=translate.plain(body.template_id))
        try:
            return await node.sandboxes.create(principal, params, idempotency_key=key)
        except NotFoundError as error:
            if error.code is not ErrorCode.SNAPSHOT_NOT_FOUND:
                raise
            known = [each.name for each in await node.templates.list(principal)]
            raise translate.no_template(body.template_id, known) from None
    return await node.sandboxes.create(principal, translate.new_sandbox(body, timeout_s), idempotency_key=key)


@router.get("/v2/sandboxes")
async def list_sandboxes(query: Annotated[SandboxesQuery, Query()], request: Request) -> Response:
    """List sandboxes, newest first unless asked otherwise."""
    states = {translate.RUNNING, translate.PAUSED} if query.state is None else set(query.state.split(","))
    if unknown := states - {translate.RUNNING, translate.PAUSED}:
        raise InvalidRequestError(f"There is no state {min(unknown)[:50]!r}.", hint="There are: running, paused.", fields={"field": "state"})
    if (since := query.started_after) is not None and since.tzinfo is None:
        raise InvalidRequestError("startedAfter has no time zone.", hint="End it with Z or an offset.", fields={"field": "startedAfter"})
    found = [
        sandbox
        for sandbox in await _all(request, states, metadata_filter(query.metadata or ""))
        if (since is None or sandbox.created_at >= since) and query.template in {None, translate.template_name(sandbox), sandbox.spec.template.name}
    ]
    after = pagination.decode_cursor(query.next_token)
    if query.order == "desc":
        found.reverse()
    if after is not None:
        at = (after.at, after.id)
        found = [
            sandbox
            for sandbox in found
            if ((sandbox.created_at, sandbox.id) < at if query.order == "desc" else (sandbox.created_at, sandbox.id) > at)
        ]
    page = found[: query.limit]
    headers = {NEXT: pagination.encode_cursor(Position(page[-1].created_at, page[-1].id))} if len(found) > len(page) else {}
    return e2b_json_response([translate.listed(sandbox) for sandbox in page], headers=headers)


@router.get("/sandboxes")
async def list_old(query: Annotated[FilterQuery, Query()], request: Request) -> Response:
    """List the sandboxes that run, as older clients ask for it."""
    sandboxes = await _all(request, {translate.RUNNING}, metadata_filter(query.metadata or ""))
    return e2b_json_response([translate.listed(sandbox) for sandbox in reversed(sandboxes)])


async def _all(request: Request, states: Collection[str], metadata: Mapping[str, str]) -> list[SandboxInfo]:
    """All that there are in E2B's states and with that metadata, oldest first."""
    live = await find_live_sandboxes(get_node(request), get_principal(request), metadata)
    return [sandbox for sandbox in live if translate.STATES.get(sandbox.state) in states]


@router.get("/sandboxes/{sandbox}")
async def get(sandbox: str, request: Request) -> Response:
    """Look at a sandbox."""
    node, principal = get_node(request), get_principal(request)
    found = await find(node, principal, sandbox)
    return e2b_json_response(translate.detailed(found, node.tokens.sandbox_token(principal, found.id)))


@router.delete("/sandboxes/{sandbox}")
async def kill(sandbox: str, request: Request) -> Response:
    """End a sandbox; answered when its processes are dead."""
    node, principal = get_node(request), get_principal(request)
    await node.sandboxes.kill(principal, (await find(node, principal, sandbox)).id)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/timeout")
async def set_timeout(sandbox: str, body: TimeoutBody, request: Request) -> Response:
    """Let a sandbox time out so many seconds from now; one that is paused, from when it is resumed."""
    node, principal = get_node(request), get_principal(request)
    with unless_ended(sandbox):
        found = await find(node, principal, sandbox)
        await node.sandboxes.update(principal, found.id, UpdateSandboxParams(timeout_s=translate.timeout(body.timeout)))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/refreshes")
async def refresh(sandbox: str, request: Request, body: RefreshBody | None = None) -> Response:
    """Let a sandbox live for so many more seconds at least."""
    node, principal = get_node(request), get_principal(request)
    asked_s = OLD_TIMEOUT_S if body is None or body.duration is None else body.duration
    found = await find(node, principal, sandbox)
    with unless_ended(sandbox):
        await _prolong(node, principal, found, max(asked_s, OLD_TIMEOUT_S))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/pause")
async def pause(sandbox: str, request: Request, body: PauseBody | None = None) -> Response:
    """Keep a sandbox, memory and files, until something resumes it. It goes on where the client goes away meanwhile, or its guest does not answer."""
    node, principal, asked = get_node(request), get_principal(request), body or PauseBody()
    found = await find(node, principal, sandbox)
    if not asked.memory:
        raise translate.without_memory("memory")
    if translate.STATES[found.state] == translate.PAUSED:
        raise ConflictError(f"Sandbox {found.id} is paused already.", code=ErrorCode.CONFLICT, fields={"sandbox": found.id})
    with unless_ended(sandbox), _strictly(asked):
        await node.sandboxes.suspend(principal, found.id)
    return Response(status_code=204)


@contextmanager
def _strictly(asked: PauseBody) -> Iterator[None]:
    """Around a pause: a guest that does not answer is busy to whoever asked for a healthy one."""
    try:
        yield
    except TimeoutExceededError as error:
        if not asked.require_healthy_guest:
            raise
        raise UnavailableError(error.message, code=ErrorCode.BUSY, hint="It runs on.", fields=error.fields) from None


@router.post("/v2/sandboxes/{sandbox}/connect")
async def connect(sandbox: str, request: Request, body: ConnectBody | None = None) -> Response:
    """Let a sandbox go on where it is paused; one that runs lives for so many seconds at least."""
    asked = body or ConnectBody()
    return await _connected(sandbox, request, asked, DEFAULT_TIMEOUT_S if asked.timeout is None else asked.timeout)


@router.post("/sandboxes/{sandbox}/connect")
async def connect_old(sandbox: str, request: Request, body: ConnectBody) -> Response:
    """The same, as older clients ask for it: they say how long."""
    if body.timeout is None:
        raise InvalidRequestError("There is no timeout.", hint="Say how many seconds the sandbox is to live.", fields={"field": "timeout"})
    return await _connected(sandbox, request, body, body.timeout)


@router.post("/sandboxes/{sandbox}/resume")
async def resume(sandbox: str, request: Request, body: ResumeBody | None = None) -> Response:
    """Let a paused sandbox go on, as the oldest clients ask for it; one that runs is a conflict."""
    node, principal, asked = get_node(request), get_principal(request), body or ResumeBody()
    found = await find(node, principal, sandbox)
    if translate.STATES[found.state] == translate.RUNNING:
        raise ConflictError(f"Sandbox {found.id} runs already.", code=ErrorCode.CONFLICT, fields={"sandbox": found.id})
    if asked.auto_pause is not None:
        with unless_ended(sandbox):
            rest = OnTimeout.HIBERNATE if asked.auto_pause else OnTimeout.KILL
            await node.sandboxes.update(principal, found.id, UpdateSandboxParams(on_timeout=rest))
    return await _connected(sandbox, request, asked, OLD_TIMEOUT_S if asked.timeout is None else asked.timeout)


@router.put("/sandboxes/{sandbox}/network")
async def set_network(sandbox: str, body: NetworkUpdateBody, request: Request) -> Response:
    """Take note of the network that a sandbox has; another one is refused."""
    found = await find(get_node(request), get_principal(request), sandbox)
    translate.check_same_network(found, translate.network_of(allow=body.allow_internet_access, network=body))
    return Response(status_code=204)


async def _connected(sandbox: str, request: Request, asked: ConnectBody, seconds: float) -> Response:
    node, principal, timeout_s = get_node(request), get_principal(request), translate.timeout(seconds)
    found = await find(node, principal, sandbox)
    rests = translate.STATES[found.state] == translate.PAUSED
    if not asked.memory:
        raise translate.without_memory("memory")
    with unless_ended(sandbox):
        if rests:
            await node.sandboxes.resume(principal, found.id, timeout_s=timeout_s)
        else:
            await _prolong(node, principal, found, timeout_s)
    return e2b_json_response(made(node, found), 201 if rests else 200)


async def _prolong(node: Node, principal: Principal, sandbox: SandboxInfo, timeout_s: float) -> None:
    """A timeout so far from now, where the sandbox runs and would time out before."""
    if translate.STATES.get(sandbox.state) == translate.RUNNING and translate.left_s(sandbox) < timeout_s:
        await node.sandboxes.update(principal, sandbox.id, UpdateSandboxParams(timeout_s=timeout_s))
