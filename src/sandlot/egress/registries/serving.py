"""Pages as answers, the same for every registry."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from sandlot.egress.answers import Answer, Headers, Refusal, of_bytes, unchanged
from sandlot.egress.disk.opened import Opened
from sandlot.egress.documents import Document, Documents
from sandlot.egress.registries.asked import Request
from sandlot.egress.upstream import PIECE_BYTES

FRESH = "max-age=60"
"""How long a client may take a page for granted. It costs little to ask here again."""
GONE = "The page was removed to make room. Try again."


async def served(documents: Documents, document: Document, variant: str, media_type: str, request: Request, headers: Headers = ()) -> Answer:
    """A variant of a page as an answer.

    Args:
        documents: Where it is.
        document: The page.
        variant: Which.
        media_type: Of it.
        request: Who asks; told that nothing has changed where nothing has.
        headers: More of them.

    Raises:
        Refusal: It is gone.
    """
    etag = f'"{document.variants[variant]}"'
    headers = (("ETag", etag), ("Cache-Control", FRESH), *headers)
    if unchanged(request.headers.get("if-none-match"), etag):
        return of_bytes(304, b"", media_type, headers)
    found = await documents.open(document, variant)
    if found is None:
        raise Refusal(503, GONE)
    if isinstance(found, bytes):
        return of_bytes(200, found, media_type, headers)
    opened = found

    async def body() -> AsyncGenerator[bytes, None]:
        offset = 0
        while offset < opened.size_bytes and (piece := await documents.read(opened, PIECE_BYTES, offset)):
            offset += len(piece)
            yield piece

    async def close() -> None:
        opened.close()

    return Answer(200, (("Content-Type", media_type), *headers), opened.size_bytes, body, close)


async def bytes_of(documents: Documents, document: Document, variant: str) -> bytes | None:
    """The whole of a variant; None if it is gone."""
    found = await documents.open(document, variant)
    if not isinstance(found, Opened):
        return found
    try:
        return await documents.read(found, found.size_bytes, 0)
    finally:
        found.close()
