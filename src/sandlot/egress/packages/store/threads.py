"""Worker threads of the package cache. They are separate, so that its disk access and other blocking work of the service do not delay each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

THREADS = 6


class _Closable(Protocol):
    def close(self) -> None: ...


P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ClosableT = TypeVar("ClosableT", bound=_Closable)


class DiskThreads:
    """Runs blocking functions in the cache's own threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="packages")
        self._abandoned: set[asyncio.Future[Any]] = set()
        """Files that are being opened for cancelled callers."""

    async def run(self, function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Call a function in a thread. If the caller is cancelled, the function runs to its end and its result is discarded."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def open(self, function: Callable[P, ClosableT | None], /, *args: P.args, **kwargs: P.kwargs) -> ClosableT | None:
        """Call a function that opens a file in a thread. If the caller is cancelled, the file is closed once it is open."""
        opening = asyncio.ensure_future(self.run(function, *args, **kwargs))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._abandoned.add(opening)
            opening.add_done_callback(self._close_abandoned)
            raise

    async def aclose(self) -> None:
        """Wait until all functions have ended, queued ones too, and files of cancelled callers are closed. Idempotent.

        A queued function may be the removal of a draft whose download was cancelled.
        """
        await asyncio.to_thread(self._pool.shutdown, wait=True)
        if self._abandoned:
            await asyncio.wait(self._abandoned)

    def _close_abandoned(self, opening: asyncio.Future[Any]) -> None:
        self._abandoned.discard(opening)
        if not opening.cancelled() and opening.exception() is None and (opened := opening.result()) is not None:
            opened.close()
