"""Routes of E2B's control plane for sandboxes: create, list, inspect, extend, pause, resume, kill.

Invariants:
- A sandbox that has ended or belongs to another owner is not found: 404, also if it ends during the call.
- To pause is to hibernate if the isolation supports it, because E2B's paused sandboxes keep memory and files and use nothing of the host.
- To connect extends a timeout and never shortens it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from sandlot.compat.common import extend_timeout, find_live_sandboxes, preview_domain
from sandlot.compat.e2b import translate
from sandlot.compat.e2b.control.schemas import (
    ConnectRequest,
    CreateSandboxRequest,
    FilterQuery,
    PauseRequest,
    RefreshRequest,
    ResumeRequest,
    SandboxesQuery,
    SetTimeoutRequest,
    UpdateNetworkRequest,
)
from sandlot.compat.e2b_conventions import PAUSED, RUNNING, e2b_json_response, metadata_filter, page_response, parse_states, sandbox_position
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
from sandlot.model.sandboxes import SandboxInfo, UpdateSandboxParams
from sandlot.model.specs import DEFAULT_TIMEOUT_S, OnTimeout
from sandlot.web import pagination
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_principal
from sandlot.web.json_body import JsonRoute

LEGACY_TIMEOUT_S: Final = 15.0
"""Default timeout of the calls of older clients that create, resume, fork or refresh, as at E2B."""

router = APIRouter(route_class=JsonRoute)

IdempotencyKey = Annotated[str | None, Header()]


async def find(node: Node, principal: Principal, sandbox: str) -> SandboxInfo:
    """Return a sandbox by its id.

    Raises:
        NotFoundError: There is no such sandbox, it has ended, or it belongs to another owner (code ``sandbox_not_found``).
    """
    found = await node.sandboxes.get(principal, sandbox)
    if found.id != sandbox or not translate.is_visible(found):
        raise sandbox_not_found(sandbox)
    return found


def sandbox_not_found(sandbox: str) -> NotFoundError:
    """Return the error for an unknown or ended sandbox."""
    shown = sandbox[:64]
    return NotFoundError(
        f"There is no sandbox {shown!r}.",
        code=ErrorCode.SANDBOX_NOT_FOUND,
        hint="Create a sandbox, or list the sandboxes.",
        fields={"sandbox": shown},
    )


@contextmanager
def as_control_error(sandbox: str) -> Iterator[None]:
    """Translate errors of an operation: a sandbox that ends meanwhile is not found, and one that is suspended meanwhile is a conflict."""
    try:
        yield
    except SandboxEndedError:
        raise sandbox_not_found(sandbox) from None
    except ConflictError as error:
        if error.code is not ErrorCode.SANDBOX_PAUSED:
            raise
        raise ConflictError(error.message, code=ErrorCode.CONFLICT, hint="Connect to the sandbox first.", fields=error.fields) from None


async def with_token(request: Request, sandbox: SandboxInfo) -> dict[str, Any]:
    """Return the object of a sandbox that a client has created or connected to."""
    token = get_node(request).tokens.sandbox_token(OPERATOR, sandbox.id)
    return translate.created_sandbox(sandbox, token, await preview_domain(request))


@router.post("/v2/sandboxes")
async def create_sandbox(body: CreateSandboxRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Create a sandbox. If the client disconnects before the response, the sandbox is removed."""
    return await _create(body, request, DEFAULT_TIMEOUT_S, idempotency_key)


