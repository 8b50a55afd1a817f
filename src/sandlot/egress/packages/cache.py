"""The package cache: serves package indexes, package files and images to sandboxes, and images to the service itself.

Guests open streams, each of which carries one HTTP connection. These paths are served::

    /pypi/simple/NAME/   /pypi/files/...         Python
    /npm/NAME            /npm/NAME/-/FILE.tgz    JavaScript
    /debian/...          /debian-security/...    Debian
    /v2/...                                      images of registries that the operator has named

Invariants:
- The cache is read-only and serves only packages and images. No path leads to a host that the sandbox chose or to another file of this machine.
- Packages come from the indexes that pip, npm and apt of this machine are configured to use (upstream). No response contains their credentials.
- A Python or npm file and a part of an image must match the digest that its index names. Debian packages are verified by apt in the sandbox.
- HTTP libraries are imported and the machine's configuration is read at the first connection, so that a service starts
  faster if no sandbox installs packages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.fairness import ConcurrencyLimiter
from sandlot.egress.packages.store.store import PackageStore, SharedDisk
from sandlot.egress.policy.addresses import Network
from sandlot.host.blocking import BlockingPool
from sandlot.model.errors import ErrorCode, UnavailableError
from sandlot.model.images import Image, ImageReference, Layer

if TYPE_CHECKING:
    from sandlot.egress.packages.http import Request, Response
    from sandlot.egress.packages.http_connection import HttpConnection, Stream
    from sandlot.egress.packages.registries.router import RegistryRouter

ORIGIN = "http://127.0.0.1:4479"
"""Origin of the package cache inside a sandbox. The guest listens on this address and port."""
DISK_THREADS = 6
"""Number of threads of the package cache, for disk access and for building small index pages."""


class PackageCache:
    """Serves packages to sandboxes, and implements the image registry of core. :meth:`start` must be called first.

    Args:
        folder: Folder of the package store; created if it does not exist. Several services of this host may share it.
        read_sources: Returns the upstream indexes: :meth:`PackageSources.of_this_machine`, except in tests. Called at the first connection, in
            a thread, because it may block.
        max_bytes: Maximum disk space of the folder.
        ttl_s: Seconds for which a cached index page is served without asking upstream.
        origin: Origin of the package cache inside a sandbox, as ``http://HOST:PORT``. Used in npm's metadata, which contains absolute URLs.
        private: Networks that registries of images may redirect to although their addresses are not public.
    """

    def __init__(
        self,
        folder: Path,
        read_sources: Callable[[], PackageSources],
        *,
        max_bytes: int,
        ttl_s: float,
        origin: str = ORIGIN,
        private: Collection[Network] = (),
    ) -> None:
        self._counters = Counters()
        self._store = PackageStore(folder, max_bytes, self._counters)
        self._threads = BlockingPool(DISK_THREADS, "packages")
        self._read_sources = read_sources
        self._ttl_s = ttl_s
        self._origin = origin
        self._private = private
        self._opening = asyncio.Lock()
        self._opened: tuple[RegistryRouter, type[HttpConnection]] | None = None
        self._closed = False
        self._limiter = ConcurrencyLimiter()

    def share_disk(self, disk: SharedDisk) -> None:
        """Leave disk space free that others have reserved. Without this call, little more than the limit of the folder bounds the cache."""
        self._store.share_disk(disk)

    async def reclaim(self, wanted_bytes: int) -> int:
        """Remove the least recently used files to free disk space for others. Return the freed bytes; 0 if all files are too few."""
        return await self._threads.run(self._store.reclaim, wanted_bytes)

    async def start(self) -> None:
        """Create the folder of the package store, and remove incomplete files that killed services left there.

        Raises:
            HostError: The folder is not writable.
        """
        await self._threads.run(self._store.prepare)

    async def aclose(self) -> None:
        """Cancel all downloads and stop serving. Responses in progress fail. Idempotent."""
        self._closed = True
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened[0].aclose()
        await self._threads.aclose()

    async def serve(self, stream: Stream, *, sandbox: str, allowed: Callable[[], bool]) -> None:
        """Serve one HTTP connection of a program in a sandbox until the connection ends.

        Args:
            stream: Stream with the bytes of the connection. This method ends the stream.
            sandbox: Id of the sandbox. The number of concurrent requests of each sandbox is limited.
            allowed: Returns whether the sandbox may install packages now. Called for each request and before each piece of a response, so it
                must be fast.

        Raises:
            SandlotError: A response cannot be completed, or the service is stopping. The caller must reset the stream, so that the client does
                not treat an incomplete response as complete.
        """
        router, connection = await self._open()

        async def respond(request: Request) -> Response:
            await self._store.read_disk()
            return await router.respond(replace(request, sandbox=sandbox))

        with self._limiter.slots(sandbox) as slots:
            await connection(stream, allowed, respond, slots, self._counters).serve()

    async def resolve(self, reference: ImageReference) -> Image:
        """Return the image that a reference names, as :meth:`sandlot.core.ports.ImageRegistry.resolve` specifies."""
        router, _ = await self._open()
        await self._store.read_disk()
        return await router.images.resolve(reference)

    async def read_layer(self, reference: ImageReference, layer: Layer) -> AsyncGenerator[bytes, None]:
        """Yield a layer as it is stored, as :meth:`sandlot.core.ports.ImageRegistry.read_layer` specifies."""
        router, _ = await self._open()
        await self._store.read_disk()
        async with aclosing(router.images.read_layer(reference, layer)) as pieces:
            async for piece in pieces:
                yield piece

    def counters(self) -> Counters:
        """Return a copy of the counters of the package cache."""
        return replace(self._counters)

    async def _open(self) -> tuple[RegistryRouter, type[HttpConnection]]:
        if self._opened is None:
            async with self._opening:
                if self._closed:
                    raise UnavailableError(
                        "The service is stopping, and its package cache accepts no more connections.", code=ErrorCode.SERVICE_STOPPING
                    )
                if self._opened is None:
                    (router, connection), sources = await asyncio.gather(self._threads.run(_import), self._threads.run(self._read_sources))
                    opened = router(
                        sources, self._store, self._threads, self._counters, ttl_s=self._ttl_s, origin=self._origin, private=self._private
                    )
                    self._opened = opened, connection
        return self._opened


def _import() -> tuple[type[RegistryRouter], type[HttpConnection]]:
    # httpx and h11 take 0.14 s to import, and many services never serve a package.
    from sandlot.egress.packages.http_connection import HttpConnection  # noqa: PLC0415
    from sandlot.egress.packages.registries.router import RegistryRouter  # noqa: PLC0415

    return RegistryRouter, HttpConnection
