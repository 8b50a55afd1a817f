"""Routes requests to the registries and owns the objects that all registries share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from sandlot.egress.outbound.connector import Connector
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.values import OciSources
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.http import HttpError, Request, Response
from sandlot.egress.packages.index_page_cache import IndexPageCache
from sandlot.egress.packages.package_files import PackageFiles
from sandlot.egress.packages.redirects import CheckedRedirects
from sandlot.egress.packages.registries.debian import DebianRegistry
from sandlot.egress.packages.registries.npm import NpmRegistry
from sandlot.egress.packages.registries.oci import OciRegistry
from sandlot.egress.packages.registries.oci_images import TAG_S, RegistryImages
from sandlot.egress.packages.registries.oci_tokens import RegistryTokens
from sandlot.egress.packages.registries.pypi import PypiRegistry
from sandlot.egress.packages.store.store import PackageStore
from sandlot.egress.packages.upstream import MAX_REQUESTS, Upstream
from sandlot.egress.policy.addresses import Network
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
        private: Networks that registries of images may redirect to although their addresses are not public.

    Attributes:
        images: Images of the registries that the operator has named.
    """

    def __init__(
        self,
        sources: PackageSources,
        store: PackageStore,
        threads: BlockingPool,
        counters: Counters,
        *,
        ttl_s: float,
        origin: str,
        private: Collection[Network] = (),
    ) -> None:
        slots = asyncio.Semaphore(MAX_REQUESTS)
        self._index_pages = IndexPageCache(store, threads, counters, ttl_s=ttl_s)
        self._files = PackageFiles(store, threads, counters)
        self._upstreams = [Upstream(each.access, threads, slots, counters) for each in (sources.pypi, sources.npm, sources.debian)]
        pypi, npm, debian = self._upstreams
        self._connector = Connector(private)
        self.images = self._open_images(sources.oci, store, threads, counters, slots, tag_s=min(TAG_S, ttl_s))
        apt = DebianRegistry(sources.debian, debian, self._index_pages, self._files)
        self._roots: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
            "pypi": PypiRegistry(sources.pypi, pypi, self._index_pages, self._files).respond,
            "npm": NpmRegistry(sources.npm, npm, self._index_pages, self._files, origin=origin).respond,
            "debian": apt.respond,
            "debian-security": apt.respond,
            "v2": OciRegistry(self.images).respond,
        }

    async def respond(self, request: Request) -> Response:
        """Return the response of the registry that the request's path names.

        Raises:
            HttpError: There is no such page or file, or upstream does not respond.
        """
        respond = self._roots.get(request.segments[0]) if request.segments else None
        if respond is None:
            raise HttpError(
                404, "The package index has no such path. Use /pypi/simple/NAME/, /npm/NAME, /debian/..., /debian-security/... or /v2/..."
            )
        return await respond(request)

    async def aclose(self) -> None:
        """Cancel all downloads and all refreshes of index pages, then close the connections to upstream."""
        await self._files.aclose()
        await self._index_pages.aclose()
        for upstream in self._upstreams:
            await upstream.aclose()
        self._connector.close()

    def _open_images(
        self, sources: OciSources, store: PackageStore, threads: BlockingPool, counters: Counters, slots: asyncio.Semaphore, *, tag_s: float
    ) -> RegistryImages:
        access = sources.access
        guard = CheckedRedirects(self._connector)
        # A request to a token server is made during a request to a registry, so it needs a slot of its own.
        tokens = Upstream(replace(access, credentials=()), threads, asyncio.Semaphore(MAX_REQUESTS), counters, guard=guard)
        registry = Upstream(access, threads, slots, counters, authenticator=RegistryTokens(access, tokens), guard=guard)
        self._upstreams += [tokens, registry]
        return RegistryImages(sources, registry, self._files, store, threads, tag_s=tag_s)
