"""Routes of the PandaStack API, below ``/pandastack``."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from sandlot.builds import operations as build_operations
from sandlot.compat.common import CREATE_KEYS, find_live_sandbox, find_live_sandboxes, list_directory
from sandlot.compat.pandastack import builds, operations, translate
from sandlot.compat.pandastack.schemas import (
    BuildListResponse,
    BuildLogsQuery,
    CreateSandboxRequest,
    CreateSessionRequest,
    CreateVolumeRequest,
    DirectoryQuery,
    DirectoryResponse,
    ExecRequest,
    ForkRequest,
    ForkTreeRequest,
    LogsQuery,
    PathQuery,
    PortListResponse,
    PromoteRequest,
    RunCodeRequest,
    SandboxListResponse,
    SessionListResponse,
    SessionResponse,
    SnapshotListResponse,
    SnapshotsQuery,
    StatusResponse,
    TemplateListResponse,
    UpdateLifecycleRequest,
    UserResponse,
    VolumeListResponse,
    WriteFileResponse,
)
from sandlot.compat.vendor import not_supported
from sandlot.model.errors import ErrorCode, ForbiddenError
from sandlot.model.specs import MIB, User
from sandlot.web.body_limits import stores_request_body, streams_request_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.json_body import JsonRoute
from sandlot.web.models import json_response
from sandlot.web.streaming import KEEP_ALIVE, SSE_MEDIA_TYPE, KeepAliveStreamResponse

router = APIRouter(route_class=JsonRoute)

MAX_BUILDS: Final = 100
"""Number of builds in the list, which has no pages."""


# -- commands, code and files: requested most -----------------------------------------------------------------------


@router.post("/v1/sandboxes/{sandbox}/exec")
async def execute(sandbox: str, body: ExecRequest, request: Request) -> Response:
    """Run a command. The command is killed if the client disconnects."""
    return json_response(await cancel_on_disconnect(request, operations.execute(get_node(request), get_principal(request), sandbox, body)))


@router.post("/v1/sandboxes/{sandbox}/exec/stream")
async def stream(sandbox: str, body: ExecRequest, request: Request) -> Response:
    """Run a command and stream its output. The command is killed if the client disconnects."""
    return await cancel_on_disconnect(request, operations.stream(request, sandbox, body))


@router.post("/v1/sandboxes/{sandbox}/repl/sessions")
async def create_session(sandbox: str, request: Request, body: CreateSessionRequest | None = None) -> Response:
    """Create a session, which keeps variables."""
    language = (body or CreateSessionRequest()).language.lower()
    context = await cancel_on_disconnect(request, get_node(request).contexts.create(get_principal(request), sandbox, language))
    return json_response(SessionResponse(id=context.id, sandbox_id=sandbox, language=context.language), 201)


@router.get("/v1/sandboxes/{sandbox}/repl/sessions")
async def list_sessions(sandbox: str, request: Request) -> Response:
    """List all sessions of a sandbox."""
    contexts = await get_node(request).contexts.list(get_principal(request), sandbox)
    sessions = [SessionResponse(id=context.id, sandbox_id=sandbox, language=context.language) for context in contexts]
    return json_response(SessionListResponse(items=sessions))


@router.post("/v1/sandboxes/{sandbox}/repl/sessions/{context}/run")
async def run_code(sandbox: str, context: str, body: RunCodeRequest, request: Request) -> Response:
    """Run code in a session. If the client disconnects, the code is interrupted and its variables stay."""
    running = operations.run_code(get_node(request), get_principal(request), sandbox, context, body)
    return json_response(await cancel_on_disconnect(request, running))


@router.delete("/v1/sandboxes/{sandbox}/repl/sessions/{context}")
async def delete_session(sandbox: str, context: str, request: Request) -> Response:
    """Delete a session and kill its processes."""
    await get_node(request).contexts.delete(get_principal(request), sandbox, context)
    return Response(status_code=204)


@router.get("/v1/sandboxes/{sandbox}/logs")
async def read_logs(sandbox: str, query: Annotated[LogsQuery, Query()], request: Request) -> Response:
    """Return or follow the output of all runs. The sandbox may have ended."""
    node, principal = get_node(request), get_principal(request)
    if query.follow:
        return await operations.follow_logs(node, principal, sandbox, query.stream)
    return Response(await operations.read_logs(node, principal, sandbox, query.stream), media_type="text/plain; charset=utf-8")


@router.get("/v1/sandboxes/{sandbox}/ports")
async def list_ports(sandbox: str, request: Request) -> Response:
    """List the TCP ports on which processes of a sandbox listen."""
    ports = await get_node(request).sandboxes.ports(get_principal(request), sandbox)
    return json_response(PortListResponse(ports=sorted({port.port for port in ports})))


@router.get("/v1/sandboxes/{sandbox}/fs")
async def read_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Send the content of a file."""
    content = await get_node(request).files.read(get_principal(request), sandbox, query.path, user=User.ROOT)
    return KeepAliveStreamResponse(content, content.aclose, media_type="application/octet-stream")


