"""The routes of a sandbox's inside: health, files, and the methods of two services."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.e2b import access, translate
from sandlot.compat.e2b.envd import files, filesystem, processes, watching
from sandlot.compat.e2b.envd.rpc_routes import streaming, taking, unary
from sandlot.compat.e2b.envd.schemas import (
    FilesQuery,
    ListDirMessage,
    MoveMessage,
    Nothing,
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
from sandlot.web.body_limits import streams_body

_PROCESS, _FILESYSTEM = "/process.Process", "/filesystem.Filesystem"
_STREAM_INPUT = f"{_PROCESS}/StreamInput"

router = APIRouter()

ROOT = APIRouter()
"""At the root of the port, where the URLs of ``download_url()`` and ``upload_url()`` lead: their maker drops the prefix."""


@router.get("/health")
async def health(request: Request) -> Response:
    """Whether the sandbox runs; one that rests does not, and is not resumed for that."""
    sandbox = await access.sandbox_of(request)
    if translate.STATES.get(sandbox.state) == translate.PAUSED:
        raise access.gone(sandbox.id)
    return Response(status_code=204)


@router.get(access.FILES)
@ROOT.get(access.FILES)
async def read_file(query: Annotated[FilesQuery, Query()], request: Request) -> Response:
    """A file's content."""
    return await files.read(request, query)


@router.post(access.FILES)
@ROOT.post(access.FILES)
@streams_body
async def write_files(query: Annotated[FilesQuery, Query()], request: Request) -> Response:
    """Write one file, or several of a form."""
    return await files.write(request, query)


streaming(router, f"{_PROCESS}/Start", StartMessage, processes.start, bounded=False)
streaming(router, f"{_PROCESS}/Connect", SelectMessage, processes.connect)
unary(router, f"{_PROCESS}/List", Nothing, processes.listing)
unary(router, f"{_PROCESS}/SendInput", SendInputMessage, processes.send_input)
taking(router, _STREAM_INPUT, StreamInputMessage, processes.stream_input)
unary(router, f"{_PROCESS}/CloseStdin", SelectMessage, processes.close_stdin)
unary(router, f"{_PROCESS}/SendSignal", SignalMessage, processes.send_signal)
unary(router, f"{_PROCESS}/Update", UpdateMessage, processes.update)

unary(router, f"{_FILESYSTEM}/Stat", PathMessage, filesystem.stat)
unary(router, f"{_FILESYSTEM}/ListDir", ListDirMessage, filesystem.list_dir)
unary(router, f"{_FILESYSTEM}/MakeDir", PathMessage, filesystem.make_dir)
unary(router, f"{_FILESYSTEM}/Move", MoveMessage, filesystem.move)
unary(router, f"{_FILESYSTEM}/Remove", PathMessage, filesystem.remove)
unary(router, f"{_FILESYSTEM}/CreateWatcher", WatchMessage, watching.create)
unary(router, f"{_FILESYSTEM}/GetWatcherEvents", WatcherMessage, watching.events)
unary(router, f"{_FILESYSTEM}/RemoveWatcher", WatcherMessage, watching.remove)
streaming(router, f"{_FILESYSTEM}/WatchDir", WatchMessage, watching.watch_dir)
