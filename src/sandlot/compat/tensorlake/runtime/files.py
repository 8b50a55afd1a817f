"""Files in a sandbox, as its user reads and writes them."""

from __future__ import annotations

import posixpath
from typing import Annotated

from fastapi import Query, Request, Response

from sandlot.compat.common import list_directory
from sandlot.compat.tensorlake.addressing import INSIDE, inside
from sandlot.compat.tensorlake.runtime import translate
from sandlot.compat.tensorlake.runtime.schemas import ListingAnswer, PathQuery
from sandlot.model.specs import WORKSPACE
from sandlot.web.body_limits import streams_body
from sandlot.web.dependencies import cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.models import json_response
from sandlot.web.streaming import KeepAliveStreamResponse

CONTENT = "/files"


@INSIDE.route("GET", CONTENT)
async def read(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Read a file. An answer that breaks off was cut by an error."""
    reading = await get_node(request).files.read(get_principal(request), await inside(request), _path(query.path))
    # It may say that it is a page; it is never shown as one under this address.
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return KeepAliveStreamResponse(aiter(reading), reading.aclose, media_type="application/octet-stream", headers=headers)


@INSIDE.route("PUT", CONTENT)
@streams_body
async def write(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Write a file; the body is its content. Where the upload breaks off, the old file stays."""
    files, principal, sandbox = get_node(request).files, get_principal(request), await inside(request)
    await cancel_on_hangup(request, files.write(principal, sandbox, _path(query.path), iter_body(request)))
    return Response(status_code=204)


@INSIDE.route("DELETE", CONTENT)
async def remove(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Remove a file, or a folder that is empty."""
    await get_node(request).files.delete(get_principal(request), await inside(request), _path(query.path))
    return Response(status_code=204)


@INSIDE.route("GET", "/files/list")
async def list_files(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """List a folder by name."""
    entries = await list_directory(get_node(request), get_principal(request), await inside(request), _path(query.path))
    return json_response(ListingAnswer(path=query.path, entries=[translate.entry(entry) for entry in entries]))


def _path(given: str) -> str:
    """An absolute path: a relative one begins in the folder where processes begin."""
    return posixpath.join(WORKSPACE, given)
