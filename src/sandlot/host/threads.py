"""Blocking work off the event loop, without losing it when the caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
ResultT = TypeVar("ResultT")


async def run_blocking(function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """Call a function in a worker thread.

    A thread cannot be cancelled. Unlike :func:`asyncio.to_thread`, a cancelled caller is told so only once the function has
    returned: what it makes on the host is there then, to be given back, and not made a moment later.

    Args:
        function: What to call; must end by itself.
        args: Its arguments.
        kwargs: Its arguments by name.
    """
    return await _done(asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs)))


async def run_apart(function: Callable[P, ResultT], /, *args: P.args, **kwargs: P.kwargs) -> ResultT:
    """As :func:`run_blocking`, in a thread made for it: for what may take seconds, of a disk above all.

    The threads that all others share are a handful (six on a host of two processors), and what is short must not wait for them.
    """
    loop = asyncio.get_running_loop()
    work: asyncio.Future[ResultT] = loop.create_future()

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            tell(work.set_exception, error)
        else:
            tell(work.set_result, result)

    def tell(way: Callable[[Any], None], what: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(way, what)

    threading.Thread(target=run, name=f"apart-{getattr(function, '__name__', 'work')}").start()
    return await _done(work)


async def _done(work: asyncio.Future[ResultT]) -> ResultT:
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001 - told below
            break
    if cancelled is not None:
        if not work.cancelled():
            work.exception()  # seen
        raise cancelled
    return work.result()


async def finished(work: asyncio.Future[ResultT]) -> None:
    """Wait until ``work`` is over, however it ends. Neither ``work`` nor this wait is cancelled with the caller.

    An error of ``work`` counts as seen: a caller that raises another error need not ask for it.
    """
    while not work.done():
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await asyncio.shield(work)
    if not work.cancelled():
        work.exception()  # asyncio reports an error that nobody has asked for; work that ended before the call had none to ask
