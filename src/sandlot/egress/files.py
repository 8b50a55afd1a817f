"""Files that packages are made of: from the shelf, or from upstream by way of it.

Laws:
- Any number of clients that want one file share one download of it.
- What an index vouches for is verified on its way to the first client and kept; what nobody vouches for is passed through, and neither it nor
  the question how long a file is takes anything of the disk.
- A shelf or a disk that is full costs speed, not packages: then files pass through, verified all the same.
- What passes through comes as slowly as it is taken: each sandbox has a few such files at once, and who takes one too slowly loses it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import urlsplit

from sandlot.egress.answers import Answer, Headers, Refusal, Taking, of_bytes, span
from sandlot.egress.counters import Counters
from sandlot.egress.digests import Digest
from sandlot.egress.disk.opened import Opened
from sandlot.egress.disk.shelf import Kind, Shelf
from sandlot.egress.disk.threads import Threads
from sandlot.egress.download import HELD_BYTES, Download, Mismatch, NoRoomError, NotThereError, Wanted, check
from sandlot.egress.sources.values import shown
from sandlot.egress.turns import Turns
from sandlot.egress.upstream import PIECE_BYTES, Upstream, UpstreamError, open_local

_OK, _PARTIAL = 200, 206
_BINARY = "application/octet-stream"
_BAD_GATEWAY = 502
_log = logging.getLogger(__name__)

LINGERING = 4
"""Downloads that go on for a moment although their clients have left."""
PASSING = 24
"""Files that pass through without the disk, all sandboxes together: half of what upstream is asked at once, because others want it too."""
PASSING_EACH = 2
"""Of these, a sandbox's."""
PASSING_WAIT_S = 60.0
"""How long a sandbox waits for the others'."""
PACE_S = 60.0
PACE_BYTES_S = 64 * 1024
"""What has to be taken of a file that passes through, bytes a second, over so many seconds of waiting for the one who takes it."""
WRONG = 1024
"""Places that gave a wrong file and are asked last for it: so many are remembered."""
GONE = "The package index has no such file."
UNREACHABLE = "The file could not be fetched from the package index that this host uses. Try again; the service's log says why."
BUSY = "Too many files pass through the package cache at once, because it has no room or knows no digest of them. Try again."


class _BusyError(UpstreamError):
    """Others have all the turns."""


