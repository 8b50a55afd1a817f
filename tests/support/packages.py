"""A package cache on a loopback port: what a guest does with streams is done with TCP connections, for real clients and for raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from sandlot.egress.packages.cache import PackageCache
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.values import DebianSources, NpmSources, PypiSources
from sandlot.egress.policy.addresses import Network
from sandlot.model.errors import SandlotError
from tests.support.http import NO_TLS

MIB = 1024 * 1024


def sources_of(origin: str) -> Callable[[], PackageSources]:
    """All registries at one origin: ``/simple/``, ``/registry/``, ``/deb/`` and ``/sec/``."""
    return lambda: PackageSources(
        pypi=PypiSources(indexes=(f"{origin}/simple/",)),
        npm=NpmSources(registry=f"{origin}/registry/"),
        debian=DebianSources(archives={"debian": f"{origin}/deb/", "debian-security": f"{origin}/sec/"}),
    )


@dataclass(slots=True)
class TcpStream:
    """A TCP connection as a stream that a guest opened.

    Args:
        reader: Bytes of the client.
        writer: Bytes to the client.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ended: bool = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[bytes]:
        while data := await self.reader.read(65536):
            yield data

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def end(self) -> None:
        self.ended = True


@dataclass(slots=True)
class Served:
    """A cache that answers on a port.

    Args:
        cache: The cache.
        origin: Origin of the port.
    """

    cache: PackageCache
    origin: str
    allowed: bool = True
    sandbox: str = "one"
    """Sandbox of connections that are opened from now on."""
    cut: list[SandlotError] = field(default_factory=list)
    """Connections that it cut, by why."""

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.origin, timeout=60, trust_env=False, verify=NO_TLS)


@asynccontextmanager
async def served(
    folder: Path,
    sources: Callable[[], PackageSources],
    *,
    max_bytes: int = 512 * MIB,
    ttl_s: float = 600.0,
    origin: str = "",
    private: Collection[Network] = (),
) -> AsyncIterator[Served]:
    """Serve a cache for as long as the context is open.

    Args:
        folder: Its store.
        sources: Returns the upstream indexes.
        max_bytes: Size limit of the store.
        ttl_s: Seconds for which a page is fresh.
        origin: Origin in npm's metadata; by default that of the port.
        private: Networks that registries of images may redirect to.
    """
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await here.cache.serve(TcpStream(reader, writer), sandbox=here.sandbox, allowed=lambda: here.allowed)
        except SandlotError as error:
            here.cut.append(error)
            writer.transport.abort()
        except (ConnectionError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            connections.discard(task)
            with contextlib.suppress(ConnectionError):
                writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    where = origin or f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    cache = PackageCache(folder, sources, max_bytes=max_bytes, ttl_s=ttl_s, origin=where, private=private)
    here = Served(cache, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await cache.start()
    try:
        yield here
    finally:
        server.close()
        for task in [*connections]:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await cache.aclose()
