"""The package-index cache: what sandboxes install packages from.

It answers HTTP on streams that guests open, below three roots::

    /pypi/simple/NAME/   /pypi/files/...         Python
    /npm/NAME            /npm/NAME/-/FILE.tgz    JavaScript
    /debian/...          /debian-security/...    Debian

Laws:
- It is for reading, and for nothing but packages: no path leads to a host of the sandbox's choice or to a file of this machine's.
- Upstream is what pip, npm and apt of this machine use; their credentials are in no answer.
- What is served out of the store is what its index vouched for, byte by byte.
- It costs next to nothing until the first connection: what speaks HTTP is imported then, and the machine's configuration read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sandlot.egress.counters import Counters
from sandlot.egress.disk.shelf import Shelf
from sandlot.egress.disk.threads import Threads
from sandlot.egress.sources.machine import Sources
from sandlot.egress.turns import Turns
from sandlot.model.errors import ErrorCode, UnavailableError

if TYPE_CHECKING:
    from sandlot.egress.answers import Answer
    from sandlot.egress.connection import Connection, Stream
    from sandlot.egress.registries.asked import Request
    from sandlot.egress.registries.registries import Registries

ORIGIN = "http://127.0.0.1:4479"
"""Where sandboxes find the cache: their guest listens there."""


class PackageCache:
    """It. :meth:`start` it before anything else.

    Args:
        folder: Where packages are kept; services on this host may share it. Made where it is missing.
        sources: Gives where packages come from, :meth:`Sources.of_this_machine` outside of tests. It blocks, and is called once, in a thread,
            when the first sandbox asks for something.
        max_bytes: What the folder may take of the disk.
        ttl_s: How long an index page is served without asking upstream.
        origin: Where sandboxes find the cache: ``http://HOST:PORT``. npm's index has to say where its files are.
    """

    def __init__(self, folder: Path, sources: Callable[[], Sources], *, max_bytes: int, ttl_s: float, origin: str = ORIGIN) -> None:
        self._counters = Counters()
        self._shelf = Shelf(folder, max_bytes, self._counters)
        self._threads = Threads()
        self._sources = sources
        self._ttl_s = ttl_s
        self._origin = origin
        self._opening = asyncio.Lock()
        self._open: tuple[Registries, type[Connection]] | None = None
        self._closed = False
        self._turns = Turns()

    async def start(self) -> None:
        """Make the folder, and sweep what dead services left half-written there.

        Raises:
            HostError: It cannot be written.
        """
        await self._threads.run(self._shelf.prepare)

    async def aclose(self) -> None:
        """End what is being fetched. What is being served breaks off. Idempotent."""
        self._closed = True
        opened, self._open = self._open, None
        if opened is not None:
            await opened[0].aclose()
        await self._threads.aclose()

    async def serve(self, stream: Stream, *, sandbox: str, allowed: Callable[[], bool]) -> None:
        """Serve one connection of a program in a sandbox until it is over.

        Args:
            stream: Its bytes. It is ended here; who gave it forgets it.
            sandbox: Whose it is. What one sandbox asks at once is bounded, so that others get their turn.
            allowed: Whether the sandbox may have packages; asked at every request and between the pieces of an answer, so it must be quick.

        Raises:
            SandlotError: The connection has to be cut: what was sent last must not pass for a whole answer.
        """
        registries, connection = await self._ready()

        async def answer(request: Request) -> Answer:
            return await registries.answer(replace(request, sandbox=sandbox))

        with self._turns.of(sandbox) as turns:
            await connection(stream, allowed, answer, turns, self._counters).serve()

    def counters(self) -> Counters:
        """What was counted until now."""
        return replace(self._counters)

    async def _ready(self) -> tuple[Registries, type[Connection]]:
        if self._open is None:
            async with self._opening:
                if self._closed:
                    raise UnavailableError("The service ends.", code=ErrorCode.SERVICE_STOPPING)
                if self._open is None:
                    (registries, connection), sources = await asyncio.gather(self._threads.run(_load), self._threads.run(self._sources))
                    made = registries(sources, self._shelf, self._threads, self._counters, ttl_s=self._ttl_s, origin=self._origin)
                    self._open = made, connection
        return self._open


def _load() -> tuple[type[Registries], type[Connection]]:
    # httpx and h11 take 0.14 s to import, and many a service never installs anything.
    from sandlot.egress.connection import Connection  # noqa: PLC0415
    from sandlot.egress.registries.registries import Registries  # noqa: PLC0415

    return Registries, Connection
