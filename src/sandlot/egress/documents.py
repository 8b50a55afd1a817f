"""Index pages: fetched, made into what is served, kept for a while, asked for again.

Laws:
- A page is fresh for its time and asks upstream nothing meanwhile; then it is asked for with what identifies it (ETag, Last-Modified).
- Upstream that does not answer costs freshness, not packages: the old page is served, and the log says so.
- Any number of clients that want one page share one refresh; who leaves takes nothing from the others.
- What the shelf has of a page is looked at, byte by byte, before a service gives it for the first time: a failed power supply leaves files of
  the right length and the wrong bytes.
- A page is made of all its inputs or not at all: an index that does not answer is not taken for one that has nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.egress.answers import Refusal
from sandlot.egress.counters import Counters
from sandlot.egress.disk.opened import Opened
from sandlot.egress.disk.shelf import Kind, Shelf
from sandlot.egress.disk.threads import Threads
from sandlot.egress.making import SENSELESS, make_apart
from sandlot.egress.pages import Got, Input, Known, Page, State, parsed, whole, written
from sandlot.egress.sources.values import shown
from sandlot.egress.upstream import PIECE_BYTES, Reply, Upstream, UpstreamError, local_path

MAX_BYTES: Final = 48 * 1024 * 1024
"""Of one page as upstream has it."""
SMALL_BYTES: Final = 4 * 1024 * 1024
"""Beyond that, one at a time until it is made, and by a process of its own: a page takes about eight times its size meanwhile."""
BODIES: Final = 32
"""Pages that are being fetched and made at once; what has come and is not made yet lies in memory."""
MISSING_S: Final = 60.0
"""How long it is believed that there is no such page: who has just published one wants to see it."""
MISSING: Final = 4096
"""So many of them are remembered."""
SOUND: Final = 65536
"""So many bodies are known to be sound; then all are looked at anew."""
UNREACHABLE = "The package index that this host uses does not answer. Try again; the service's log says why."
TOO_LARGE = f"The package index's page is larger than {MAX_BYTES // 2**20} MiB."

_NO_PAGE = frozenset({403, 404, 410})
_OK, _NOT_MODIFIED, _FORBIDDEN = 200, 304, 403
_SKEW_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Document:
    """A page that is there.

    Args:
        variants: Name -> SHA-256 of its bytes.
        data: The bytes themselves, as far as they are still at hand; the others are on the shelf.
        missing: There is no such page upstream.
    """

    variants: Mapping[str, str]
    data: Mapping[str, bytes] = field(default_factory=dict)
    missing: bool = False


class TooLargeError(UpstreamError):
    """The page is larger than any that makes sense."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is known of an input now, it itself where it was sent, and whether it is another one than before."""

    state: State
    got: Got | None
    changed: bool


@dataclass(slots=True, eq=False)
class _Flight:
    """A refresh, and how many wait for it. When nobody does any more it ends: what somebody asks for and forgets keeps nobody waiting."""

    task: asyncio.Task[Document]
    waiting: int = 0


@dataclass(slots=True, eq=False)
class _Asking:
    """What one refresh asks with: the shared inputs that are here already, and what it holds until it is over."""

    upstream: Upstream
    shared: Mapping[str, Document]
    alone: AsyncExitStack
    is_alone: bool = False
    entering: asyncio.Lock = field(default_factory=asyncio.Lock)


