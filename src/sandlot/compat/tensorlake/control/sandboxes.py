"""Routes for sandboxes: create, list, inspect, update, delete, suspend, resume and copy them, and list ended ones.

Invariant: A suspension or resumption continues if the client disconnects; a creation is undone.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Final

from fastapi import Query, Request, Response

from sandlot.compat.common import VENDOR_KEY, find_sandboxes
from sandlot.compat.tensorlake import translate
from sandlot.compat.tensorlake.addressing import CONTROL, resolve_id, resolve_sandbox, sandbox_url
from sandlot.compat.tensorlake.control.schemas import (
    ArchivedListResponse,
    ArchivedQuery,
    ArchivedSandboxResponse,
    CopyQuery,
    CopyResponse,
    CreateSandboxRequest,
    DetachRequest,
    MountRequest,
    SandboxListResponse,
    UpdateSandboxRequest,
    WaitQuery,
)
from sandlot.compat.tensorlake.translate import milliseconds
from sandlot.model.errors import ErrorCode, InvalidRequestError, NotFoundError
from sandlot.model.sandboxes import ENDED, ForkParams, SandboxFilter, SandboxInfo
from sandlot.model.states import State
from sandlot.web import pagination
from sandlot.web.dependencies import cancel_on_disconnect, get_node, get_preview_address, get_principal
from sandlot.web.models import json_response

_SANDBOXES: Final = "/sandboxes"
_SANDBOX: Final = "/sandboxes/{sandbox}"
_ARCHIVED: Final = "/archived-sandboxes"


@CONTROL.route("POST", _SANDBOXES)
async def create_sandbox(body: CreateSandboxRequest, request: Request) -> Response:
    """Create a sandbox. The sandbox is running when the response is sent, also if the client does not want to wait."""
    principal = get_principal(request)
    creating = get_node(request).sandboxes.create(principal, translate.create_params(body, principal))
    sandbox = await cancel_on_disconnect(request, creating)
    status = HTTPStatus.ACCEPTED if body.wait is False else HTTPStatus.OK
    return json_response(translate.created_sandbox(sandbox, sandbox_url(request, sandbox.id)), status)


@CONTROL.route("GET", _SANDBOXES)
async def list_sandboxes(request: Request) -> Response:
    """List all live sandboxes, oldest first."""
    sandboxes = await find_sandboxes(get_node(request), get_principal(request), SandboxFilter())
    ingress = await _ingress_endpoint(request)
    responses = [translate.sandbox_response(sandbox, sandbox_url(request, sandbox.id), ingress) for sandbox in sandboxes]
    return json_response(SandboxListResponse(sandboxes=responses))


@CONTROL.route("GET", _SANDBOX)
async def get_sandbox(sandbox: str, request: Request) -> Response:
    """Return a live or ended sandbox."""
    return await _sandbox_response(request, await resolve_sandbox(request, sandbox))


@CONTROL.route("PATCH", _SANDBOX)
async def update_sandbox(sandbox: str, body: UpdateSandboxRequest, request: Request) -> Response:
    """Change the name, the limits, the network, the access to ports or ``auto_resume`` of a sandbox."""
    found, principal = await resolve_sandbox(request, sandbox), get_principal(request)
    params = translate.update_params(body, principal)
    return await _sandbox_response(request, await get_node(request).sandboxes.update(principal, found.id, params))


@CONTROL.route("DELETE", _SANDBOX)
async def kill_sandbox(sandbox: str, request: Request) -> Response:
    """Kill a sandbox. A repeated call has the same response."""
    await get_node(request).sandboxes.kill(get_principal(request), await resolve_id(request, sandbox))
    return Response(status_code=204)


@CONTROL.route("POST", f"{_SANDBOX}/suspend")
async def suspend_sandbox(sandbox: str, query: Annotated[WaitQuery, Query()], request: Request) -> Response:
    """Write the memory of a sandbox to the disk and free it. The response is 200 when this is done."""
    id_ = await resolve_id(request, sandbox)
    info = await get_node(request).sandboxes.hibernate(get_principal(request), id_, wait_s=_wait_s(query))
    return await _progress_response(request, info, State.HIBERNATED, query)


@CONTROL.route("POST", f"{_SANDBOX}/resume")
async def resume_sandbox(sandbox: str, query: Annotated[WaitQuery, Query()], request: Request) -> Response:
    """Resume a sandbox. The response is 200 when the sandbox is running."""
    id_ = await resolve_id(request, sandbox)
    info = await get_node(request).sandboxes.resume(get_principal(request), id_, wait_s=_wait_s(query))
    return await _progress_response(request, info, State.RUNNING, query)


@CONTROL.route("POST", f"{_SANDBOX}/copy")
async def copy_sandbox(sandbox: str, query: Annotated[CopyQuery, Query()], request: Request) -> Response:
    """Fork a sandbox. If the client disconnects before the response, the copies are removed."""
    source = await resolve_sandbox(request, sandbox)
    labels = {name: value for name, value in source.metadata.items() if name in {VENDOR_KEY, translate.IMAGE_KEY, translate.PORTS_KEY}}
    forking = get_node(request).sandboxes.fork(get_principal(request), source.id, ForkParams(count=query.times, metadata=labels))
    copies = [translate.created_sandbox(copy, sandbox_url(request, copy.id)) for copy in await cancel_on_disconnect(request, forking)]
    return json_response(CopyResponse(source_sandbox_id=source.id, sandboxes=copies))


@CONTROL.route("POST", f"{_SANDBOX}/file_systems")
async def attach_file_system(sandbox: str, body: MountRequest, request: Request) -> Response:
    """Attach a volume to a running sandbox."""
    id_ = await resolve_id(request, sandbox)
    (mount,) = translate.volumes([body])
    return await _sandbox_response(request, await get_node(request).sandboxes.attach_volume(get_principal(request), id_, mount))


@CONTROL.route("DELETE", f"{_SANDBOX}/file_systems")
async def detach_file_system(sandbox: str, body: DetachRequest, request: Request) -> Response:
    """Detach a volume. A volume that a process uses is a conflict."""
    id_ = await resolve_id(request, sandbox)
    return await _sandbox_response(request, await get_node(request).sandboxes.detach_volume(get_principal(request), id_, body.mount_path))


@CONTROL.route("GET", _ARCHIVED)
async def list_archived_sandboxes(query: Annotated[ArchivedQuery, Query()], request: Request) -> Response:
    """List one page of the ended sandboxes, oldest first, as long as their records are kept."""
    if query.direction != "forward":
        raise InvalidRequestError("Pages can only be read forward.", hint="Store the cursors of earlier pages.", fields={"field": "direction"})
    after = pagination.decode_cursor(query.cursor)
    page = await get_node(request).sandboxes.list(get_principal(request), SandboxFilter(states=ENDED), after=after, limit=query.limit)
    return json_response(
        ArchivedListResponse(sandboxes=[_archived_sandbox(request, sandbox) for sandbox in page.items], next_cursor=pagination.next_cursor(page))
    )


@CONTROL.route("GET", f"{_ARCHIVED}/{{archived}}")
async def get_archived_sandbox(archived: str, request: Request) -> Response:
    """Return an ended sandbox."""
    sandbox = await resolve_sandbox(request, archived)
    if translate.status(sandbox) != "terminated":
        raise NotFoundError(
            f"Sandbox {sandbox.id} has not ended.",
            code=ErrorCode.SANDBOX_NOT_FOUND,
            hint="Use the calls for live sandboxes.",
            fields={"sandbox": sandbox.id},
        )
    return json_response(_archived_sandbox(request, sandbox))


def _wait_s(query: WaitQuery) -> float | None:
    return None if query.wait_ms is None else query.wait_ms / 1000


async def _progress_response(request: Request, sandbox: SandboxInfo, wanted: State, query: WaitQuery) -> Response:
    """Return the response to a suspension or resumption: 202 if it continues after the client's waiting time."""
    is_done = query.wait_ms is None or sandbox.state is wanted
    return await _sandbox_response(request, sandbox, HTTPStatus.OK if is_done else HTTPStatus.ACCEPTED)


async def _ingress_endpoint(request: Request) -> str | None:
    address = await get_preview_address(request)
    return None if address is None else f"{address.scheme}://{address.authority}"


async def _sandbox_response(request: Request, sandbox: SandboxInfo, status: int = 200) -> Response:
    url, ingress = sandbox_url(request, sandbox.id), await _ingress_endpoint(request)
    return json_response(translate.sandbox_response(sandbox, url, ingress), status)


def _archived_sandbox(request: Request, sandbox: SandboxInfo) -> ArchivedSandboxResponse:
    response = translate.sandbox_response(sandbox, sandbox_url(request, sandbox.id))
    return ArchivedSandboxResponse(**dict(response), archived_at=milliseconds(sandbox.ended_at or sandbox.created_at))
