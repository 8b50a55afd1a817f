"""What is asked of one sandbox: commands, files by two sets of paths, health, metrics, environment.

Laws:
- A command is a program and its arguments, and no shell. One that ends in failure is an answer; one that could not be run, or took too long, is 502.
- Everything is done as the sandbox's user.
- A file is uploaded in one piece or not at all, whichever of its form's fields comes first.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from sandlot.compat.common import single_chunk
from sandlot.compat.e2b_conventions import e2b_json_response
from sandlot.compat.sandbase import translate
from sandlot.compat.sandbase.sandboxes import by_e2b, live
from sandlot.compat.sandbase.schemas import ContentBody, FolderBody, FolderQuery, MetricsQuery, MoveBody, PathQuery, ProcessBody, done
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.files import Download, Entry
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import cancel_on_disconnect, cancel_on_hangup, get_node, get_principal
from sandlot.web.multipart import FormFields, Upload, read_upload
from sandlot.web.streaming import KeepAliveStreamResponse

MOST_ENTRIES = 20_000
"""Of one folder's list, which the vendor does not page."""
HEALTH_S = 60.0
"""How long what answers inside of a sandbox may take."""
BESIDE = "/tmp/.sandlot-upload-"  # noqa: S108 - inside of a sandbox
"""Where a file waits whose destination comes after it."""

