"""``/files``: content of files, read and written whole. What fails is told by the door's error format.

Laws:
- Nothing of a file waits here but the piece that was read last, also of one that comes compressed; what it comes to is bounded as it is.
- Until all of it has come, the old file stays.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from sandlot.compat.e2b import access
from sandlot.compat.e2b.envd import translate
from sandlot.compat.e2b.envd.schemas import FilesQuery
from sandlot.model.access import Quota, check_upload
from sandlot.model.errors import ErrorCode, InvalidRequestError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.specs import KIB, User
from sandlot.web.dependencies import cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.multipart import is_multipart, read_uploads
from sandlot.web.streaming import KeepAliveStreamResponse

PIECE_BYTES = 256 * KIB
"""Of what is unpacked at once."""
MOST_FILES = 1000
"""Of one upload."""
METADATA = "x-metadata-"
_GZIP = 16 + zlib.MAX_WBITS
"""zlib's word for gzip, with its header and its checksum."""


async def read(request: Request, query: FilesQuery) -> Response:
    """A file's content."""
    sandbox, user = await access.sandbox_of(request), translate.user(query.username)
    path = translate.absolute(query.path or "", user)
    content = await get_node(request).files.read(get_principal(request), sandbox.id, path, user=user)
    return KeepAliveStreamResponse(content, content.aclose, media_type="application/octet-stream")


async def write(request: Request, query: FilesQuery) -> Response:
    """Write one file, or several of a form."""
    sandbox, user = (await access.sandbox_of(request)).id, translate.user(query.username)
    if any(name.startswith(METADATA) for name in request.headers):
        raise UnsupportedError("Files have no metadata here.", code=ErrorCode.UNSUPPORTED, hint="Leave it out, or keep it in a file beside the file.")
    work = _form(request, sandbox, user, query.path) if is_multipart(request) else _whole(request, sandbox, user, query.path)
    return JSONResponse(await cancel_on_hangup(request, work))


async def _whole(request: Request, sandbox: SandboxId, user: User, path: str | None) -> list[dict[str, Any]]:
    """A body that is one file."""
    if not path:
        raise InvalidRequestError("It is not said where to write.", hint="Give its path in the query.", fields={"field": "path"})
    return [await _one(request, sandbox, user, path, _content(request))]


async def _form(request: Request, sandbox: SandboxId, user: User, path: str | None) -> list[dict[str, Any]]:
    """Files of a form, each by its name, or one by the path in the query."""
    if _encoding(request):
        raise UnsupportedError(
            "A form cannot come compressed.", code=ErrorCode.UNSUPPORTED, hint="Send one file at a time, as application/octet-stream."
        )
    written: list[dict[str, Any]] = []
    async for upload in read_uploads(request, max_parts=MOST_FILES):
        if path and written:
            raise InvalidRequestError("There are several files for one path.", hint="Leave out the query's path, and name each file by its own.")
        written.append(await _one(request, sandbox, user, path or upload.filename, upload.chunks))
    return written


async def _one(request: Request, sandbox: SandboxId, user: User, path: str, content: AsyncIterator[bytes]) -> dict[str, Any]:
    entry = await get_node(request).files.write(get_principal(request), sandbox, translate.absolute(path, user), content, user=user)
    return {"name": entry.name, "type": "file", "path": entry.path}


def _encoding(request: Request) -> str:
    encoding = request.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


async def _content(request: Request) -> AsyncIterator[bytes]:
    """What a body holds."""
    encoding = _encoding(request)
    if encoding not in {"", "gzip"}:
        raise InvalidRequestError(f"Content-Encoding {encoding[:20]!r} is not known.", hint="Use gzip, or none.")
    pieces = unpacked(iter_body(request), get_principal(request).quota) if encoding else iter_body(request)
    async for piece in pieces:
        yield piece


async def unpacked(chunks: AsyncIterator[bytes], quota: Quota) -> AsyncIterator[bytes]:
    """What gzip packed (RFC 1952), of one member or several.

    Args:
        chunks: As it comes.
        quota: Bounds what it comes to.

    Raises:
        InvalidRequestError: It is none, or breaks off.
        LimitError: ``quota_exceeded``.
    """
    packed, size = zlib.decompressobj(_GZIP), 0
    async for chunk in chunks:
        rest = chunk
        while rest:
            if packed.eof:
                packed = zlib.decompressobj(_GZIP)
            try:
                piece = packed.decompress(rest, PIECE_BYTES)
            except zlib.error:
                raise _no_gzip() from None
            size += len(piece)
            check_upload(quota, size)
            if piece:
                yield piece
            rest = packed.unused_data if packed.eof else packed.unconsumed_tail
    if not packed.eof:
        raise _no_gzip()


def _no_gzip() -> InvalidRequestError:
    return InvalidRequestError("The body is no gzip, or breaks off.", hint="Send it again, or without Content-Encoding.")
