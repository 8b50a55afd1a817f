"""Routes of the Sandbase API for the inside of a sandbox: commands, files at two sets of paths, health, metrics and environment.

Invariants:
- A command is a program with arguments, without a shell. A command that fails is a response; a command that could not be run or exceeded its timeout
  is 502.
- All operations run as the sandbox's user.
- An upload is written completely or not at all, whatever the order of the form's fields.
"""

from __future__ import annotations

import base64
import binascii
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import find_live_sandbox, list_directory, single_chunk
from sandlot.compat.e2b_conventions import e2b_json_response, is_in_period, metrics_object
from sandlot.compat.sandbase import e2b_client, operations, translate
from sandlot.compat.sandbase.schemas import (
    CreateDirectoryRequest,
    DirectoryQuery,
    MetricsQuery,
    MoveFileRequest,
    PathQuery,
    RunProcessRequest,
    WriteFileRequest,
)
from sandlot.model.errors import ErrorCode, InvalidRequestError, SandlotError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.files import Download
from sandlot.web.body_limits import streams_request_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal
from sandlot.web.json_body import JsonRoute
from sandlot.web.streaming import KeepAliveStreamResponse

HEALTH_TIMEOUT_S: Final = 60.0
"""Seconds in which the guest has to respond."""

_NOT_RUN: Final = frozenset(
    {
        ErrorCode.PROGRAM_NOT_FOUND,
        ErrorCode.WORKING_DIRECTORY_NOT_FOUND,
        ErrorCode.PATH_NOT_DIRECTORY,
        ErrorCode.PATH_LINK_LOOP,
        ErrorCode.PATH_INVALID,
        ErrorCode.PERMISSION_DENIED,
        ErrorCode.TIMEOUT,
    }
)
"""Codes of a command that cannot be run because of the command itself."""

router = APIRouter(route_class=JsonRoute)


@router.post("/sandboxes/{sandbox}/processes")
async def run_process(sandbox: str, body: RunProcessRequest, request: Request) -> Response:
    """Run a command to its end. The command is killed if the client disconnects."""
    node, principal = get_node(request), get_principal(request)
    found = await find_live_sandbox(node, principal, sandbox)
    spec = translate.process_spec(body, found)
    try:
        result = await cancel_on_disconnect(request, node.processes.run(principal, found.id, spec, options=ExecutionOptions(origin=translate.VENDOR)))
    except SandlotError as error:
        if error.code not in _NOT_RUN:
            raise
        return _command_error(str(error))
    outcome = translate.process_result(result)
    if result.outcome.timed_out:
        return _command_error(f"The command was killed after {spec.timeout_s:g} seconds. Pass a longer timeout.", outcome)
    return e2b_json_response(outcome)


def _command_error(message: str, output: dict[str, Any] | None = None) -> Response:
    """Return the response to a command that was not run to its end, with its output until then."""
    status = HTTPStatus.BAD_GATEWAY
    return e2b_json_response({**(output or {}), "code": status.value, "message": message, "error": message}, status)


@router.get("/sandboxes/{sandbox}/files")
async def read_or_list(sandbox: str, query: Annotated[DirectoryQuery, Query()], request: Request) -> Response:
    """Send the content of a file, or list a directory."""
    node, principal = get_node(request), get_principal(request)
    try:
        return _content_response(await node.files.read(principal, sandbox, query.path))
    except InvalidRequestError as error:
        with suppress(SandlotError):
            return e2b_json_response([translate.file_entry(entry) for entry in await list_directory(node, principal, sandbox, query.path)])
        raise error from None


@router.post("/sandboxes/{sandbox}/files")
@router.post("/sandboxes/{sandbox}/filesystem/upload")
@streams_request_body
async def upload_file(sandbox: str, request: Request) -> Response:
    """Write a file from a form."""
    node, principal = get_node(request), get_principal(request)
    found = await find_live_sandbox(node, principal, sandbox)
    entry = await cancel_on_hangup(request, operations.upload(request, node, principal, found.id))
    return e2b_json_response(translate.file_entry(entry))


@router.get("/sandboxes/{sandbox}/filesystem/list")
async def list_files(sandbox: str, query: Annotated[DirectoryQuery, Query()], request: Request) -> Response:
    """List a directory."""
    entries = await list_directory(get_node(request), get_principal(request), sandbox, query.path)
    return e2b_json_response([translate.file_entry(entry) for entry in entries])


