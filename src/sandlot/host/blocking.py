"""Blocking work in threads, for async code.

A thread cannot be cancelled. If the caller of an async function here is cancelled, the function waits until the work has ended, and only then raises
the cancellation. When the caller then cleans up, everything that the work creates on the host exists already, and nothing is created later.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import ParamSpec, Protocol, TypeVar


class _Closable(Protocol):
    def close(self) -> None: ...


P = ParamSpec("P")
ResultT = TypeVar("ResultT")
ClosableT = TypeVar("ClosableT", bound=_Closable)


async def run_blocking(function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Call a function in one of asyncio's worker threads and return its result. Use this for work of some milliseconds.

    Args:
        function: Function to call. The function must end by itself, because a thread cannot be cancelled.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
    """
    return await outlast_cancellation(asyncio.to_thread(function, *args, **kwargs))


async def run_in_own_thread(function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Call a function in a new thread and return its result. Use this for work that may take seconds, such as work that waits for a disk.

    asyncio has few worker threads (six on a host with two processors), and short work must not wait for long work.

    Args:
        function: Function to call. The function must end by itself, because a thread cannot be cancelled.
        args: Positional arguments of the function.
        kwargs: Keyword arguments of the function.
    """
    return await outlast_cancellation(asyncio.wrap_future(_start_thread(lambda: function(*args, **kwargs))))


def call_in_own_thread(function: Callable[[], ResultT]) -> ResultT:
    """Call a function in a new thread, block until the function returns, and return its result.

    Use this for work that changes its own thread, such as setns(2), or that needs an event loop although the caller's thread may run one.
    """
    return _start_thread(function).result()


class BlockingPool:
    """A pool of worker threads for one kind of blocking work. This kind of work and the other work of the service do not delay each other.

    Args:
        threads: Number of threads. Further calls wait for a free thread.
        name: Prefix of the threads' names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, name)

    async def run(self, function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Call a function in one of the pool's threads and return its result.

        Args:
            function: Function to call. The function must end by itself, because a thread cannot be cancelled.
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.
        """
        return await outlast_cancellation(self._submit(function, *args, **kwargs))

    async def open(self, function: Callable[P, ClosableT | None], /, *args: P.args, **kwargs: P.kwargs) -> ClosableT | None:
        """Open an object, such as a file, in one of the pool's threads, and return the open object.

        If the caller is cancelled meanwhile, the object is closed.

        Args:
            function: Function that opens the object. The function may return None if there is nothing to open.
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.
        """
        opening = self._submit(function, *args, **kwargs)
        try:
            return await outlast_cancellation(opening)
        except asyncio.CancelledError:
            if opening.exception() is None and (opened := opening.result()) is not None:
                opened.close()
            raise

    async def aclose(self) -> None:
        """Wait until all calls of the pool have ended, then end its threads. Idempotent."""
        await asyncio.to_thread(self._pool.shutdown)

    def _submit(self, function: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        return asyncio.get_running_loop().run_in_executor(self._pool, lambda: function(*args, **kwargs))


async def finished(work: asyncio.Future[ResultT]) -> None:
    """Wait until ``work`` has ended, with a result or an error. A cancellation of the caller is ignored during the wait.

    An error of ``work`` is not raised here, and asyncio does not log the error as never retrieved.
    """
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.shield(work)
    if not work.cancelled():
        work.exception()  # without this call, asyncio logs that the error was never retrieved


async def outlast_cancellation(awaitable: Awaitable[ResultT]) -> ResultT:
    """Await a coroutine or future to its end and return its result.

    If the caller is cancelled meanwhile, the coroutine or future continues. The cancellation is raised after the coroutine or future has ended.
    """
    work = asyncio.ensure_future(awaitable)
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001 - work.result() below raises the error
            break
    if cancelled is not None:
        if not work.cancelled():
            work.exception()  # without this call, asyncio logs that the error was never retrieved
        raise cancelled
    return work.result()


def _start_thread(function: Callable[[], ResultT]) -> concurrent.futures.Future[ResultT]:
    work: concurrent.futures.Future[ResultT] = concurrent.futures.Future()
    work.set_running_or_notify_cancel()  # a future in this state cannot be cancelled

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - the future raises the error in the caller
            work.set_exception(error)
        else:
            work.set_result(result)

    threading.Thread(target=run, name="sandlot-blocking").start()
    return work
