"""File contents at ``/files``, read and written as a whole.

Invariants:
- Only the last chunk of a file is in memory, also of a compressed file, whose size is limited after decompression.
- Until an upload is complete, the old file stays.
- As at E2B, files are read and written with the permissions of root, and written files belong to the user.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import JSONResponse

from sandlot.compat.e2b import access
from sandlot.compat.e2b.envd import translate
from sandlot.compat.e2b.envd.homes import find_home
from sandlot.compat.e2b.envd.schemas import FilesQuery
from sandlot.model.errors import ErrorCode, InvalidRequestError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.specs import KIB, User
from sandlot.web.dependencies import cancel_on_hangup, get_node, get_principal, iter_body
from sandlot.web.multipart import is_multipart, read_uploads
from sandlot.web.streaming import KeepAliveStreamResponse

CHUNK_BYTES: Final = 256 * KIB
"""Maximum size of a decompressed chunk."""
MAX_FILES: Final = 1000
"""Maximum number of files of one upload."""
_GZIP: Final = 16 + zlib.MAX_WBITS
"""Window size by which zlib expects the header and checksum of gzip."""


async def read(request: Request, query: FilesQuery) -> Response:
    """Return the content of a file as a response."""
    sandbox = await access.find_requested_sandbox(request)
    user = translate.user(query.username, sandbox.spec.user)
    path = translate.absolute(query.path or "", await find_home(request, sandbox.id, user))
    content = await get_node(request).files.read(get_principal(request), sandbox.id, path, user=User.ROOT)
    return KeepAliveStreamResponse(content, content.aclose, media_type="application/octet-stream")


async def write(request: Request, query: FilesQuery) -> Response:
    """Write one file, or the files of a form."""
    found = await access.find_requested_sandbox(request)
    sandbox, user = found.id, translate.user(query.username, found.spec.user)
    work = _write_form(request, sandbox, user, query.path) if is_multipart(request) else _write_body(request, sandbox, user, query.path)
    return JSONResponse(await cancel_on_hangup(request, work))


async def _write_body(request: Request, sandbox: SandboxId, user: User, path: str | None) -> list[dict[str, Any]]:
    """Write the body to one file."""
    if not path:
        raise InvalidRequestError("The request names no path.", hint="Pass the path in the query.", fields={"field": "path"})
    return [await _write(request, sandbox, user, path, _content(request))]


async def _write_form(request: Request, sandbox: SandboxId, user: User, path: str | None) -> list[dict[str, Any]]:
    """Write the files of a form to the paths of their names, or a single file to the path of the query."""
    if _encoding(request):
        raise UnsupportedError("A form cannot be compressed.", code=ErrorCode.UNSUPPORTED, hint="Send each file as application/octet-stream.")
    written: list[dict[str, Any]] = []
    async for upload in read_uploads(request, max_parts=MAX_FILES, needs_filename=not path):
        if path and written:
            raise InvalidRequestError("The form has several files for one path.", hint="Omit the path of the query, and name each file by its path.")
        written.append(await _write(request, sandbox, user, path or upload.filename, upload.chunks))
    return written


async def _write(request: Request, sandbox: SandboxId, user: User, path: str, content: AsyncIterator[bytes]) -> dict[str, Any]:
    files, attributes = get_node(request).files, translate.metadata(request.headers)
    path = translate.absolute(path, await find_home(request, sandbox, user))
    entry = await files.write_as_root(get_principal(request), sandbox, path, content, owner=user, attributes=attributes)
    written = {"name": entry.name, "type": "file", "path": entry.path}
    return {**written, "metadata": translate.metadata_of(attributes)} if attributes else written


def _encoding(request: Request) -> str:
    encoding = request.headers.get("content-encoding", "").strip().lower()
    return "" if encoding == "identity" else encoding


async def _content(request: Request) -> AsyncIterator[bytes]:
    """Yield the content of a body, decompressed."""
    encoding = _encoding(request)
    if encoding not in {"", "gzip"}:
        raise InvalidRequestError(f"Content-Encoding {encoding[:20]!r} is not supported.", hint="Use gzip, or none.")
    chunks = decompress(iter_body(request)) if encoding else iter_body(request)
    async for chunk in chunks:
        yield chunk


async def decompress(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Decompress gzip with one or more members (RFC 1952).

    Raises:
        InvalidRequestError: The content is not gzip, or incomplete.
    """
    decoder = zlib.decompressobj(_GZIP)
    async for chunk in chunks:
        rest = chunk
        while rest:
            if decoder.eof:
                decoder = zlib.decompressobj(_GZIP)
            try:
                piece = decoder.decompress(rest, CHUNK_BYTES)
            except zlib.error:
                raise _gzip_error() from None
            if piece:
                yield piece
            rest = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
    if not decoder.eof:
        raise _gzip_error()


def _gzip_error() -> InvalidRequestError:
    return InvalidRequestError("The body is not valid gzip, or incomplete.", hint="Repeat the request, or omit Content-Encoding.")
