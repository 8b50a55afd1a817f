"""Limit on the bytes of a response to the client of MCP servers, which reads responses whole.

A hook of the HTTP client puts the limit in place before anything of a body is read. Compressed bodies are refused, because few bytes of them become
many.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2


def limit_responses(max_bytes: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """Return a hook for responses, with which reading a body of more than ``max_bytes`` fails."""

    async def limit(response: httpx2.Response) -> None:
        response.stream = _BoundedStream(response, max_bytes)

    return limit


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - the client is asynchronous
        self._stream = response.stream
        self._headers = response.headers
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._headers.get("content-encoding", "identity") != "identity":
            raise self._error("it responded with compressed content, which is refused")
        received = 0
        async for chunk in self._stream:
            received += len(chunk)
            if received > self._max_bytes:
                raise self._error(f"it responded with more than {self._max_bytes:,} bytes, the maximum")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()

    def _error(self, why: str) -> Exception:
        """Return an error that the client of MCP puts into the result of the request, which depends on the form of the response."""
        is_event_stream = self._headers.get("content-type", "").startswith("text/event-stream")
        return httpx2.SSEError(why) if is_event_stream else httpx2.StreamError(why)
