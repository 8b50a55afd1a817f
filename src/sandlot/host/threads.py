"""Blocking work off the event loop, without losing it when the caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
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
