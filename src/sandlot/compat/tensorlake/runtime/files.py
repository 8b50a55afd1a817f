"""Routes for files, read and written as the sandbox's user, and for the state of the sandbox."""

from __future__ import annotations

import posixpath
from typing import Annotated, Final

from fastapi import Query, Request, Response

from sandlot import __version__
from sandlot.compat.common import list_directory
from sandlot.compat.tensorlake.addressing import RUNTIME, requested_sandbox
from sandlot.compat.tensorlake.runtime import translate
from sandlot.compat.tensorlake.runtime.schemas import DirectoryResponse, HealthResponse, InfoResponse, PathQuery
from sandlot.model.paths import WORKSPACE
from sandlot.web.body_limits import streams_request_body
from sandlot.web.dependencies import cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import json_response
from sandlot.web.streaming import KeepAliveStreamResponse

HEALTH_TIMEOUT_S: Final = 60.0
"""Seconds in which the guest has to respond."""


@RUNTIME.route("GET", "/files")
async def read_file(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Send the content of a file. A response that is cut short has failed."""
    content = await get_node(request).files.read(get_principal(request), await requested_sandbox(request), _absolute(query.path))
    # As an attachment without sniffing, an HTML file cannot run under this origin.
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return KeepAliveStreamResponse(aiter(content), content.aclose, media_type="application/octet-stream", headers=headers)


@RUNTIME.route("PUT", "/files")
@streams_request_body
async def write_file(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Write the body to a file. If the upload is incomplete, the old file stays."""
    files, principal, sandbox = get_node(request).files, get_principal(request), await requested_sandbox(request)
    await cancel_on_hangup(request, files.write(principal, sandbox, _absolute(query.path), iter_body(request)))
    return Response(status_code=204)


@RUNTIME.route("DELETE", "/files")
async def delete_file(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Delete a file or an empty directory."""
    await get_node(request).files.delete(get_principal(request), await requested_sandbox(request), _absolute(query.path))
    return Response(status_code=204)


@RUNTIME.route("GET", "/files/list")
async def list_files(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """List a directory by name."""
    entries = await list_directory(get_node(request), get_principal(request), await requested_sandbox(request), _absolute(query.path))
    return json_response(DirectoryResponse(path=query.path, entries=[translate.file_entry(entry) for entry in entries]))


@RUNTIME.route("GET", "/health")
async def check_health(request: Request) -> Response:
    """Return whether the guest of a sandbox responds. The error states why it does not."""
    await get_node(request).sandboxes.check(get_principal(request), await requested_sandbox(request), timeout_s=HEALTH_TIMEOUT_S)
    return json_response(HealthResponse(healthy=True))


@RUNTIME.route("GET", "/info")
async def get_info(request: Request) -> Response:
    """Return the uptime of a sandbox and the number of processes that the service has started in it."""
    node, principal, sandbox = get_node(request), get_principal(request), await requested_sandbox(request)
    processes = await node.processes.list(principal, sandbox)
    status = await node.sandboxes.check(principal, sandbox, timeout_s=HEALTH_TIMEOUT_S)
    running = sum(1 for process in processes if process.running)
    return json_response(
        InfoResponse(version=__version__, uptime_secs=max(0, int(status.uptime_s)), running_processes=running, total_processes=len(processes))
    )


def _absolute(path: str) -> str:
    """Return the absolute path. Relative paths begin in the working directory of processes."""
    return posixpath.join(WORKSPACE, path)