class Files:
    """The files of all registries.

    Args:
        shelf: Where they are kept.
        threads: For the disk.
        counters: What is counted.
    """

    def __init__(self, shelf: Shelf, threads: Threads, counters: Counters) -> None:
        self._shelf = shelf
        self._threads = threads
        self._counters = counters
        self._downloads: dict[Digest, Download] = {}
        self._wrong: OrderedDict[tuple[Digest, str], None] = OrderedDict()
        self._running: set[Download] = set()
        self._passing = asyncio.Semaphore(PASSING)
        self._passing_of = Turns(PASSING_EACH)

    async def aclose(self) -> None:
        """End what is being downloaded. What has come to its end is kept first: who has it already counts on that."""
        running = [(download, download.task) for download in self._running if download.task is not None]
        tasks = [task for _, task in running]
        for download, task in running:
            if not download.verified:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def kept(self, digest: Digest, range_: str | None) -> Answer | None:
        """The answer out of the shelf; None if it is not there.

        Args:
            digest: Of the file.
            range_: The header ``Range``.

        Raises:
            Refusal: There is no such range.
        """
        opened = await self._threads.open(self._shelf.open, Kind.FILES, str(digest))
        if opened is None:
            return None
        self._counters.hits += 1
        return self._of_opened(opened, range_, _headers(digest))

    async def answer(self, wanted: Wanted, upstream: Upstream, taking: Taking) -> Answer:
        """The answer, wherever it comes from.

        Args:
            wanted: The file.
            upstream: Of its registry.
            taking: How it is taken.

        Raises:
            Refusal: There is no such file or range, or it cannot be had.
        """
        found = await self._found(wanted, taking.range_)
        if found is not None:
            return found
        self._counters.misses += 1
        try:
            return await self._fetched(wanted, upstream, taking)
        except NotThereError:
            raise Refusal(404, GONE) from None
        except _BusyError:
            raise Refusal(503, BUSY, (("Retry-After", "10"),)) from None
        except UpstreamError as error:
            raise self.failed(error) from None

    async def _found(self, wanted: Wanted, range_: str | None) -> Answer | None:
        """The answer out of what lies on this machine; None if it is not there."""
        if wanted.digest is not None:
            # A second look: what was being downloaded at the first one may have been kept, and is no download any more.
            for _ in range(2):
                found = await self.kept(wanted.digest, range_)
                if found is not None:
                    return found
                if self._is_coming(wanted.digest):
                    break
        elif urlsplit(wanted.urls[0]).scheme == "file":
            opened = await self._threads.open(open_local, wanted.urls[0])
            if opened is not None:
                self._counters.hits += 1
                return self._of_opened(opened, range_, _headers(None))
        return None

    async def _fetched(self, wanted: Wanted, upstream: Upstream, taking: Taking) -> Answer:
        if taking.head:
            return await self._headed(wanted, upstream)
        if wanted.digest is None:
            return await self._passed(wanted, upstream, taking.sandbox)
        return await self._downloaded(wanted, upstream, taking)

    async def fetch(self, wanted: Wanted, upstream: Upstream) -> Opened | None:
        """A whole verified file, for the cache's own use; None where it cannot be had or kept.

        Args:
            wanted: The file; with a digest.
            upstream: Of its registry.
        """
        if wanted.digest is None:
            return None
        opened = await self._threads.open(self._shelf.open, Kind.FILES, str(wanted.digest))
        if opened is not None:
            return opened
        download = self._join(wanted, upstream)
        try:
            await download.ended()
            if download.task is not None:
                await asyncio.shield(download.task)
        except (UpstreamError, NotThereError, NoRoomError):
            return None
        finally:
            await download.leave()
        return await self._threads.open(self._shelf.open, Kind.FILES, str(wanted.digest))

    def failed(self, error: UpstreamError) -> Refusal:
        """What a sandbox is told of it. What happened is in the log: the names of the machine's upstreams are not the sandbox's business."""
        self._counters.errors += 1
        _log.warning("a package could not be fetched: %s", error)
        return Refusal(_BAD_GATEWAY, UNREACHABLE)

    def _of_opened(self, opened: Opened, range_: str | None, headers: Headers) -> Answer:
        try:
            part = span(range_, opened.size_bytes)
        except Refusal:
            opened.close()
            raise
        start, length = (part.start, part.length) if part else (0, opened.size_bytes)

        async def body() -> AsyncGenerator[bytes, None]:
            offset = start
            while offset < start + length:
                piece = await self._threads.run(opened.read, min(PIECE_BYTES, start + length - offset), offset)
                if not piece:
                    return
                offset += len(piece)
                yield piece

        async def close() -> None:
            opened.close()

        whole = (("Content-Range", f"bytes {start}-{start + length - 1}/{opened.size_bytes}"),) if part else ()
        return Answer(_PARTIAL if part else _OK, (*headers, *whole), length, body, close)

    def _is_coming(self, digest: Digest) -> bool:
        download = self._downloads.get(digest)
        return download is not None and not download.over

    def _join(self, wanted: Wanted, upstream: Upstream) -> Download:
        digest = wanted.digest
        download = self._downloads.get(digest) if digest is not None else None
        if download is None or download.over:
            download = Download(self._ordered(wanted), upstream, self._shelf, self._threads, self._counters)
            self._running.add(download)
            if digest is not None:
                self._downloads[digest] = download
            download.start(self._forget, lambda: sum(each.lingers for each in self._running) < LINGERING)
        download.join()
        return download

    def _ordered(self, wanted: Wanted) -> Wanted:
        """A file's places, those last where it was a wrong one."""
        digest = wanted.digest
        return wanted if digest is None else replace(wanted, urls=tuple(sorted(wanted.urls, key=lambda url: (digest, url) in self._wrong)))

    def _note_wrong(self, digest: Digest, urls: Iterable[str]) -> None:
        for url in urls:
            self._wrong[digest, url] = None
            if len(self._wrong) > WRONG:
                self._wrong.popitem(last=False)

    def _forget(self, download: Download) -> None:
        self._running.discard(download)
        digest = download.wanted.digest
        if digest is not None:
            self._note_wrong(digest, download.wrong)
        if digest is not None and self._downloads.get(digest) is download:
            del self._downloads[digest]

    async def _headed(self, wanted: Wanted, upstream: Upstream) -> Answer:
        """What upstream says of a file before it sends it; not by HEAD, which signed links are not signed for."""
        for number, url in enumerate(wanted.urls, 1):
            try:
                async with upstream.get(url, {"Accept-Encoding": "identity"}) as reply:
                    check(reply)
                    return Answer(_OK, _headers(wanted.digest), reply.length, of_bytes(_OK, b"", _BINARY).body)
            except (NotThereError, UpstreamError):
                if number == len(wanted.urls):
                    raise
        raise NotThereError

    async def _downloaded(self, wanted: Wanted, upstream: Upstream, taking: Taking) -> Answer:
        range_ = taking.range_
        download = self._join(wanted, upstream)
        try:
            # A range is answered out of a file that is verified, so that nobody collects all but the last bytes of a wrong one.
            length = await (download.ended() if range_ else download.begun())
            part = span(range_, length) if range_ and length is not None else None
        except NoRoomError:
            await download.leave()
            return await self._passed(wanted, upstream, taking.sandbox)
        except BaseException:
            await download.leave()
            raise
        start, size = (part.start, part.length) if part else (0, length)

        async def body() -> AsyncGenerator[bytes, None]:
            given = 0
            try:
                async with aclosing(download.pieces(start, size)) as pieces:
                    async for piece in pieces:
                        given += len(piece)
                        yield piece
            except NoRoomError:
                try:
                    async with aclosing(self._direct(wanted, upstream, start + given, taking.sandbox, _nobody)) as pieces:
                        async for piece in pieces:
                            yield piece
                except NotThereError:
                    raise UpstreamError(f"{shown(wanted.urls[0])} is gone in the middle of an answer") from None

        whole = (("Content-Range", f"bytes {start}-{start + (size or 0) - 1}/{length}"),) if part else ()
        return Answer(_PARTIAL if part else _OK, (*_headers(wanted.digest), *whole), size, body, _once(download))

    async def _passed(self, wanted: Wanted, upstream: Upstream, sandbox: str) -> Answer:
        """The file straight from upstream: nothing is kept."""
        lengths: list[int | None] = []
        pieces = self._direct(self._ordered(wanted), upstream, 0, sandbox, lengths.append)
        first = await anext(pieces, b"")

        async def body() -> AsyncGenerator[bytes, None]:
            yield first
            async for piece in pieces:
                yield piece

        return Answer(_OK, _headers(wanted.digest), lengths[-1] if lengths else None, body, pieces.aclose)

    async def _direct(self, wanted: Wanted, upstream: Upstream, skip: int, sandbox: str, told: _Told) -> AsyncGenerator[bytes, None]:
        """The file straight from upstream, from some byte on; what has a digest is verified, its last bytes held back until then.

        For a turn of its own a sandbox waits as long as it takes its other files; for one of all, a while.
        """
        with self._passing_of.of(sandbox) as own:
            async with own:
                try:
                    async with asyncio.timeout(PASSING_WAIT_S):
                        await self._passing.acquire()
                except TimeoutError:
                    raise _BusyError(f"{shown(wanted.urls[0])} found no turn to pass through") from None
                try:
                    async with aclosing(_paced(self._straight(wanted, upstream, skip, told))) as pieces:
                        async for piece in pieces:
                            yield piece
                finally:
                    self._passing.release()

    async def _straight(self, wanted: Wanted, upstream: Upstream, skip: int, told: _Told) -> AsyncGenerator[bytes, None]:
        running = wanted.digest.running() if wanted.digest else None
        for number, url in enumerate(wanted.urls, 1):
            async with upstream.get(url, {"Accept-Encoding": "identity"}) as reply:
                try:
                    check(reply)
                except (NotThereError, UpstreamError):
                    if number == len(wanted.urls):
                        raise
                    continue
                told(reply.length)
                held = b""
                async for piece in reply.pieces(decoded=False):
                    if running is None or wanted.digest is None:
                        yield piece
                        continue
                    running.update(piece)
                    fresh, skip = piece[skip:], max(0, skip - len(piece))
                    held += fresh
                    if len(held) > HELD_BYTES:
                        yield held[:-HELD_BYTES]
                        held = held[-HELD_BYTES:]
                if running is not None and wanted.digest is not None and running.hexdigest() != wanted.digest.value:
                    self._counters.mismatches += 1
                    self._note_wrong(wanted.digest, (url,))
                    raise Mismatch(f"{shown(url)} is not what its index says ({wanted.digest.algorithm})")
                if held:
                    yield held
                return


_Told = Callable[[int | None], None]
"""Is told how long a file is."""


def _nobody(_: int | None) -> None:
    """Nobody wants to know."""


async def _paced(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Pieces as they are taken, until they are taken too slowly: upstream's own time does not count."""
    waited_s, taken_bytes = 0.0, 0
    async with aclosing(pieces):
        async for piece in pieces:
            given_s = time.monotonic()
            yield piece
            waited_s += time.monotonic() - given_s
            taken_bytes += len(piece)
            if waited_s >= PACE_S:
                if taken_bytes < PACE_BYTES_S * waited_s:
                    raise UpstreamError(f"the sandbox took {taken_bytes} bytes in {waited_s:.0f} s of a file that passes through")
                waited_s, taken_bytes = 0.0, 0


def _headers(digest: Digest | None) -> Headers:
    named = (("ETag", f'"{digest}"'), ("Cache-Control", "public, max-age=31536000, immutable")) if digest else ()
    return (("Content-Type", _BINARY), ("Accept-Ranges", "bytes"), *named)


def _once(download: Download) -> Callable[[], Awaitable[None]]:
    left = False

    async def leave() -> None:
        nonlocal left
        if not left:
            left = True
            await download.leave()

    return leave
