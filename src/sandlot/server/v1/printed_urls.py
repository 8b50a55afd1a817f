"""Preview URLs for the loopback URLs that programs print, as the field ``urls`` of results and as ``url`` events of streams.

The output itself is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from starlette.requests import Request

from sandlot.model.errors import SandlotError
from sandlot.model.executions import Channel, Output, OutputGap
from sandlot.model.ids import SandboxId
from sandlot.model.previews import DEFAULT_PREVIEW_LIFETIME_S
from sandlot.web.dependencies import get_node, get_preview_address, get_principal, has_previews
from sandlot.web.models import ResponseModel
from sandlot.web.printed_urls import LoopbackUrl, LoopbackUrlScanner, find_loopback_urls
from sandlot.web.streaming import StreamEvent


class PrintedUrlResponse(ResponseModel):
    """A loopback URL that a program printed, and the preview that opens the same page."""

    printed: str = Field(description="URL as the program printed it.", examples=["http://localhost:5173/"])
    port: int = Field(description="Port inside the sandbox.", examples=[5173])
    url: str = Field(description="URL of the preview, with a token that is valid for a day unless the port is public.")


PRINTED_URLS_DESCRIPTION = (
    "Previews of the first 10 loopback URLs (`http://localhost:5173/`) in the output, of which the first and the last 64 KiB are searched. "
    "Empty if the service has no previews."
)


class PrintedUrls:
    """Finds the loopback URLs in the output of one run and creates their preview URLs.

    Args:
        request: Request for the output. Its principal signs the tokens.
        sandbox: Id of the sandbox.
    """

    def __init__(self, request: Request, sandbox: str) -> None:
        self._request = request
        self._sandbox = sandbox
        self._scanner = LoopbackUrlScanner((Channel.STDOUT, Channel.STDERR)) if has_previews(request) else None

    async def of(self, *texts: str) -> list[PrintedUrlResponse]:
        """Return the preview URLs for complete output.

        Args:
            texts: The streams of the output.
        """
        return [] if self._scanner is None else await self._previews(find_loopback_urls(*texts))

    async def events(self, item: Output | OutputGap) -> list[StreamEvent]:
        """Return an event for each URL that the next part of the output completes."""
        if self._scanner is None:
            return []
        if isinstance(item, OutputGap):
            self._scanner.skip(item.channel)
            return []
        return await self._events(self._scanner.feed(item.data, item.channel))

    async def last_events(self) -> list[StreamEvent]:
        """Return an event for each URL at the ends of the streams."""
        return [] if self._scanner is None else await self._events(self._scanner.end())

    async def _events(self, found: Sequence[LoopbackUrl]) -> list[StreamEvent]:
        return [StreamEvent("url", each.model_dump()) for each in await self._previews(found)]

    async def _previews(self, found: Sequence[LoopbackUrl]) -> list[PrintedUrlResponse]:
        if not found:
            return []
        node, principal = get_node(self._request), get_principal(self._request)
        try:
            address = await get_preview_address(self._request)
            signed = [node.previews.sign(principal, self._sandbox, each.port, DEFAULT_PREVIEW_LIFETIME_S) for each in found]
        except SandlotError:  # the sandbox has ended, or the listener cannot be opened: the result is complete without previews
            return []
        if address is None:
            return []
        return [
            PrintedUrlResponse(
                printed=each.url,
                port=each.port,
                url=address.url(SandboxId(self._sandbox), each.port, None if token.public else token.value, each.target),
            )
            for each, token in zip(found, signed, strict=True)
        ]
