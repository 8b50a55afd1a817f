"""The cache's own threads: reading its disk waits behind nobody else's blocking work, nor do others wait behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, Protocol, TypeVar

THREADS = 6


class _Closes(Protocol):
    def close(self) -> None: ...


P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ClosesT = TypeVar("ClosesT", bound=_Closes)


class Threads:
    """Some threads."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="packages")
        self._abandoned: set[asyncio.Future[Any]] = set()
        """Files that are being opened for callers that were cancelled."""

    async def run(self, function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Call a function. Where the caller is cancelled it goes on to its end, unseen."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))

    async def open(self, function: Callable[P, ClosesT | None], /, *args: P.args, **kwargs: P.kwargs) -> ClosesT | None:
        """Call a function that opens something. Where the caller is cancelled, that is closed when it is there."""
        opening = asyncio.ensure_future(self.run(function, *args, **kwargs))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self._abandoned.add(opening)
            opening.add_done_callback(self._close_abandoned)
            raise

    async def aclose(self) -> None:
        """No more; returns when what runs has ended, and what cancelled callers opened is closed. Idempotent."""
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
        if self._abandoned:
            await asyncio.wait(self._abandoned)

    def _close_abandoned(self, opening: asyncio.Future[Any]) -> None:
        self._abandoned.discard(opening)
        if not opening.cancelled() and opening.exception() is None and (opened := opening.result()) is not None:
            opened.close()
