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
from collections.abc import AsyncIterator
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response

from sandlot.core.files import files
from sandlot.core.files.files import FileDownload
from sandlot.core.sandbox import Sandbox
from sandlot.doors.e2bwords import told
from sandlot.doors.sandbase import translate
from sandlot.doors.sandbase.sandboxes import by_e2b, live
from sandlot.doors.sandbase.wire import ContentBody, FolderBody, FolderQuery, MetricsQuery, MoveBody, PathQuery, ProcessBody, done
from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, SandlotError
from sandlot.model.executions import ExecutionOptions
from sandlot.model.files import Entry
from sandlot.model.specs import User
from sandlot.web.asking import node_of, principal_of, unless_gone, while_connected
from sandlot.web.forms import Fields, Upload, upload_of
from sandlot.web.streams import Stream

RAW = frozenset({"/sandboxes/{sandbox}/files", "/sandboxes/{sandbox}/filesystem/upload"})

MOST_ENTRIES = 20_000
"""Of one folder's list, which the vendor does not page."""
BESIDE = "/tmp/.sandlot-upload-"  # noqa: S108 - inside of a sandbox
"""Where a file waits whose destination comes after it."""

_NOT_RUN = frozenset({ErrorCode.PATH_NOT_FOUND, ErrorCode.PERMISSION_DENIED, ErrorCode.PATH_INVALID, ErrorCode.TIMEOUT})
"""Why a command could not be run, where it is not the sandbox's fault."""

router = APIRouter()


@router.post("/sandboxes/{sandbox}/processes")
async def run(sandbox: str, body: ProcessBody, request: Request) -> Response:
    """Run a command to its end; it is killed when its client goes away."""
    box = live(request, sandbox)
    spec = translate.process(body, box)
    try:
        finished = await unless_gone(request, node_of(request).processes.run_in(box, spec, options=ExecutionOptions(origin=translate.NAME)))
    except SandlotError as error:
        if error.code not in _NOT_RUN:
            raise
        return _failed(str(error))
    answer = translate.outcome(finished)
    if finished.outcome.reason == "timeout":
        return _failed(f"The command was ended after {spec.timeout_s:g} seconds. Give a longer timeout.", answer)
    return told(answer)


def _failed(message: str, more: dict[str, Any] | None = None) -> Response:
    """A command that was not run to its end, and what it wrote until then."""
    status = HTTPStatus.BAD_GATEWAY
    return told({**(more or {}), "code": status.value, "message": message, "error": message}, status)


@router.get("/sandboxes/{sandbox}/files")
async def read_or_list(sandbox: str, query: Annotated[FolderQuery, Query()], request: Request) -> Response:
    """Read a file, or list a folder."""
    box = live(request, sandbox)
    try:
        return _raw(await files.read(box, query.path, user=User.USER))
    except InvalidRequestError as error:
        with suppress(SandlotError):
            return told([translate.entry(each) for each in await _listing(box, query.path)])
        raise error from None


@router.post("/sandboxes/{sandbox}/files")
@router.post("/sandboxes/{sandbox}/filesystem/upload")
async def upload(sandbox: str, request: Request) -> Response:
    """Write a file that a form carries; where the upload breaks off, the old file stays."""
    entry = await while_connected(request, _upload(live(request, sandbox), request))
    return told(translate.entry(entry))


@router.get("/sandboxes/{sandbox}/filesystem/list")
async def list_folder(sandbox: str, query: Annotated[FolderQuery, Query()], request: Request) -> Response:
    """List a folder."""
    return told([translate.entry(each) for each in await _listing(live(request, sandbox), query.path)])