@router.post("/sandboxes")
async def create_sandbox_legacy(body: CreateSandboxRequest, request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Create a sandbox for an older client."""
    return await _create(body, request, LEGACY_TIMEOUT_S, idempotency_key)


async def _create(body: CreateSandboxRequest, request: Request, timeout_s: float, key: str | None) -> Response:
    node = get_node(request)
    sandbox = await cancel_on_disconnect(request, _create_sandbox(node, get_principal(request), body, timeout_s, key))
    return e2b_json_response(await with_token(request, sandbox), 201)


async def _create_sandbox(node: Node, principal: Principal, body: CreateSandboxRequest, timeout_s: float, key: str | None) -> SandboxInfo:
    """Create a sandbox from a template, or else from the snapshot of this id or name."""
    for name in translate.template_names(body.template_id):
        try:
            await node.templates.find(principal, name)
        except NotFoundError:
            continue
        params = translate.create_params(body, timeout_s, template=name)
        return await node.sandboxes.create(principal, params, idempotency_key=key)
    params = translate.create_params(body, timeout_s, snapshot=translate.without_tag(body.template_id))
    try:
        return await node.sandboxes.create(principal, params, idempotency_key=key)
    except NotFoundError as error:
        if error.code is not ErrorCode.SNAPSHOT_NOT_FOUND:
            raise
        templates = [template.name for template in await node.templates.list(principal)]
        raise translate.template_not_found(body.template_id, templates) from None


@router.get("/v2/sandboxes")
async def list_sandboxes(query: Annotated[SandboxesQuery, Query()], request: Request) -> Response:
    """List one page of the sandboxes, by default newest first."""
    if (since := query.started_after) is not None and since.tzinfo is None:
        raise InvalidRequestError("startedAfter has no time zone.", hint="End the time with Z or an offset.", fields={"field": "startedAfter"})
    sandboxes = [
        sandbox
        for sandbox in await _find_sandboxes(request, parse_states(query.state), metadata_filter(query.metadata or ""))
        if (since is None or sandbox.created_at >= since) and query.template in {None, translate.template_of(sandbox), sandbox.spec.template.name}
    ]
    if query.order == "desc":
        sandboxes.reverse()
    if (after := pagination.decode_cursor(query.next_token)) is not None:
        at = (after.at, after.id)
        sandboxes = [
            sandbox
            for sandbox in sandboxes
            if ((sandbox.created_at, sandbox.id) < at if query.order == "desc" else (sandbox.created_at, sandbox.id) > at)
        ]
    return page_response(sandboxes, query.limit, translate.listed_sandbox, sandbox_position)


@router.get("/sandboxes")
async def list_sandboxes_legacy(query: Annotated[FilterQuery, Query()], request: Request) -> Response:
    """List the running sandboxes for an older client, newest first."""
    sandboxes = await _find_sandboxes(request, {RUNNING}, metadata_filter(query.metadata or ""))
    return e2b_json_response([translate.listed_sandbox(sandbox) for sandbox in reversed(sandboxes)])


async def _find_sandboxes(request: Request, states: Collection[str], metadata: Mapping[str, str]) -> list[SandboxInfo]:
    """Return all sandboxes in states of E2B and with metadata, oldest first."""
    live = await find_live_sandboxes(get_node(request), get_principal(request), metadata)
    return [sandbox for sandbox in live if translate.STATES.get(sandbox.state) in states]


@router.get("/sandboxes/{sandbox}")
async def get_sandbox(sandbox: str, request: Request) -> Response:
    """Return a sandbox."""
    node, principal = get_node(request), get_principal(request)
    found = await find(node, principal, sandbox)
    return e2b_json_response(translate.detailed_sandbox(found, node.tokens.sandbox_token(principal, found.id), await preview_domain(request)))


@router.delete("/sandboxes/{sandbox}")
async def kill_sandbox(sandbox: str, request: Request) -> Response:
    """Kill a sandbox. The response is sent when its processes have ended."""
    node, principal = get_node(request), get_principal(request)
    await node.sandboxes.kill(principal, (await find(node, principal, sandbox)).id)
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/timeout")
async def set_timeout(sandbox: str, body: SetTimeoutRequest, request: Request) -> Response:
    """Set the seconds from now until a sandbox times out. The timeout of a paused sandbox begins with its resumption."""
    node, principal = get_node(request), get_principal(request)
    with as_control_error(sandbox):
        found = await find(node, principal, sandbox)
        await node.sandboxes.update(principal, found.id, UpdateSandboxParams(timeout_s=translate.timeout_s(body.timeout)))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/refreshes")
async def refresh_sandbox(sandbox: str, request: Request, body: RefreshRequest | None = None) -> Response:
    """Extend the timeout of a running sandbox."""
    node, principal = get_node(request), get_principal(request)
    duration_s = LEGACY_TIMEOUT_S if body is None or body.duration is None else body.duration
    found = await find(node, principal, sandbox)
    with as_control_error(sandbox):
        if translate.STATES[found.state] == RUNNING:
            await extend_timeout(node, principal, found, max(duration_s, LEGACY_TIMEOUT_S))
    return Response(status_code=204)


@router.post("/sandboxes/{sandbox}/pause")
async def pause_sandbox(sandbox: str, request: Request, body: PauseRequest | None = None) -> Response:
    """Save memory and files of a sandbox, or files only, until it is resumed. The sandbox keeps running if its guest does not respond."""
    node, principal, options = get_node(request), get_principal(request), body or PauseRequest()
    found = await find(node, principal, sandbox)
    if translate.STATES[found.state] == PAUSED:
        raise ConflictError(f"Sandbox {found.id} is already paused.", code=ErrorCode.CONFLICT, fields={"sandbox": found.id})
    with as_control_error(sandbox), _unhealthy_guest_as_busy(options):
        await (node.sandboxes.suspend if options.memory else node.sandboxes.hibernate_files)(principal, found.id)
    return Response(status_code=204)


@contextmanager
def _unhealthy_guest_as_busy(options: PauseRequest) -> Iterator[None]:
    """Translate the timeout of a guest to a busy sandbox if the client requires a healthy guest."""
    try:
        yield
    except TimeoutExceededError as error:
        if not options.require_healthy_guest:
            raise
        raise UnavailableError(error.message, code=ErrorCode.BUSY, hint="The sandbox is still running.", fields=error.fields) from None


@router.post("/v2/sandboxes/{sandbox}/connect")
async def connect(sandbox: str, request: Request, body: ConnectRequest | None = None) -> Response:
    """Resume a paused sandbox, or extend the timeout of a running sandbox."""
    options = body or ConnectRequest()
    return await _connect(sandbox, request, options, DEFAULT_TIMEOUT_S if options.timeout is None else options.timeout)


@router.post("/sandboxes/{sandbox}/connect")
async def connect_legacy(sandbox: str, request: Request, body: ConnectRequest) -> Response:
    """Connect an older client, which has to pass a timeout."""
    if body.timeout is None:
        raise InvalidRequestError("The request has no timeout.", hint="Pass `timeout` in seconds.", fields={"field": "timeout"})
    return await _connect(sandbox, request, body, body.timeout)


@router.post("/sandboxes/{sandbox}/resume")
async def resume_legacy(sandbox: str, request: Request, body: ResumeRequest | None = None) -> Response:
    """Resume a paused sandbox for one of the oldest clients. A running sandbox is a conflict."""
    node, principal, options = get_node(request), get_principal(request), body or ResumeRequest()
    found = await find(node, principal, sandbox)
    if translate.STATES[found.state] == RUNNING:
        raise ConflictError(f"Sandbox {found.id} is already running.", code=ErrorCode.CONFLICT, fields={"sandbox": found.id})
    if options.auto_pause is not None:
        with as_control_error(sandbox):
            on_timeout = OnTimeout.HIBERNATE if options.auto_pause else OnTimeout.KILL
            await node.sandboxes.update(principal, found.id, UpdateSandboxParams(on_timeout=on_timeout))
    return await _connect(sandbox, request, options, LEGACY_TIMEOUT_S if options.timeout is None else options.timeout)


@router.put("/sandboxes/{sandbox}/network")
async def update_network(sandbox: str, body: UpdateNetworkRequest, request: Request) -> Response:
    """Replace the network policy of a sandbox as a whole. Omitted fields of the policy are cleared."""
    node, principal = get_node(request), get_principal(request)
    found = await find(node, principal, sandbox)
    params = translate.network_update(body, may_have_public_ports=principal.may_have_public_ports)
    with as_control_error(sandbox):
        await node.sandboxes.update(principal, found.id, params)
    return Response(status_code=204)


async def _connect(sandbox: str, request: Request, options: ConnectRequest, seconds: float) -> Response:
    node, principal, timeout_s = get_node(request), get_principal(request), translate.timeout_s(seconds)
    found = await find(node, principal, sandbox)
    is_paused = translate.STATES[found.state] == PAUSED
    with as_control_error(sandbox):
        if is_paused and not options.memory:
            await node.sandboxes.resume(principal, found.id)
            await node.sandboxes.hibernate_files(principal, found.id)
        if is_paused:
            await node.sandboxes.resume(principal, found.id, timeout_s=timeout_s)
        else:
            await extend_timeout(node, principal, found, timeout_s)
    return e2b_json_response(await with_token(request, found), 201 if is_paused else 200)
