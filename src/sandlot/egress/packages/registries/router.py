"""Routes requests to the registries and owns the objects that all registries share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.http import HttpError, Request, Response
from sandlot.egress.packages.index_page_cache import IndexPageCache
from sandlot.egress.packages.package_files import PackageFiles
from sandlot.egress.packages.registries.debian import DebianRegistry
from sandlot.egress.packages.registries.npm import NpmRegistry
from sandlot.egress.packages.registries.pypi import PypiRegistry
from sandlot.egress.packages.store.store import PackageStore
from sandlot.egress.packages.upstream import MAX_REQUESTS, Upstream
from sandlot.host.blocking import BlockingPool


class RegistryRouter:
    """Passes each request to the registry that the first segment of its path names.

    Args:
        sources: Upstream indexes, with their certificates, proxies and credentials.
        store: Store of downloaded files and index pages.
        threads: Thread pool for disk access.
        counters: Counters of the package cache, updated by each request.
        ttl_s: Seconds for which a cached index page is served without asking upstream.
        origin: Origin of the package cache inside a sandbox, as ``http://HOST:PORT``.
    """

    def __init__(self, sources: PackageSources, store: PackageStore, threads: BlockingPool, counters: Counters, *, ttl_s: float, origin: str) -> None:
        slots = asyncio.Semaphore(MAX_REQUESTS)
        self._index_pages = IndexPageCache(store, threads, counters, ttl_s=ttl_s)
        self._files = PackageFiles(store, threads, counters)
        self._upstreams = [Upstream(each.access, threads, slots, counters) for each in (sources.pypi, sources.npm, sources.debian)]
        pypi, npm, debian = self._upstreams
        apt = DebianRegistry(sources.debian, debian, self._index_pages, self._files)
        self._roots: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
            "pypi": PypiRegistry(sources.pypi, pypi, self._index_pages, self._files).respond,
            "npm": NpmRegistry(sources.npm, npm, self._index_pages, self._files, origin=origin).respond,
            "debian": apt.respond,
            "debian-security": apt.respond,
        }

    async def respond(self, request: Request) -> Response:
        """Return the response of the registry that the request's path names.

        Raises:
            HttpError: There is no such page or file, or upstream does not respond.
        """
        respond = self._roots.get(request.segments[0]) if request.segments else None
        if respond is None:
            raise HttpError(404, "The package index has no such path. Use /pypi/simple/NAME/, /npm/NAME, /debian/... or /debian-security/...")
        return await respond(request)

    async def aclose(self) -> None:
        """Cancel all downloads and all refreshes of index pages, then close the connections to upstream."""
        await self._files.aclose()
        await self._index_pages.aclose()
        for upstream in self._upstreams:
            await upstream.aclose()
