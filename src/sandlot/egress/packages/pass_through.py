"""Passing files through: a file is sent from upstream to one client without being stored.

Invariants:
- A file with a digest is verified while it is sent. Its last bytes are withheld until the whole file has matched the digest.
- A file is read from upstream only as fast as its client reads. If a client reads too slowly, its response is cut off.
- The number of files that pass through at once is limited for each sandbox and for all sandboxes together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from sandlot.egress.packages.config.values import redacted
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.digests import Digest
from sandlot.egress.packages.download import WITHHELD_BYTES, NotFoundError, PackageFile, WrongUrls, check_has_file, check_size, wrong_digest
from sandlot.egress.packages.fairness import ConcurrencyLimiter
from sandlot.egress.packages.http import Response
from sandlot.egress.packages.upstream import Upstream, UpstreamError, UpstreamResponse

MAX_FILES = 24
"""Maximum number of files that pass through at once: half of the concurrent upstream requests. The other half is left to other requests."""
MAX_FILES_PER_SANDBOX = 2
WAIT_S = 60.0
"""Seconds until a request fails because the files of other sandboxes take all :data:`MAX_FILES` slots."""
PACE_WINDOW_S = 60.0
MIN_PACE_BYTES_S = 64 * 1024
"""Minimum bytes per second that a client must read. Measured each time the service has waited :data:`PACE_WINDOW_S` in all for the client."""


class BusyError(UpstreamError):
    """All :data:`MAX_FILES` slots for files that are sent without being stored were occupied for :data:`WAIT_S`."""


class PassThrough:
    """Sends files from upstream to clients without storing them.

    Args:
        wrong_urls: URLs that returned a file with the wrong digest. A URL is added when it returns such a file.
        counters: Counters of the package cache.
    """

    def __init__(self, wrong_urls: WrongUrls, counters: Counters) -> None:
        self._wrong_urls = wrong_urls
        self._counters = counters
        self._slots = asyncio.Semaphore(MAX_FILES)
        self._limiter = ConcurrencyLimiter(MAX_FILES_PER_SANDBOX)

    async def respond(self, file: PackageFile, upstream: Upstream, sandbox: str) -> Response:
        """Return a response whose body is the content of a file, straight from upstream.

        Args:
            file: The requested file.
            upstream: Client of the registry that the file belongs to.
            sandbox: Id of the sandbox that requested the file.

        Raises:
            NotFoundError: Upstream has no such file.
            BusyError: Too many other files were being sent during all of :data:`WAIT_S`.
            UpstreamError: The file could not be fetched.
        """
        lengths: list[int | None] = []
        pieces = self.pieces(file, upstream, sandbox=sandbox, on_length=lengths.append)
        first = await anext(pieces, b"")

        async def body() -> AsyncGenerator[bytes, None]:
            yield first
            async for piece in pieces:
                yield piece

        return Response(200, file.headers, lengths[-1] if lengths else None, body, pieces.aclose)

    async def pieces(
        self, file: PackageFile, upstream: Upstream, *, sandbox: str, skip: int = 0, on_length: Callable[[int | None], None] | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file in pieces, straight from upstream.

        The file first needs a slot of its sandbox, for which it waits without a time limit, and then one of the :data:`MAX_FILES` slots of all
        sandboxes, for which it waits at most :data:`WAIT_S`.

        Args:
            file: The requested file.
            upstream: Client of the registry that the file belongs to.
            sandbox: Id of the sandbox that requested the file.
            skip: Number of bytes at the beginning of the file that are verified but not yielded.
            on_length: Called once with the size of the file in bytes that upstream announces, or with None if upstream announces no size.

        Raises:
            NotFoundError: Upstream has no such file.
            UpstreamError: The file could not be fetched, is wrong or was read too slowly.
        """
        with self._limiter.slots(sandbox) as own_slots:
            async with own_slots:
                try:
                    async with asyncio.timeout(WAIT_S):
                        await self._slots.acquire()
                except TimeoutError:
                    url = redacted(file.urls[0])
                    raise BusyError(f"{url} was not fetched: {MAX_FILES} other files were still being sent after {WAIT_S:g} s") from None
                try:
                    async with aclosing(_paced(self._fetch(self._wrong_urls.sort(file), upstream, skip, on_length))) as pieces:
                        async for piece in pieces:
                            yield piece
                finally:
                    self._slots.release()

    async def _fetch(
        self, file: PackageFile, upstream: Upstream, skip: int, on_length: Callable[[int | None], None] | None
    ) -> AsyncGenerator[bytes, None]:
        for number, url in enumerate(file.urls, 1):
            async with upstream.get(url, {"Accept-Encoding": "identity"}) as response:
                try:
                    check_has_file(response)
                except (NotFoundError, UpstreamError):
                    if number == len(file.urls):
                        raise
                    continue
                if on_length is not None:
                    on_length(response.length)
                body = self._verified(file, file.digest, url, response, skip) if file.digest else _skipped(response, skip)
                async with aclosing(body) as pieces:
                    async for piece in pieces:
                        yield piece
                return

    async def _verified(self, file: PackageFile, digest: Digest, url: str, response: UpstreamResponse, skip: int) -> AsyncGenerator[bytes, None]:
        """Yield the body of a response without its first ``skip`` bytes. Withhold the last bytes until the whole body has matched the digest."""
        running, withheld, size = digest.new_hash(), b"", 0
        async for piece in response.pieces(decoded=False):
            running.update(piece)
            size += len(piece)
            check_size(file, size, is_exact=False)
            fresh, skip = piece[skip:], max(0, skip - len(piece))
            withheld += fresh
            if len(withheld) > WITHHELD_BYTES:
                yield withheld[:-WITHHELD_BYTES]
                withheld = withheld[-WITHHELD_BYTES:]
        if running.hexdigest() != digest.value:
            self._counters.mismatches += 1
            self._wrong_urls.add(digest, (url,))
            check_size(file, size, is_exact=True)
            raise wrong_digest(url, digest)
        if withheld:
            yield withheld


async def _skipped(response: UpstreamResponse, skip: int) -> AsyncGenerator[bytes, None]:
    """Yield the body of a response without its first ``skip`` bytes."""
    async for piece in response.pieces(decoded=False):
        fresh, skip = piece[skip:], max(0, skip - len(piece))
        if fresh:
            yield fresh


async def _paced(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield pieces to a client. Raise UpstreamError if the client takes too long to read them; the time that upstream takes is not measured."""
    waited_s, taken_bytes = 0.0, 0
    async with aclosing(pieces):
        async for piece in pieces:
            given_s = time.monotonic()
            yield piece
            waited_s += time.monotonic() - given_s
            taken_bytes += len(piece)
            if waited_s >= PACE_WINDOW_S:
                if taken_bytes < MIN_PACE_BYTES_S * waited_s:
                    raise UpstreamError(f"the sandbox reads too slowly: it read {taken_bytes} bytes of a file in {waited_s:.0f} s")
                waited_s, taken_bytes = 0.0, 0