@router.get("/sandboxes/{sandbox}/filesystem")
async def read(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Read a file that is no larger than a MiB."""
    reading = await files.read(live(request, sandbox), query.path, user=User.USER, length=translate.INLINE_BYTES + 1)
    try:
        content = b"".join([piece async for piece in reading])
    finally:
        await reading.aclose()
    if len(content) > translate.INLINE_BYTES:
        raise InvalidRequestError(
            f"The file has more than {translate.INLINE_BYTES} bytes.", hint="Download it: GET .../filesystem/download.", fields={"field": "path"}
        )
    return told({"content": base64.b64encode(content).decode(), "path": query.path})


@router.post("/sandboxes/{sandbox}/filesystem")
async def write(sandbox: str, body: ContentBody, request: Request) -> Response:
    """Write a file."""
    try:
        content = base64.b64decode(body.content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequestError("The content is not base64.", fields={"field": "content"}) from None
    await unless_gone(request, files.write(live(request, sandbox), body.path, _once(content), user=User.USER))
    return Response(status_code=200)


@router.delete("/sandboxes/{sandbox}/filesystem")
async def remove(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Remove a file, or a folder with all that is in it."""
    await files.remove(live(request, sandbox), query.path, user=User.USER, recursive=True)
    return done()


@router.get("/sandboxes/{sandbox}/filesystem/download")
async def download(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Read a file, as an attachment."""
    reading = await files.read(live(request, sandbox), query.path, user=User.USER)
    return _raw(reading, f"attachment; filename*=UTF-8''{quote(reading.entry.name, safe='')}")


@router.get("/sandboxes/{sandbox}/filesystem/stat")
async def stat(sandbox: str, query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Look at a path."""
    return told(translate.entry(await files.stat(live(request, sandbox), query.path, user=User.USER)))


@router.post("/sandboxes/{sandbox}/filesystem/mkdir")
async def make_folder(sandbox: str, body: FolderBody, request: Request) -> Response:
    """Make a folder, and those above it."""
    return told(translate.entry(await files.make_directory(live(request, sandbox), body.path, user=User.USER)))


@router.post("/sandboxes/{sandbox}/filesystem/move")
async def move(sandbox: str, body: MoveBody, request: Request) -> Response:
    """Move or rename."""
    return told(translate.entry(await files.move(live(request, sandbox), body.source, body.destination, user=User.USER)))


@router.get("/sandboxes/{sandbox}/health")
async def health(sandbox: str, request: Request) -> Response:
    """Whether what answers inside of a sandbox does."""
    async with live(request, sandbox).connection() as link:
        await link.info()
    return done()


@router.get("/sandboxes/{sandbox}/metrics")
async def metrics(sandbox: str, query: Annotated[MetricsQuery, Query()], request: Request) -> Response:
    """What a sandbox uses now; to E2B's client a list of that, where it is in the time that it asks for."""
    node, box, listed = node_of(request), live(request, sandbox), by_e2b(request)
    if not listed and (query.start, query.end) != (None, None):
        raise InvalidRequestError("Only E2B's client asks for metrics of a time.", hint="Leave start and end out.", fields={"field": "start"})
    used, now = await node.manager.usage(principal_of(request), box.id), node.clock.now()
    lived_s = (now - box.created_at).total_seconds()
    if not listed:
        return told(translate.metrics(used, now, lived_s))
    wanted = (query.start or 0) <= now.timestamp() and (query.end is None or query.end >= int(now.timestamp()))
    return told([translate.e2b_metrics(used, now, lived_s)] if wanted else [])


@router.get("/sandboxes/{sandbox}/envs")
async def envs(sandbox: str, request: Request) -> Response:
    """What every command starts with."""
    return told(translate.envs(live(request, sandbox)))


async def _upload(sandbox: Sandbox, request: Request) -> Entry:
    fields = Fields("path")
    form = await upload_of(request, beside=fields)
    path = fields.get("path")
    if path is not None:
        return await files.write(sandbox, path, form.chunks, user=User.USER)
    return await _put_aside(sandbox, form, fields)


async def _put_aside(sandbox: Sandbox, form: Upload, fields: Fields) -> Entry:
    """Write a file whose destination comes after it: into a file beside, and from there."""
    beside = BESIDE + secrets.token_hex(8)
    try:
        await files.write(sandbox, beside, form.chunks, user=User.USER)
        path = fields.get("path")
        if path is None:
            raise InvalidRequestError("The form has no field 'path'.", hint="Say where the file goes, as an absolute path.", fields={"field": "path"})
        reading = await files.read(sandbox, beside, user=User.USER)
        try:
            return await files.write(sandbox, path, aiter(reading), user=User.USER)
        finally:
            await reading.aclose()
    finally:
        with suppress(SandlotError):
            await files.remove(sandbox, beside, user=User.USER)


async def _listing(sandbox: Sandbox, path: str) -> list[Entry]:
    """All that is in a folder, by name.

    Raises:
        LimitError: ``too_large``.
    """
    found: list[Entry] = []
    while True:
        page = await files.listing(sandbox, path, user=User.USER, offset=len(found))
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


def _raw(reading: FileDownload, disposition: str | None = None) -> Stream:
    """A file's bytes as an answer."""

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in reading:
            yield piece

    headers = {"X-Content-Type-Options": "nosniff", **({} if disposition is None else {"Content-Disposition": disposition})}
    return Stream(pieces(), reading.aclose, media_type="application/octet-stream", headers=headers)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
