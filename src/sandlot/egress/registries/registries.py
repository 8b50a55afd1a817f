"""All registries, and what they share: connections to upstream, pages, files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from sandlot.egress.answers import Answer, Refusal
from sandlot.egress.counters import Counters
from sandlot.egress.disk.shelf import Shelf
from sandlot.egress.disk.threads import Threads
from sandlot.egress.documents import Documents
from sandlot.egress.files import Files
from sandlot.egress.registries.asked import Request
from sandlot.egress.registries.debian import DebianRegistry
from sandlot.egress.registries.npm import NpmRegistry
from sandlot.egress.registries.pypi import PypiRegistry
from sandlot.egress.sources.machine import Sources
from sandlot.egress.upstream import AT_ONCE, Upstream


class Registries:
    """They.

    Args:
        sources: Where packages come from.
        shelf: Where they are kept.
        threads: For the disk.
        counters: What is counted.
        ttl_s: How long an index page is fresh.
        origin: Where sandboxes find the cache: ``http://HOST:PORT``.
    """

    def __init__(self, sources: Sources, shelf: Shelf, threads: Threads, counters: Counters, *, ttl_s: float, origin: str) -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        self._documents = Documents(shelf, threads, counters, ttl_s=ttl_s)
        self._files = Files(shelf, threads, counters)
        self._upstreams = [Upstream(each.access, threads, slots, counters) for each in (sources.pypi, sources.npm, sources.debian)]
        pypi, npm, debian = self._upstreams
        apt = DebianRegistry(sources.debian, debian, self._documents, self._files, shelf, threads)
        self._roots: Mapping[str, Callable[[Request], Awaitable[Answer]]] = {
            "pypi": PypiRegistry(sources.pypi, pypi, self._documents, self._files).answer,
            "npm": NpmRegistry(sources.npm, npm, self._documents, self._files, origin=origin).answer,
            "debian": apt.answer,
            "debian-security": apt.answer,
        }

    async def answer(self, request: Request) -> Answer:
        """Answer a request.

        Raises:
            Refusal: There is nothing to be had.
        """
        answer = self._roots.get(request.segments[0]) if request.segments else None
        if answer is None:
            raise Refusal(404, "This is the package index of a sandbox: /pypi/simple/NAME/, /npm/NAME, /debian/ and /debian-security/.")
        return await answer(request)

    async def aclose(self) -> None:
        """End what is being fetched, and close the connections."""
        await self._files.aclose()
        await self._documents.aclose()
        for upstream in self._upstreams:
            await upstream.aclose()