@router.put("/v1/sandboxes/{sandbox}/fs")
@streams_request_body
async def write_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Write a file, and create its parent directories. If the upload is incomplete, the old file stays."""
    writing = get_node(request).files.write(get_principal(request), sandbox, query.path, iter_body(request), user=User.ROOT)
    entry = await cancel_on_hangup(request, writing)
    return json_response(WriteFileResponse(path=query.path, bytes=entry.size))


@router.delete("/v1/sandboxes/{sandbox}/fs")
async def delete_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Delete a file, or a directory with its content."""
    await get_node(request).files.delete(get_principal(request), sandbox, query.path, user=User.ROOT, recursive=True)
    return Response(status_code=204)


@router.get("/v1/sandboxes/{sandbox}/fs/dir")
async def list_files(sandbox: str, query: Annotated[DirectoryQuery, Query()], request: Request) -> Response:
    """List a directory."""
    listing = list_directory(get_node(request), get_principal(request), sandbox, query.path, user=User.ROOT)
    entries = await cancel_on_disconnect(request, listing)
    return json_response(DirectoryResponse(path=query.path, entries=[translate.file_entry(entry) for entry in entries]))


@router.get("/v1/sandboxes/{sandbox}/fs/stat")
async def stat_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Return the properties of a path. A symbolic link is not followed."""
    entry = await get_node(request).files.stat(get_principal(request), sandbox, query.path, user=User.ROOT, follow=False)
    return json_response(translate.file_entry(entry))


# -- sandboxes ------------------------------------------------------------------------------------------------------


@router.post("/v1/sandboxes")
async def create_sandbox(body: CreateSandboxRequest, request: Request) -> Response:
    """Create a sandbox. If the client disconnects before the response, the sandbox is removed."""
    creating = operations.create_sandbox(get_node(request), get_principal(request), body)
    return json_response(await cancel_on_disconnect(request, creating), 201)


@router.get("/v1/sandboxes")
async def list_sandboxes(request: Request) -> Response:
    """List all sandboxes, oldest first."""
    sandboxes = await find_live_sandboxes(get_node(request), get_principal(request))
    return json_response(SandboxListResponse(items=[translate.sandbox_response(sandbox) for sandbox in sandboxes]))


@router.get("/v1/sandboxes/{sandbox}")
async def get_sandbox(sandbox: str, request: Request) -> Response:
    """Return a sandbox, without waking it."""
    return json_response(translate.sandbox_response(await find_live_sandbox(get_node(request), get_principal(request), sandbox)))


@router.delete("/v1/sandboxes/{sandbox}")
async def kill_sandbox(sandbox: str, request: Request) -> Response:
    """Kill a sandbox. A repeated call has the same response."""
    await get_node(request).sandboxes.kill(get_principal(request), sandbox)
    return Response(status_code=204)


@router.get("/v1/sandboxes/{sandbox}/lifecycle")
async def get_lifecycle(sandbox: str, request: Request) -> Response:
    """Return the timeout and the idle time of a sandbox."""
    return json_response(translate.lifecycle_response(await find_live_sandbox(get_node(request), get_principal(request), sandbox)))


@router.patch("/v1/sandboxes/{sandbox}/lifecycle")
async def update_lifecycle(sandbox: str, body: UpdateLifecycleRequest, request: Request) -> Response:
    """Change the timeout of a sandbox."""
    return json_response(await operations.update_lifecycle(get_node(request), get_principal(request), sandbox, body))


@router.post("/v1/sandboxes/{sandbox}/pause")
async def pause(sandbox: str, request: Request) -> Response:
    """Pause a sandbox. The next request resumes it."""
    await get_node(request).sandboxes.pause(get_principal(request), sandbox)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/resume")
async def resume(sandbox: str, request: Request) -> Response:
    """Resume a sandbox. A running sandbox is left unchanged."""
    await get_node(request).sandboxes.resume(get_principal(request), sandbox)
    return Response(status_code=204)


@router.post("/v1/sandboxes/{sandbox}/hibernate")
async def hibernate(sandbox: str, request: Request) -> Response:
    """Write a sandbox to the disk and free its memory. The next request wakes it."""
    sandbox_info = await get_node(request).sandboxes.hibernate(get_principal(request), sandbox)
    return json_response(StatusResponse(status=translate.status(sandbox_info)))


@router.post("/v1/sandboxes/{sandbox}/wake")
async def wake(sandbox: str, request: Request) -> Response:
    """Resume a sandbox, and return its status. A running sandbox is left unchanged."""
    sandbox_info = await get_node(request).sandboxes.resume(get_principal(request), sandbox)
    return json_response(StatusResponse(status=translate.status(sandbox_info)))


@router.post("/v1/sandboxes/{sandbox}/fork")
async def fork(sandbox: str, request: Request, body: ForkRequest | None = None) -> Response:
    """Fork a sandbox once. If the client disconnects before the response, the child is removed."""
    forking = operations.fork(get_node(request), get_principal(request), sandbox, 1, None if body is None else body.metadata)
    return json_response((await cancel_on_disconnect(request, forking)).children[0], 201)


@router.post("/v1/sandboxes/{sandbox}/fork-tree")
async def fork_tree(sandbox: str, request: Request, body: ForkTreeRequest | None = None) -> Response:
    """Fork a sandbox into several children, or none."""
    options = body or ForkTreeRequest()
    forking = operations.fork(get_node(request), get_principal(request), sandbox, options.count, options.metadata)
    return json_response(await cancel_on_disconnect(request, forking), 201)


@router.post("/v1/sandboxes/{sandbox}/promote")
async def promote(sandbox: str, request: Request, body: PromoteRequest | None = None) -> Response:
    """Keep a fork, and optionally kill the other forks of its tree."""
    return json_response(await operations.promote(get_node(request), get_principal(request), sandbox, body or PromoteRequest()))


# -- snapshots, volumes, templates, account -------------------------------------------------------------------------


@router.post("/v1/sandboxes/{sandbox}/snapshots")
async def create_snapshot(sandbox: str, request: Request) -> Response:
    """Save memory and files of a sandbox. If the client disconnects before the response, the snapshot is removed."""
    record = await cancel_on_disconnect(request, get_node(request).snapshots.create(get_principal(request), sandbox))
    return json_response(translate.snapshot_response(record), 201)


@router.get("/v1/snapshots")
async def list_snapshots(query: Annotated[SnapshotsQuery, Query()], request: Request) -> Response:
    """List snapshots, newest first."""
    snapshots = await operations.list_snapshots(get_node(request), get_principal(request), query.sandbox_id)
    return json_response(SnapshotListResponse(snapshots=snapshots))


@router.get("/v1/snapshots/{snapshot}")
async def get_snapshot(snapshot: str, request: Request) -> Response:
    """Return a snapshot."""
    return json_response(translate.snapshot_response(await get_node(request).snapshots.get(get_principal(request), snapshot)))


@router.delete("/v1/snapshots/{snapshot}")
async def delete_snapshot(snapshot: str, request: Request) -> Response:
    """Delete a snapshot. Sandboxes that were started from it stay."""
    await get_node(request).snapshots.delete(get_principal(request), snapshot)
    return Response(status_code=204)


@router.post("/v1/volumes")
async def create_volume(body: CreateVolumeRequest, request: Request) -> Response:
    """Create a volume."""
    volume = await get_node(request).volumes.create(get_principal(request), name=body.name, size_bytes=body.size_mb * MIB)
    return json_response(translate.volume_response(volume), 201)


@router.get("/v1/volumes")
async def list_volumes(request: Request) -> Response:
    """List all volumes."""
    volumes = await get_node(request).volumes.list(get_principal(request))
    return json_response(VolumeListResponse(items=[translate.volume_response(volume) for volume in volumes]))


@router.get("/v1/volumes/{volume}")
async def get_volume(volume: str, request: Request) -> Response:
    """Return a volume by its name."""
    return json_response(translate.volume_response(await get_node(request).volumes.get(get_principal(request), volume)))


@router.delete("/v1/volumes/{volume}")
async def delete_volume(volume: str, request: Request) -> Response:
    """Delete a volume that no sandbox uses."""
    await get_node(request).volumes.delete(get_principal(request), volume)
    return Response(status_code=204)


@router.get("/v1/templates")
async def list_templates(request: Request) -> Response:
    """List the templates of the key and of the service."""
    return json_response(TemplateListResponse(items=await operations.list_templates(get_node(request), get_principal(request))))


@router.post("/v1/templates/build")
@stores_request_body
async def build_template(request: Request) -> Response:
    """Build a template from a Dockerfile with its context, an image, or the archive of a root file system."""
    return json_response(await cancel_on_hangup(request, builds.start(request)), 202)


@router.get("/v1/templates/builds")
async def list_builds(request: Request) -> Response:
    """List the newest builds of the key, newest first."""
    node, principal = get_node(request), get_principal(request)
    found = (await node.template_builds.list_builds(principal, limit=MAX_BUILDS)).items
    names = await builds.names_of(node, principal, [*found])
    return json_response(BuildListResponse(items=[builds.build_response(build, names[build.template]) for build in found]))


@router.get("/v1/templates/builds/{build}")
async def get_build(build: str, request: Request) -> Response:
    """Return a build."""
    node, principal = get_node(request), get_principal(request)
    found = await node.template_builds.get_build(principal, build)
    return json_response(builds.build_response(found, (await node.template_builds.get(principal, found.template)).name))


@router.get("/v1/templates/builds/{build}/logs")
async def follow_build_logs(build: str, query: Annotated[BuildLogsQuery, Query()], request: Request) -> Response:
    """Stream the log of a build: the lines so far, or all lines until the build ends."""
    node, principal = get_node(request), get_principal(request)
    if not query.follow:
        return Response(await builds.stored_events(node, principal, build), media_type=SSE_MEDIA_TYPE)
    lines = await node.template_builds.follow_lines(principal, build)
    return KeepAliveStreamResponse(builds.follow_events(lines), lines.aclose, media_type=SSE_MEDIA_TYPE, keep_alive=KEEP_ALIVE)


@router.get("/v1/templates/{template}")
async def get_template(template: str, request: Request) -> Response:
    """Return a template."""
    return json_response(await operations.find_template(get_node(request), get_principal(request), template))


@router.delete("/v1/templates/{template}")
async def delete_template(template: str, request: Request) -> Response:
    """Delete a template of the key, whose open builds are cancelled. Templates of the service cannot be deleted."""
    found = await operations.find_template(get_node(request), get_principal(request), template)
    if found.is_global:
        raise ForbiddenError(f"Template {found.name!r} is the service's own and cannot be deleted.", code=ErrorCode.FORBIDDEN)
    await build_operations.delete_template(request, get_principal(request), template)
    return Response(status_code=204)


@router.get("/v1/me")
async def get_user(request: Request) -> Response:
    """Return the owner of the API key."""
    principal = get_principal(request)
    return json_response(UserResponse(id=principal.owner, user_id=principal.owner, name=principal.name))


_DEPLOYMENTS = "Run the deployed program in a persistent sandbox."
for _path, _hint in (
    ("/v1/apps", _DEPLOYMENTS),
    ("/v1/preview-repos", _DEPLOYMENTS),
    ("/v1/functions", _DEPLOYMENTS),
    ("/v1/databases", _DEPLOYMENTS),
    ("/v1/schedules", "Call this API from your own scheduler."),
    ("/v1/me/tokens", CREATE_KEYS),
):
    not_supported(router, "GET", _path, _hint)
    not_supported(router, "POST", _path, _hint)
