"""One file on its way from upstream to the shelf, for any number of clients at once.

Laws:
- Nobody gets the last bytes of a file before the whole is what its index says; a file that is not is cut off and kept by nobody.
- Who leaves takes nothing from the others. When the last one has left, it goes on for a moment, because clients come back, and then ends.
- A connection that breaks is taken up where it broke, and at the next place where the same file is said to be if it is gone there.
- A place that gives a wrong file is asked last from then on; where nobody has had a byte of it, the next place is asked at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final

from sandlot.egress.counters import Counters
from sandlot.egress.digests import Digest
from sandlot.egress.disk.opened import Draft
from sandlot.egress.disk.shelf import Kind, Shelf
from sandlot.egress.disk.threads import Threads
from sandlot.egress.sources.values import shown
from sandlot.egress.upstream import PIECE_BYTES, Reply, Upstream, UpstreamError

HELD_BYTES: Final = 64 * 1024
"""What is held back of a file until the whole of it is known to be right."""
LINGER_S: Final = 10.0
_GROWTH_BYTES: Final = 16 * 1024 * 1024
"""Room that is asked for at once: what has not come yet takes nothing of the others, whatever its length is said to be."""
_TRIES: Final = 3
_OK, _PARTIAL, _BEYOND, _GONE = 200, 206, 416, frozenset({401, 403, 404, 410})
_log = logging.getLogger(__name__)


class NotThereError(Exception):
    """Upstream has no such file."""


class NoRoomError(Exception):
    """The shelf has no room for it: it can only be passed through."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file.

    Args:
        urls: Where it is; the next one is asked where one does not have it.
        digest: What it has to be; None if nobody says, and then it is passed through and not kept.
    """

    urls: tuple[str, ...]
    digest: Digest | None


class Mismatch(UpstreamError):  # noqa: N818 - an UpstreamError, by name
    """The file is not what its index says."""


class Download:
    """One download. It begins with :meth:`start`.

    Args:
        wanted: The file. It has a digest: what has none is never written down.
        upstream: Where it comes from.
        shelf: Where it goes.
        threads: For the disk.
        counters: Where a wrong file is counted.
    """

    def __init__(self, wanted: Wanted, upstream: Upstream, shelf: Shelf, threads: Threads, counters: Counters) -> None:
        self.wanted = wanted
        self._upstream = upstream
        self._shelf = shelf
        self._threads = threads
        self._counters = counters
        self._draft: Draft | None = None
        self._running = wanted.digest.running() if wanted.digest is not None else None
        self._ready_bytes = 0
        self._is_given = False
        self._followers = 0
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._may_linger: Callable[[], bool] = lambda: False
        self.length: int | None = None
        self.wrong: list[str] = []
        """Where wrong files came from."""
        self.verified = False
        self.over = False
        """Nobody may join any more."""
        self.task: asyncio.Task[None] | None = None

    @property
    def lingers(self) -> bool:
        """Whether it goes on although nobody waits for it."""
        return self._linger is not None and not self.over

    def start(self, ended: Callable[[Download], None], may_linger: Callable[[], bool]) -> None:
        """Begin.

        Args:
            ended: Called once, at the end, with this.
            may_linger: Whether it may go on for a moment when nobody waits for it.
        """
        self._may_linger = may_linger
        self.task = asyncio.create_task(self._run(), name="package-download")
        self.task.add_done_callback(lambda _: ended(self))

    def join(self) -> None:
        """One client more. It calls :meth:`leave` once."""
        self._followers += 1
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    async def leave(self) -> None:
        """One less."""
        self._followers -= 1
        if self._followers:
            return
        if self.over or self.task is None:
            await self._close()
        elif self.verified:
            return  # it is being kept, which takes a moment
        elif self._draft is None or not self._may_linger():
            self.task.cancel()  # what has not begun waits behind nobody's back
        else:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._give_up)

    def _give_up(self) -> None:
        if self.task is not None and not self.verified:
            self.task.cancel()

    async def begun(self) -> int | None:
        """Wait until the length is known; None if upstream does not tell it.

        Raises:
            NotThereError: There is no such file.
            NoRoomError: It can only be passed through.
            UpstreamError: It cannot be had.
        """
        await self._until(lambda: self._draft is not None or self._error is not None)
        if self._error is not None:
            raise self._error
        return self.length

    async def ended(self) -> int:
        """Wait until it is verified; how long it is.

        Raises:
            NotThereError: There is no such file.
            NoRoomError: It can only be passed through.
            UpstreamError: It cannot be had.
        """
        await self._until(lambda: self.verified or self._error is not None)
        if not self.verified and self._error is not None:
            raise self._error
        return self._ready_bytes

    async def pieces(self, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes, None]:
        """The file, or some of it, as it comes.

        Args:
            start: Of the first byte.
            length: How much; None is all that follows.

        Raises:
            NoRoomError: The disk became full meanwhile; what has been given so far is right as far as anybody knows.
            UpstreamError: It broke off, or is wrong.
        """
        offset = start
        while length is None or offset < start + length:
            if self._ready_bytes <= offset and not self.verified:
                if self._error is not None:
                    raise self._error
                await self._news.wait()
                continue
            draft = self._draft
            most = min(PIECE_BYTES, self._ready_bytes - offset, PIECE_BYTES if length is None else start + length - offset)
            if draft is None or most <= 0:
                return
            self._is_given = True
            piece = await self._threads.run(draft.read, most, offset)
            offset += len(piece)
            yield piece

    async def _run(self) -> None:
        try:
            await self._fetch()
        except (UpstreamError, NotThereError, NoRoomError) as error:
            self._error = error
        except OSError as error:
            _log.warning("the package cache cannot write: %s", error.strerror)
            self._error = NoRoomError()
        except asyncio.CancelledError:
            self._error = UpstreamError("it was given up, because nobody waited for it")
            raise
        except Exception:  # noqa: BLE001 - whoever waits is told; it is logged with its traceback
            _log.exception("a download failed")
            self._error = UpstreamError("the download failed")
        finally:
            self.over = True
            self._tell()
            if not self._followers:
                await self._close()

    async def _fetch(self) -> None:
        begun: list[str] = []
        wrong: Mismatch | None = None
        for number, url in enumerate(self.wanted.urls, 1):
            begun.append(url)
            try:
                await self._fetch_from(url)
                self._verify(url)
                break
            except Mismatch as error:
                self.wrong += begun
                if number == len(self.wanted.urls) or self._is_given:
                    raise
                wrong, begun = error, []
                await self._begin_anew()
            except (NotThereError, UpstreamError) as error:
                if number == len(self.wanted.urls):
                    raise wrong or error from None
        draft = self._draft
        if draft is None:
            raise NotThereError
        self.verified = True
        self._tell(draft.size_bytes)
        if self.wanted.digest is not None:
            await self._threads.run(self._shelf.keep, draft, Kind.FILES, str(self.wanted.digest))

    def _verify(self, url: str) -> None:
        digest = self.wanted.digest
        if digest is not None and self._running is not None and self._running.hexdigest() != digest.value:
            self._counters.mismatches += 1
            raise Mismatch(f"{shown(url)} is not what its index says ({digest.algorithm})")

    async def _begin_anew(self) -> None:
        """With another draft."""
        draft, self._draft = self._draft, None
        self._running = self.wanted.digest.running() if self.wanted.digest is not None else None
        self._ready_bytes = 0
        if draft is not None:
            await self._threads.run(draft.close)

    async def _fetch_from(self, url: str) -> None:
        """All of it into the draft, taken up again where it breaks."""
        version = ""
        for attempt in range(_TRIES):
            done = self._draft.size_bytes if self._draft else 0
            if done and done == self.length:
                return
            try:
                again = {"Range": f"bytes={done}-", **({"If-Range": version} if version else {})} if done else {}
                async with self._upstream.get(url, {"Accept-Encoding": "identity", **again}) as reply:
                    if self._is_whole(reply, done):
                        return
                    version = _version(reply)
                    if self._draft is None:
                        await self._begin(reply.length)
                    skip = 0 if reply.status == _PARTIAL and reply.headers.get("content-range", "").startswith(f"bytes {done}-") else done
                    async for piece in reply.pieces(decoded=False):
                        fresh = piece[skip:]
                        skip = max(0, skip - len(piece))
                        if fresh:
                            await self._take(fresh)
                return
            except Mismatch:
                raise
            except UpstreamError:
                if self._draft is None or attempt + 1 == _TRIES:
                    raise

    def _is_whole(self, reply: Reply, done: int) -> bool:
        """Whether there is nothing more to come: it broke off behind the last byte.

        Raises:
            NotThereError: It is not there, or no more.
            UpstreamError: It is something else, or another file than it was.
        """
        if done and reply.status == _BEYOND and reply.headers.get("content-range", "").strip() == f"bytes */{done}":
            return True
        check(reply)
        if done and reply.status == _OK and None not in {reply.length, self.length} and reply.length != self.length:
            self._counters.mismatches += 1
            raise Mismatch(f"{shown(reply.url)} has become another file in the middle of its download")
        return False

    async def _begin(self, length: int | None) -> None:
        draft = await self._threads.open(self._shelf.draft)
        if draft is None:
            raise NoRoomError
        has_room = False
        try:
            has_room = await self._threads.run(self._shelf.make_room, draft, _growth(draft, length), length or 0)
        finally:
            if not has_room:  # or it was cancelled: nobody else knows this draft yet
                await self._threads.run(draft.close)
        if not has_room:
            raise NoRoomError
        self.length = length
        self._draft = draft
        self._tell(0)

    async def _take(self, piece: bytes) -> None:
        draft = self._draft
        assert draft is not None  # noqa: S101 - for the type checker: it was begun
        if draft.size_bytes + len(piece) > draft.allocated_bytes and not await self._threads.run(
            self._shelf.make_room, draft, _growth(draft, self.length)
        ):
            raise NoRoomError
        await self._threads.run(self._write, draft, piece)
        self._tell(max(0, draft.size_bytes - HELD_BYTES))

    def _write(self, draft: Draft, piece: bytes) -> None:
        if self._running is not None:
            self._running.update(piece)
        draft.write(piece)

    def _tell(self, ready_bytes: int | None = None) -> None:
        """Wake everybody who waits."""
        if ready_bytes is not None:
            self._ready_bytes = ready_bytes
        self._news.set()
        self._news = asyncio.Event()

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._news.wait()

    async def _close(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
        draft, self._draft = self._draft, None
        if draft is not None:
            await self._threads.run(draft.close)


def _version(reply: Reply) -> str:
    """What ``If-Range`` may have (RFC 9110, section 13.1.5); empty where there is nothing."""
    etag = reply.headers.get("etag", "")
    return etag if etag.startswith('"') else "" if etag else reply.headers.get("last-modified", "")


def _growth(draft: Draft, length: int | None) -> int:
    return _GROWTH_BYTES if length is None else max(1, min(_GROWTH_BYTES, length - draft.allocated_bytes))


def check(reply: Reply) -> None:
    """Whether an answer has a file.

    Raises:
        NotThereError: There is none.
        UpstreamError: It is something else.
    """
    if reply.status in _GONE:
        raise NotThereError
    if reply.status not in {_OK, _PARTIAL}:
        raise UpstreamError(f"{shown(reply.url)}: status {reply.status}")
