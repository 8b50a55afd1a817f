"""The cache of index pages: decides whether a stored page is fresh, and refreshes expired pages from upstream.

Invariants:
- A page is fresh for ``ttl_s`` seconds after its last check. A fresh page is served without asking upstream. An expired page is checked with
  conditional requests (ETag and Last-Modified).
- If upstream does not respond, the expired page is served and a warning is logged.
- Clients that request the same page at the same time share one refresh. The refresh continues as long as one of them is connected.
- A page is built only if all its inputs are known: if one index does not respond, the page is not built from the other indexes.
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
"""Maximum number of pages that are fetched and built at once. Fetched inputs stay in memory until their page is built."""
MAX_BUILDS: Final = 2
"""Maximum number of pages that are built at once."""
MISSING_S: Final = 60.0
"""Seconds for which a missing page is remembered. The time is short, so that a package can be installed soon after its publication."""
MAX_MISSING: Final = 4096
"""Maximum number of missing pages that are remembered."""
UNREACHABLE = "The package index that this host uses does not respond. Try again; the service's log has the reason."
TOO_LARGE = f"The page of this package in the package index is larger than {MAX_BYTES // 2**20} MiB, which is the maximum."

_CLOCK_SKEW_S = 60.0
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Refresh:
    """A refresh in progress, and the number of clients that wait for the result. At 0 waiting clients the refresh is cancelled."""

    task: asyncio.Task[CachedPage]
    waiting: int = 0


class IndexPageCache:
    """Cache of the index pages of all registries.

    Args:
        store: Store that contains the pages.
        threads: Thread pool for disk access and for building pages.
        counters: Counters of the package cache, updated by each request.
        ttl_s: Seconds for which a page is fresh: it is served without asking upstream.

    Attributes:
        pages: Store of the pages, for reading the content of a :class:`CachedPage`.
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
        """Cancel all refreshes in progress and wait until they have ended."""
        tasks = [refresh.task for refresh in self._refreshes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def get(self, page: IndexPage, upstream: Upstream, *, any_age: bool = False, fetch: bool = True) -> CachedPage:
        """Return the current version of an index page. If the stored page has expired, refresh it from upstream first.

        Args:
            page: The requested page.
            upstream: Client of the registry that the page belongs to.
            any_age: True: return a stored page even if it has expired.
            fetch: True: ask upstream if no stored page can be returned. False: return a page with ``is_missing`` set instead.

        Raises:
            HttpError: Status 502: the page could not be fetched or is too large, and no older version is stored.
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
        """Refresh the inputs that a page shares with other pages. Return the inputs by URL.

        The caller must not hold the semaphore ``_refreshing``, because the refresh of each input acquires it.
        """
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
                raise UpstreamError(f"the index page {page.key} cannot be built from what upstream sent: {type(error).__name__}") from error
        if not variants:
            return self._remember_missing(page)
        return await self.pages.save(page, tuple(version.state for version in versions), variants)

    def _expired(self, record: PageRecord | None, error: UpstreamError) -> CachedPage:
        """Return the stored version of a page that could not be refreshed. Raise HttpError if no version is stored."""
        if record is None:
            self._counters.errors += 1
            _log.warning("an index page could not be fetched, and no older version is stored: %s", error)
            raise HttpError(502, TOO_LARGE if isinstance(error, TooLargeError) else UNREACHABLE) from None
        self._counters.stale += 1
        _log.warning("a package index is served as it was %.0f s ago, because it cannot be refreshed: %s", time.time() - record.checked_s, error)
        return _stored(record)

    def _remember_missing(self, page: IndexPage) -> CachedPage:
        self._missing[page.key] = time.monotonic() + min(MISSING_S, self._ttl_s)
        if len(self._missing) > MAX_MISSING:
            self._missing.popitem(last=False)
        return CachedPage({}, is_missing=True)


def _stored(record: PageRecord) -> CachedPage:
    return CachedPage({name: digest for name, (digest, _) in record.variants.items()})
