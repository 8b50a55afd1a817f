"""Creates responses with index pages, for all registries."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from sandlot.egress.packages.http import Headers, HttpError, Request, Response, bytes_response, is_not_modified
from sandlot.egress.packages.index_page_store import CachedPage, IndexPageStore
from sandlot.egress.packages.store.open_files import OpenFile
from sandlot.egress.packages.upstream import PIECE_BYTES

CACHE_CONTROL = "max-age=60"
"""Clients may reuse a page for 60 s without a new request. The time is short, because a request to this cache takes little time."""
EVICTED = "The index page was removed from the full package cache during this request. Try again."


async def page_response(pages: IndexPageStore, page: CachedPage, variant: str, media_type: str, request: Request, headers: Headers = ()) -> Response:
    """Return a response with a variant of a page. The status is 304 if the client already has the current version.

    Args:
        pages: Store that contains the content of the page.
        page: The page to send.
        variant: Name of the variant to send, such as ``html``.
        media_type: Media type of the variant.
        request: The request to respond to.
        headers: Headers to add to ``ETag``, ``Cache-Control`` and ``Content-Type``.

    Raises:
        HttpError: Status 503: the page was evicted from the store after it was loaded.
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