@router.get("/sandboxes/{sandbox}/filesystem")
async def read_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Return the content of a file of at most 1 MiB as base64."""
    reading = await get_node(request).files.read(get_principal(request), sandbox, query.path, length=translate.INLINE_BYTES + 1)
    try:
        content = b"".join([chunk async for chunk in reading])
    finally:
        await reading.aclose()
    if len(content) > translate.INLINE_BYTES:
        raise InvalidRequestError(
            f"The file has more than {translate.INLINE_BYTES} bytes.",
            hint="Download the file: GET .../filesystem/download.",
            fields={"field": "path"},
        )
    return e2b_json_response({"content": base64.b64encode(content).decode(), "path": query.path})


@router.post("/sandboxes/{sandbox}/filesystem")
async def write_file(sandbox: str, body: WriteFileRequest, request: Request) -> Response:
    """Write a file whose content is base64."""
    try:
        content = base64.b64decode(body.content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("The content is not base64.", fields={"field": "content"}) from None
    await cancel_on_disconnect(request, get_node(request).files.write(get_principal(request), sandbox, body.path, single_chunk(content)))
    return Response(status_code=200)


@router.delete("/sandboxes/{sandbox}/filesystem")
async def delete_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Delete a file, or a directory with its content."""
    await get_node(request).files.delete(get_principal(request), sandbox, query.path, recursive=True)
    return Response(status_code=204)


@router.get("/sandboxes/{sandbox}/filesystem/download")
async def download_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Send the content of a file as an attachment."""
    content = await get_node(request).files.read(get_principal(request), sandbox, query.path)
    return _content_response(content, f"attachment; filename*=UTF-8''{quote(content.entry.name, safe='')}")


@router.get("/sandboxes/{sandbox}/filesystem/stat")
async def stat_file(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Return the properties of a path."""
    return e2b_json_response(translate.file_entry(await get_node(request).files.stat(get_principal(request), sandbox, query.path)))


@router.post("/sandboxes/{sandbox}/filesystem/mkdir")
async def create_directory(sandbox: str, body: CreateDirectoryRequest, request: Request) -> Response:
    """Create a directory and its parents."""
    return e2b_json_response(translate.file_entry(await get_node(request).files.make_directory(get_principal(request), sandbox, body.path)))


@router.post("/sandboxes/{sandbox}/filesystem/move")
async def move_file(sandbox: str, body: MoveFileRequest, request: Request) -> Response:
    """Move a file or directory."""
    entry = await get_node(request).files.move(get_principal(request), sandbox, body.source, body.destination)
    return e2b_json_response(translate.file_entry(entry))


@router.get("/sandboxes/{sandbox}/health")
async def check_health(sandbox: str, request: Request) -> Response:
    """Return 204 if the guest of a sandbox responds."""
    await get_node(request).sandboxes.check(get_principal(request), sandbox, timeout_s=HEALTH_TIMEOUT_S)
    return Response(status_code=204)


@router.get("/sandboxes/{sandbox}/metrics")
async def get_metrics(sandbox: str, query: Annotated[MetricsQuery, Query()], request: Request) -> Response:
    """Return the current resource usage. E2B's client gets a list, which is empty if the present is outside of the requested period."""
    node, principal, for_e2b = get_node(request), get_principal(request), e2b_client.is_sender(request)
    found = await find_live_sandbox(node, principal, sandbox)
    if not for_e2b and (query.start, query.end) != (None, None):
        raise InvalidRequestError("Only E2B's client can pass `start` and `end`.", hint="Omit start and end.", fields={"field": "start"})
    measured = await node.sandboxes.usage(principal, found.id)
    if not for_e2b:
        return e2b_json_response(translate.metrics(measured, found))
    return e2b_json_response([metrics_object(measured, found)] if is_in_period(found, query.start, query.end) else [])


@router.get("/sandboxes/{sandbox}/envs")
async def get_environment(sandbox: str, request: Request) -> Response:
    """Return the environment with which every command starts."""
    found = await find_live_sandbox(get_node(request), get_principal(request), sandbox)
    return e2b_json_response(translate.environment(found))


def _content_response(content: Download, disposition: str | None = None) -> KeepAliveStreamResponse:
    headers = {"X-Content-Type-Options": "nosniff", **({} if disposition is None else {"Content-Disposition": disposition})}
    return KeepAliveStreamResponse(content, content.aclose, media_type="application/octet-stream", headers=headers)
