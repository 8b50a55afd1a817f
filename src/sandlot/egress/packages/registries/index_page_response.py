"""Responses with index pages, the same for all registries."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from sandlot.egress.packages.http import Headers, HttpError, Request, Response, bytes_response, is_not_modified
from sandlot.egress.packages.index_page_store import CachedPage, IndexPageStore
from sandlot.egress.packages.store.open_files import OpenFile
from sandlot.egress.packages.upstream import PIECE_BYTES

CACHE_CONTROL = "max-age=60"
"""Time for which a client may reuse a page without a request. Short, because a request to this cache costs little."""
EVICTED = "The page was removed to make room. Try again."


async def page_response(pages: IndexPageStore, page: CachedPage, variant: str, media_type: str, request: Request, headers: Headers = ()) -> Response:
    """Return a response with a variant of a page, or 304 if the client has it.

    Args:
        pages: The stored pages.
        page: The page.
        variant: Name of the variant.
        media_type: Media type of the variant.
        request: The request.
        headers: Further headers of the response.

    Raises:
        HttpError: The page was evicted meanwhile.
    """
    etag = f'"{page.variants[variant]}"'
    headers = (("ETag", etag), ("Cache-Control", CACHE_CONTROL), *headers)
    if is_not_modified(request.headers.get("if-none-match"), etag):
        return bytes_response(304, b"", media_type, headers)
    found = await pages.open(page, variant)
    if found is None:
        raise HttpError(503, EVICTED)
    if isinstance(found, bytes):
        return bytes_response(200, found, media_type, headers)
    return _file_response(pages, found, media_type, headers)


def _file_response(pages: IndexPageStore, opened: OpenFile, media_type: str, headers: Headers) -> Response:
    async def body() -> AsyncGenerator[bytes, None]:
        offset = 0
        while offset < opened.size_bytes and (piece := await pages.read(opened, PIECE_BYTES, offset)):
            offset += len(piece)
            yield piece

    async def close() -> None:
        opened.close()

    return Response(200, (("Content-Type", media_type), *headers), opened.size_bytes, body, close)
