"""Files in a sandbox, as its user reads and writes them."""

from __future__ import annotations

import posixpath
from typing import Annotated

from fastapi import Query, Request, Response

from sandlot.doors.tensorlake.inside import translate
from sandlot.doors.tensorlake.inside.wire import EntryAnswer, ListingAnswer, PathQuery
from sandlot.doors.tensorlake.ways import INSIDE, inside
from sandlot.model.errors import ErrorCode, LimitError
from sandlot.model.specs import WORKSPACE
from sandlot.web.asking import body_of, node_of, principal_of, while_connected
from sandlot.web.bodies import reply
from sandlot.web.streams import Stream

CONTENT = "/files"
MOST_ENTRIES = 20_000
"""Of one folder: its client waits three seconds for the list."""


@INSIDE.route("GET", CONTENT)
async def read(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Read a file. An answer that breaks off was cut by an error."""
    reading = await node_of(request).files.read(principal_of(request), await inside(request), _path(query.path))
    # It may say that it is a page; it is never shown as one under this address.
    headers = {"X-Content-Type-Options": "nosniff", "Content-Disposition": "attachment"}
    return Stream(aiter(reading), reading.aclose, media_type="application/octet-stream", headers=headers)


@INSIDE.route("PUT", CONTENT)
async def write(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Write a file; the body is its content. Where the upload breaks off, the old file stays."""
    files, principal, sandbox = node_of(request).files, principal_of(request), await inside(request)
    await while_connected(request, files.write(principal, sandbox, _path(query.path), body_of(request)))
    return Response(status_code=204)


@INSIDE.route("DELETE", CONTENT)
async def remove(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """Remove a file, or a folder that is empty."""
    await node_of(request).files.delete(principal_of(request), await inside(request), _path(query.path))
    return Response(status_code=204)


@INSIDE.route("GET", "/files/list")
async def list_directory(query: Annotated[PathQuery, Query()], request: Request) -> Response:
    """List a folder by name."""
    files, principal, sandbox, path = node_of(request).files, principal_of(request), await inside(request), _path(query.path)
    entries: list[EntryAnswer] = []
    more, offset = True, 0
    while more:
        page = await files.list(principal, sandbox, path, offset=offset)
        entries += [translate.entry(entry) for entry in page.entries]
        offset, more = offset + len(page.entries), page.more and bool(page.entries)
        if more and offset >= MOST_ENTRIES:
            raise LimitError(
                f"The folder has more than {MOST_ENTRIES} entries.",
                code=ErrorCode.LIMIT_EXCEEDED,
                hint="List it by a command, such as 'ls', in parts.",
                fields={"path": query.path[:256]},
            )
    return reply(ListingAnswer(path=query.path, entries=entries))


def _path(given: str) -> str:
    """An absolute path: a relative one begins in the folder where processes begin."""
    return posixpath.join(WORKSPACE, given)
