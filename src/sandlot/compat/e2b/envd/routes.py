"""Routes of envd: health, file contents, and the methods of two RPC services."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.e2b import access, translate
from sandlot.compat.e2b.envd import files, filesystem, processes
from sandlot.compat.e2b.envd.rpc_routes import add_client_stream, add_server_stream, add_unary_method
from sandlot.compat.e2b.envd.schemas import (
    EmptyMessage,
    FilesQuery,
    ListDirMessage,
    MoveMessage,
    PathMessage,
    SelectMessage,
    SendInputMessage,
    SignalMessage,
    StartMessage,
    StreamInputMessage,
    UpdateMessage,
    WatcherMessage,
    WatchMessage,
)
from sandlot.compat.e2b_conventions import PAUSED
from sandlot.web.body_limits import streams_request_body
from sandlot.web.json_body import JsonRoute

_PROCESS, _FILESYSTEM = "/process.Process", "/filesystem.Filesystem"

router = APIRouter(route_class=JsonRoute)
root_router = APIRouter(route_class=JsonRoute)
"""Routes at the root of the port: the client's ``download_url()`` and ``upload_url()`` drop the prefix."""


@router.get("/health")
async def check_health(request: Request) -> Response:
    """Return 204 if the sandbox runs. A paused sandbox is not resumed."""
    sandbox = await access.find_requested_sandbox(request)
    if translate.STATES.get(sandbox.state) == PAUSED:
        raise access.not_running(sandbox.id)
    return Response(status_code=204)


@router.get(access.FILES)
@root_router.get(access.FILES)
async def read_file(query: Annotated[FilesQuery, Query()], request: Request) -> Response:
    """Send the content of a file."""
    return await files.read(request, query)


@router.post(access.FILES)
@root_router.post(access.FILES)
@streams_request_body
async def write_files(query: Annotated[FilesQuery, Query()], request: Request) -> Response:
    """Write one file, or the files of a form."""
    return await files.write(request, query)


add_server_stream(router, f"{_PROCESS}/Start", StartMessage, processes.start, bounded=False)
add_server_stream(router, f"{_PROCESS}/Connect", SelectMessage, processes.connect)
add_unary_method(router, f"{_PROCESS}/List", EmptyMessage, processes.list_processes)
add_unary_method(router, f"{_PROCESS}/SendInput", SendInputMessage, processes.send_input)
add_client_stream(router, f"{_PROCESS}/StreamInput", StreamInputMessage, processes.stream_input)
add_unary_method(router, f"{_PROCESS}/CloseStdin", SelectMessage, processes.close_stdin)
add_unary_method(router, f"{_PROCESS}/SendSignal", SignalMessage, processes.send_signal)
add_unary_method(router, f"{_PROCESS}/Update", UpdateMessage, processes.update)

add_unary_method(router, f"{_FILESYSTEM}/Stat", PathMessage, filesystem.stat)
add_unary_method(router, f"{_FILESYSTEM}/ListDir", ListDirMessage, filesystem.list_dir)
add_unary_method(router, f"{_FILESYSTEM}/MakeDir", PathMessage, filesystem.make_dir)
add_unary_method(router, f"{_FILESYSTEM}/Move", MoveMessage, filesystem.move)
add_unary_method(router, f"{_FILESYSTEM}/Remove", PathMessage, filesystem.remove)
add_unary_method(router, f"{_FILESYSTEM}/CreateWatcher", WatchMessage, filesystem.create_watcher)
add_unary_method(router, f"{_FILESYSTEM}/GetWatcherEvents", WatcherMessage, filesystem.get_watcher_events)
add_unary_method(router, f"{_FILESYSTEM}/RemoveWatcher", WatcherMessage, filesystem.remove_watcher)
add_server_stream(router, f"{_FILESYSTEM}/WatchDir", WatchMessage, filesystem.watch_dir)