class Documents:
    """The pages of all registries.

    Args:
        shelf: Where they are kept.
        threads: For the disk and for making pages.
        counters: What is counted.
        ttl_s: How long one is fresh.
    """

    def __init__(self, shelf: Shelf, threads: Threads, counters: Counters, *, ttl_s: float) -> None:
        self._shelf = shelf
        self._threads = threads
        self._counters = counters
        self._ttl_s = ttl_s
        self._flights: dict[str, _Flight] = {}
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._sound: set[str] = set()
        self._large = asyncio.Lock()
        self._makers = asyncio.Semaphore(2)
        self._bodies = asyncio.Semaphore(BODIES)

    async def aclose(self) -> None:
        """End what is being fetched."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, page: Page, upstream: Upstream, *, any_age: bool = False, fetch: bool = True) -> Document:
        """A page, fresh if that can be had.

        Args:
            page: It.
            upstream: Of its registry.
            any_age: Take one that is kept, however old it is.
            fetch: Whether upstream is asked where nothing is kept that will do; otherwise there is no such page.

        Raises:
            Refusal: It cannot be had.
        """
        until_s = self._missing.get(page.key)
        if until_s is not None and not any_age:
            if time.monotonic() < until_s:
                self._counters.hits += 1
                return Document({}, missing=True)
            del self._missing[page.key]
        known = await self._threads.run(self._known, page)
        if known is not None and (any_age or -_SKEW_S < time.time() - known.checked_s < self._ttl_s):
            self._counters.hits += not any_age
            return _document(known)
        if not fetch:
            return Document({}, missing=True)
        flight = self._flights.get(page.key)
        if flight is None:
            flight = self._flights[page.key] = _Flight(asyncio.create_task(self._refresh(page, known, upstream), name="package-index"))
            flight.task.add_done_callback(lambda _: self._landed(page.key, flight))
        self._counters.misses += 1
        flight.waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiting -= 1
            if not flight.waiting and not flight.task.done():
                self._landed(page.key, flight)
                flight.task.cancel()

    def _landed(self, key: str, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]

    async def open(self, document: Document, variant: str) -> bytes | Opened | None:
        """The bytes of a variant, or a file with them that the caller closes; None if they are gone from the shelf meanwhile."""
        if variant in document.data:
            return document.data[variant]
        small = await self._threads.run(self._small, document.variants[variant])
        return small if small is not None else await self._threads.open(self._shelf.open, Kind.BODIES, document.variants[variant])

    def _small(self, digest: str) -> bytes | None:
        """The bytes of a variant where they are few: most are, and one turn in a thread is all that they cost then."""
        opened = self._shelf.open(Kind.BODIES, digest)
        if opened is None:
            return None
        try:
            return opened.read(PIECE_BYTES, 0) if opened.size_bytes <= PIECE_BYTES else None
        finally:
            opened.close()

    async def read(self, opened: Opened, length: int, offset: int) -> bytes:
        """Some bytes of what :meth:`open` opened."""
        return await self._threads.run(opened.read, length, offset)

    def _known(self, page: Page) -> Known | None:
        """What the shelf has of a page, if it has all of it."""
        data = self._shelf.read(Kind.INDEX, page.name)
        known = parsed(data, page) if data is not None else None
        if known is None:
            return None
        for digest, size in known.variants.values():
            opened = self._shelf.open(Kind.BODIES, digest)
            if opened is None:
                return None
            try:
                sound = opened.size_bytes == size and self._is_sound(opened, digest)
            finally:
                opened.close()
            if not sound:
                self._shelf.remove(Kind.BODIES, digest)
                return None
        return known

    def _is_sound(self, opened: Opened, digest: str) -> bool:
        """Whether a body is what its name says: once is enough, because what makes it another one ends this service too."""
        if digest in self._sound:
            return True
        running, offset = hashlib.sha256(), 0
        while piece := opened.read(PIECE_BYTES, offset):
            running.update(piece)
            offset += len(piece)
        if running.hexdigest() != digest:
            _log.warning("a page of the package cache is not what it was: it is fetched anew")
            return False
        if len(self._sound) >= SOUND:
            self._sound.clear()
        self._sound.add(digest)
        return True

    async def _refresh(self, page: Page, known: Known | None, upstream: Upstream) -> Document:
        """Ask upstream, and make the page anew if anything of it is."""
        try:
            # First of all and without a turn: these are refreshes as well, and need one.
            shared = {each.url: await self.get(whole(f"shared/{each.url}", each.url), upstream) for each in page.inputs if each.shared}
        except UpstreamError as error:
            return self._old(known, error)
        async with self._bodies, AsyncExitStack() as alone:
            return await self._remade(page, known, _Asking(upstream, shared, alone))

    async def _remade(self, page: Page, known: Known | None, asking: _Asking) -> Document:
        before = known.inputs if known is not None else (None,) * len(page.inputs)
        try:
            found = await _all([self._ask(each, old, asking) for each, old in zip(page.inputs, before, strict=True)])
            if known is not None and not any(each.changed for each in found):
                return await self._again(page, Known(time.time(), tuple(each.state for each in found), known.variants))
            # What has not changed was not sent; the page is made of it all the same.
            sent = [
                each if each.got is not None or not each.state.there else await self._ask(input_, None, asking)
                for input_, each in zip(page.inputs, found, strict=True)
            ]
        except UpstreamError as error:
            return self._old(known, error)
        there = [each.got for each in sent if each.got is not None]
        if not there:
            return self._nothing(page)
        async with self._makers:
            try:
                made = await (make_apart(page.make, there) if asking.is_alone else self._threads.run(page.make, there))
            except SENSELESS as error:
                return self._old(known, UpstreamError(f"{page.key} makes no sense: {type(error).__name__}"))
        if not made:
            return self._nothing(page)
        return await self._threads.run(self._kept, page, tuple(each.state for each in sent), made)

    async def _ask(self, each: Input, old: State | None, asking: _Asking) -> _Asked:
        if each.shared:
            return await self._ask_shared(each, old, asking)
        if each.listing:
            names = await self._threads.run(_listing, each.url)
            digest = hashlib.sha256(names).hexdigest()
            return _Asked(
                State(each.url, there=True, digest=digest), Got(each.url, "application/json", names, flat=True), old is None or old.digest != digest
            )
        headers = {"Accept": each.accept}
        if old is not None and old.there:
            headers |= {name: value for name, value in (("If-None-Match", old.etag), ("If-Modified-Since", old.modified)) if value}
        async with asking.upstream.get(each.url, headers) as reply:
            if reply.status == _NOT_MODIFIED and old is not None:
                return _Asked(old, None, changed=False)
            if reply.status in _NO_PAGE:
                if reply.status == _FORBIDDEN:
                    _log.warning("%s: status 403, which counts as having no such package", shown(each.url))
                return _Asked(State(each.url, there=False), None, old is None or old.there)
            if reply.status != _OK:
                raise UpstreamError(f"{shown(each.url)}: status {reply.status}")
            body = await self._read(reply, asking)
            digest = hashlib.sha256(body).hexdigest()
            state = State(each.url, True, reply.headers.get("etag", ""), reply.headers.get("last-modified", ""), digest)
            media_type = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
            return _Asked(state, Got(reply.url, media_type, body), old is None or old.digest != digest)

    async def _ask_shared(self, each: Input, old: State | None, asking: _Asking) -> _Asked:
        document = asking.shared[each.url]
        if document.missing:
            return _Asked(State(each.url, there=False), None, old is None or old.there)
        digest = document.variants["body"]
        body = await self.open(document, "body")
        if isinstance(body, Opened):
            opened = body
            try:
                if opened.size_bytes > SMALL_BYTES:
                    await self._be_alone(asking)
                body = await self.read(opened, opened.size_bytes, 0)
            finally:
                opened.close()
        if body is None:
            raise UpstreamError(f"{shown(each.url)} was removed to make room")
        return _Asked(State(each.url, there=True, digest=digest), Got(each.url, "text/html", body, flat=True), old is None or old.digest != digest)

    async def _read(self, reply: Reply, asking: _Asking) -> bytes:
        pieces, size = [], 0
        async for piece in reply.pieces(decoded=True):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise TooLargeError(f"{shown(reply.url)} is larger than {MAX_BYTES} bytes")
            if size > SMALL_BYTES:
                await self._be_alone(asking)
        return b"".join(pieces)

    async def _be_alone(self, asking: _Asking) -> None:
        """Wait until no other page is large, and be the one until the refresh is over. Several inputs of one page may be large."""
        async with asking.entering:
            if not asking.is_alone:
                await asking.alone.enter_async_context(self._large)
                asking.is_alone = True

    async def _again(self, page: Page, known: Known) -> Document:
        await self._threads.run(self._write, page, known)
        return _document(known)

    def _kept(self, page: Page, inputs: tuple[State, ...], made: Mapping[str, bytes]) -> Document:
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in made.items()}
        if all(self._shelf.put(Kind.BODIES, digests[name], data) for name, data in made.items()):
            self._write(page, Known(time.time(), inputs, {name: (digests[name], len(data)) for name, data in made.items()}))
        return Document(digests, data=made)

    def _write(self, page: Page, known: Known) -> None:
        self._shelf.put(Kind.INDEX, page.name, written(page, known))

    def _old(self, known: Known | None, error: UpstreamError) -> Document:
        if known is None:
            self._counters.errors += 1
            _log.warning("a package index could not be read: %s", error)
            raise Refusal(502, TOO_LARGE if isinstance(error, TooLargeError) else UNREACHABLE) from None
        self._counters.stale += 1
        _log.warning("a package index is served as it was %.0f s ago: %s", time.time() - known.checked_s, error)
        return _document(known)

    def _nothing(self, page: Page) -> Document:
        """There is no such page, which is remembered for a moment."""
        self._missing[page.key] = time.monotonic() + min(MISSING_S, self._ttl_s)
        if len(self._missing) > MISSING:
            self._missing.popitem(last=False)
        return Document({}, missing=True)


async def _all(asking: Sequence[Coroutine[Any, Any, _Asked]]) -> list[_Asked]:
    """Wait for all of them; then raises what the first one raised that did."""
    found = await asyncio.gather(*asking, return_exceptions=True)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return [each for each in found if not isinstance(each, BaseException)]


def _document(known: Known) -> Document:
    return Document({name: digest for name, (digest, _) in known.variants.items()})


def _listing(url: str) -> bytes:
    """The names of the files in a folder of this machine; none where it is not there, as pip takes it."""
    try:
        with os.scandir(local_path(url)) as entries:
            return json.dumps(sorted(entry.name for entry in entries if entry.is_file())).encode()
    except OSError as error:
        _log.warning("%s cannot be listed: %s", shown(url), error.strerror)
        return b"[]"
