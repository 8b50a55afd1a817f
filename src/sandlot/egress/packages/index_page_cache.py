"""The cache of index pages: how long a page is fresh, and how it is refreshed.

Invariants:
- A fresh page is served without asking upstream. An expired page is requested with its ETag and Last-Modified.
- If upstream does not respond, the expired page is served, and the log says so.
- All clients that want a page share one refresh. A client that leaves does not disturb the others.
- A page is built from all its inputs or not at all: an index that does not respond does not count as an index without the package.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.http import HttpError
from sandlot.egress.packages.index_page import IndexPage, PageRecord, unmodified_page
from sandlot.egress.packages.index_page_inputs import MAX_BYTES, InputFetcher, TooLargeError
from sandlot.egress.packages.index_page_store import CachedPage, IndexPageStore
from sandlot.egress.packages.index_page_worker import MALFORMED, build_in_process
from sandlot.egress.packages.store.store import PackageStore
from sandlot.egress.packages.upstream import Upstream, UpstreamError
from sandlot.host.blocking import BlockingPool

MAX_REFRESHES: Final = 32
"""Pages that are fetched and built at once. Fetched inputs are in memory until the page is built."""
MAX_BUILDS: Final = 2
"""Pages that are built at once."""
MISSING_S: Final = 60.0
"""Time for which a missing page is remembered. Short, so that a package can be installed soon after its publication."""
MAX_MISSING: Final = 4096
"""Missing pages that are remembered."""
UNREACHABLE = "The package index that this host uses does not respond. Try again; the service's log has the reason."
TOO_LARGE = f"The package index's page is larger than {MAX_BYTES // 2**20} MiB."

_CLOCK_SKEW_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Refresh:
    """A refresh in progress. It is cancelled when no client waits for it any more, so that abandoned requests do not delay others."""

    task: asyncio.Task[CachedPage]
    waiting: int = 0


class IndexPageCache:
    """Index pages of all registries.

    Args:
        store: The package store.
        threads: Threads for the disk and for building pages.
        counters: Counters of the cache.
        ttl_s: Seconds for which a page is fresh.

    Attributes:
        pages: The stored pages, for reading the content of a :class:`CachedPage`.
    """

    def __init__(self, store: PackageStore, threads: BlockingPool, counters: Counters, *, ttl_s: float) -> None:
        self.pages = IndexPageStore(store, threads)
        self._threads = threads
        self._counters = counters
        self._ttl_s = ttl_s
        self._refreshes: dict[str, _Refresh] = {}
        self._missing: OrderedDict[str, float] = OrderedDict()
        self._large = asyncio.Lock()
        self._building = asyncio.Semaphore(MAX_BUILDS)
        self._refreshing = asyncio.Semaphore(MAX_REFRESHES)

    async def aclose(self) -> None:
        """Cancel all refreshes."""
        tasks = [refresh.task for refresh in self._refreshes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, page: IndexPage, upstream: Upstream, *, any_age: bool = False, fetch: bool = True) -> CachedPage:
        """Return a page, refreshed if it has expired.

        Args:
            page: The page.
            upstream: Client of its registry.
            any_age: True: return a stored page of any age.
            fetch: True: ask upstream if no stored page can be used. False: such a page counts as missing.

        Raises:
            HttpError: Upstream does not respond, or the page is too large, and no older version is stored.
        """
        until_s = self._missing.get(page.key)
        if until_s is not None and not any_age:
            if time.monotonic() < until_s:
                self._counters.hits += 1
                return CachedPage({}, is_missing=True)
            del self._missing[page.key]
        record = await self.pages.load(page)
        if record is not None and (any_age or -_CLOCK_SKEW_S < time.time() - record.checked_s < self._ttl_s):
            self._counters.hits += not any_age
            return _stored(record)
        if not fetch:
            return CachedPage({}, is_missing=True)
        refresh = self._refreshes.get(page.key)
        if refresh is None:
            refresh = self._refreshes[page.key] = _Refresh(asyncio.create_task(self._refresh(page, record, upstream), name="package-index"))
            refresh.task.add_done_callback(lambda _: self._forget(page.key, refresh))
        self._counters.misses += 1
        refresh.waiting += 1
        try:
            return await asyncio.shield(refresh.task)
        finally:
            refresh.waiting -= 1
            if not refresh.waiting and not refresh.task.done():
                self._forget(page.key, refresh)
                refresh.task.cancel()

    def _forget(self, key: str, refresh: _Refresh) -> None:
        if self._refreshes.get(key) is refresh:
            del self._refreshes[key]

    async def _refresh(self, page: IndexPage, record: PageRecord | None, upstream: Upstream) -> CachedPage:
        try:
            shared = await self._refresh_shared(page, upstream)
            async with self._refreshing, InputFetcher(upstream, self._threads, shared, self.pages, self._large) as fetcher:
                return await self._build_if_changed(page, record, fetcher)
        except UpstreamError as error:
            return self._expired(record, error)

    async def _refresh_shared(self, page: IndexPage, upstream: Upstream) -> Mapping[str, CachedPage]:
        """Refresh the inputs that are stored as separate pages. Called without a slot of :data:`MAX_REFRESHES`, because these refreshes need one."""
        return {each.url: await self.get(unmodified_page(f"shared/{each.url}", each.url), upstream) for each in page.inputs if each.is_shared}

    async def _build_if_changed(self, page: IndexPage, record: PageRecord | None, fetcher: InputFetcher) -> CachedPage:
        versions = await fetcher.fetch_changed(page.inputs, record.inputs if record is not None else (None,) * len(page.inputs))
        if record is not None and not any(version.is_changed for version in versions):
            checked = PageRecord(time.time(), tuple(version.state for version in versions), record.variants)
            await self.pages.save_record(page, checked)
            return _stored(checked)
        versions = await fetcher.fetch_missing(page.inputs, versions)
        inputs = [version.content for version in versions if version.content is not None]
        if not inputs:
            return self._remember_missing(page)
        async with self._building:
            try:
                variants = await (build_in_process(page.build, inputs) if fetcher.is_large else self._threads.run(page.build, inputs))
            except MALFORMED as error:
                raise UpstreamError(f"{page.key} is malformed: {type(error).__name__}") from error
        if not variants:
            return self._remember_missing(page)
        return await self.pages.save(page, tuple(version.state for version in versions), variants)

    def _expired(self, record: PageRecord | None, error: UpstreamError) -> CachedPage:
        """Return the stored version of a page that could not be refreshed."""
        if record is None:
            self._counters.errors += 1
            _log.warning("a package index could not be read: %s", error)
            raise HttpError(502, TOO_LARGE if isinstance(error, TooLargeError) else UNREACHABLE) from None
        self._counters.stale += 1
        _log.warning("a package index is served as it was %.0f s ago: %s", time.time() - record.checked_s, error)
        return _stored(record)

    def _remember_missing(self, page: IndexPage) -> CachedPage:
        self._missing[page.key] = time.monotonic() + min(MISSING_S, self._ttl_s)
        if len(self._missing) > MAX_MISSING:
            self._missing.popitem(last=False)
        return CachedPage({}, is_missing=True)


def _stored(record: PageRecord) -> CachedPage:
    return CachedPage({name: digest for name, (digest, _) in record.variants.items()})