_NOT_RUN = frozenset(
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

router = APIRouter()


@router.post("/sandboxes/{sandbox}/processes")
async def run(sandbox: str, body: ProcessBody, request: Request) -> Response:
    """Run a command to its end; it is killed when its client goes away."""
    found = await live(request, sandbox)
    spec = translate.process(body, found)
    work = get_node(request).processes.run(get_principal(request), found.id, spec, options=ExecutionOptions(origin=translate.NAME))
    try:
        finished = await cancel_on_disconnect(request, work)
    except SandlotError as error:
        if error.code not in _NOT_RUN:
            raise
        return _failed(str(error))
    answer = translate.outcome(finished)
    if finished.outcome.reason == "timeout":
        return _failed(f"The command was ended after {spec.timeout_s:g} seconds. Give a longer timeout.", answer)
    return e2b_json_response(answer)


def _failed(message: str, more: dict[str, Any] | None = None) -> Response:
    """A command that was not run to its end, and what it wrote until then."""
    status = HTTPStatus.BAD_GATEWAY
    return e2b_json_response({**(more or {}), "code": status.value, "message": message, "error": message}, status)


@router.get("/sandboxes/{sandbox}/files")
async def read_or_list(sandbox: str, query: Annotated[FolderQuery, Query()], request: Request) -> Response:
    """Read a file, or list a folder."""
    files, principal = get_node(request).files, get_principal(request)
    try:
        return _raw(await files.read(principal, sandbox, query.path))
    except InvalidRequestError as error:
        with suppress(SandlotError):
            return e2b_json_response([translate.entry(each) for each in await _listing(request, sandbox, query.path)])
        raise error from None


@router.post("/sandboxes/{sandbox}/files")
@router.post("/sandboxes/{sandbox}/filesystem/upload")
@streams_body
async def upload(sandbox: str, request: Request) -> Response:
    """Write a file that a form carries; where the upload breaks off, the old file stays."""
    found = await live(request, sandbox)
    entry = await cancel_on_hangup(request, _upload(request, found.id))
    return e2b_json_response(translate.entry(entry))


@router.get("/sandboxes/{sandbox}/filesystem/list")
async def list_folder(sandbox: str, query: Annotated[FolderQuery, Query()], request: Request) -> Response:
    """List a folder."""
    found = await _listing(request, sandbox, query.path)
    return e2b_json_response([translate.entry(each) for each in found])


@router.get("/sandboxes/{sandbox}/filesystem")
async def read(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Read a file that is no larger than a MiB."""
    reading = await get_node(request).files.read(get_principal(request), sandbox, query.path, length=translate.INLINE_BYTES + 1)
    try:
        content = b"".join([piece async for piece in reading])
    finally:
        await reading.aclose()
    if len(content) > translate.INLINE_BYTES:
        raise InvalidRequestError(
            f"The file has more than {translate.INLINE_BYTES} bytes.", hint="Download it: GET .../filesystem/download.", fields={"field": "path"}
        )
    return e2b_json_response({"content": base64.b64encode(content).decode(), "path": query.path})


@router.post("/sandboxes/{sandbox}/filesystem")
async def write(sandbox: str, body: ContentBody, request: Request) -> Response:
    """Write a file."""
    try:
        content = base64.b64decode(body.content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("The content is not base64.", fields={"field": "content"}) from None
    await cancel_on_disconnect(request, get_node(request).files.write(get_principal(request), sandbox, body.path, single_chunk(content)))
    return Response(status_code=200)


@router.delete("/sandboxes/{sandbox}/filesystem")
async def remove(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Remove a file, or a folder with all that is in it."""
    await get_node(request).files.delete(get_principal(request), sandbox, query.path, recursive=True)
    return done()


@router.get("/sandboxes/{sandbox}/filesystem/download")
async def download(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Read a file, as an attachment."""
    reading = await get_node(request).files.read(get_principal(request), sandbox, query.path)
    return _raw(reading, f"attachment; filename*=UTF-8''{quote(reading.entry.name, safe='')}")


@router.get("/sandboxes/{sandbox}/filesystem/stat")
async def stat(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Look at a path."""
    return e2b_json_response(translate.entry(await get_node(request).files.stat(get_principal(request), sandbox, query.path)))


@router.post("/sandboxes/{sandbox}/filesystem/mkdir")
async def make_folder(sandbox: str, body: FolderBody, request: Request) -> Response:
    """Make a folder, and those above it."""
    return e2b_json_response(translate.entry(await get_node(request).files.make_directory(get_principal(request), sandbox, body.path)))


@router.post("/sandboxes/{sandbox}/filesystem/move")
async def move(sandbox: str, body: MoveBody, request: Request) -> Response:
    """Move or rename."""
    moved = await get_node(request).files.move(get_principal(request), sandbox, body.source, body.destination)
    return e2b_json_response(translate.entry(moved))


@router.get("/sandboxes/{sandbox}/health")
async def health(sandbox: str, request: Request) -> Response:
    """Whether what answers inside of a sandbox does."""
    await get_node(request).sandboxes.check(get_principal(request), sandbox, timeout_s=HEALTH_S)
    return done()


@router.get("/sandboxes/{sandbox}/metrics")
async def metrics(sandbox: str, query: Annotated[MetricsQuery, Query()], request: Request) -> Response:
    """What a sandbox uses now; to E2B's client a list of that, where it is in the time that it asks for."""
    found, listed = await live(request, sandbox), by_e2b(request)
    if not listed and (query.start, query.end) != (None, None):
        raise InvalidRequestError("Only E2B's client asks for metrics of a time.", hint="Leave start and end out.", fields={"field": "start"})
    used, now = await get_node(request).sandboxes.usage(get_principal(request), found.id), found.as_of
    lived_s = (now - found.created_at).total_seconds()
    if not listed:
        return e2b_json_response(translate.metrics(used, now, lived_s))
    wanted = (query.start or 0) <= now.timestamp() and (query.end is None or query.end >= int(now.timestamp()))
    return e2b_json_response([translate.e2b_metrics(used, now, lived_s)] if wanted else [])


@router.get("/sandboxes/{sandbox}/envs")
async def envs(sandbox: str, request: Request) -> Response:
    """What every command starts with."""
    return e2b_json_response(translate.envs(await live(request, sandbox)))


async def _upload(request: Request, sandbox: str) -> Entry:
    fields = FormFields("path")
    form = await read_upload(request, texts=fields)
    path = fields.get("path")
    if path is not None:
        return await get_node(request).files.write(get_principal(request), sandbox, path, form.chunks)
    return await _put_aside(request, sandbox, form, fields)


async def _put_aside(request: Request, sandbox: str, form: Upload, fields: FormFields) -> Entry:
    """Write a file whose destination comes after it: into a file beside, and from there."""
    files, principal = get_node(request).files, get_principal(request)
    beside = BESIDE + secrets.token_hex(8)
    try:
        await files.write(principal, sandbox, beside, form.chunks)
        path = fields.get("path")
        if path is None:
            raise InvalidRequestError("The form has no field 'path'.", hint="Say where the file goes, as an absolute path.", fields={"field": "path"})
        reading = await files.read(principal, sandbox, beside)
        try:
            return await files.write(principal, sandbox, path, reading)
        finally:
            await reading.aclose()
    finally:
        with suppress(SandlotError):
            await files.delete(principal, sandbox, beside)


async def _listing(request: Request, sandbox: str, path: str) -> list[Entry]:
    """All that is in a folder, by name.

    Raises:
        LimitError: ``too_large``.
    """
    found: list[Entry] = []
    while True:
        page = await get_node(request).files.list(get_principal(request), sandbox, path, offset=len(found))
        found += page.entries
        if not page.more or not page.entries:
            return found
        if len(found) >= MOST_ENTRIES:
            raise LimitError(
                f"The folder has more than {MOST_ENTRIES} entries.",
                code=ErrorCode.TOO_LARGE,
                hint="List it by a command.",
                fields={"path": path[:200]},
            )


def _raw(reading: Download, disposition: str | None = None) -> KeepAliveStreamResponse:
    """A file's bytes as an answer."""
    headers = {"X-Content-Type-Options": "nosniff", **({} if disposition is None else {"Content-Disposition": disposition})}
    return KeepAliveStreamResponse(reading, reading.aclose, media_type="application/octet-stream", headers=headers)
