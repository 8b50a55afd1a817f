"""The end of one sandbox: its processes first, then every trace of it, and the record of how it ended.

Laws:
- It is tried until it is done: what cannot be given back is neither forgotten nor given to others.
- Nobody's end waits for the store longer than a moment, and the saves of one sandbox come one after the other.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

from sandlot.core.node.disposer import Disposer
from sandlot.core.records.register import Register
from sandlot.core.sandbox import Sandbox
from sandlot.model.ports import Blank, Instance

STEP_TIMEOUT_S = 60.0
"""For one step of a driver, and for the guest's first answer. Measured: 0.05 to 0.5 s; a busy host takes several."""

RECORD_PATIENCE_S = 1.0
"""How long the end of a sandbox waits for the store: it must not live because a disk or a database is slow."""

_log = structlog.get_logger("sandlot.core")


async def record_end(box: Sandbox, register: Register, before: asyncio.Future[None]) -> None:
    """Record how it ended, after what is being recorded of it."""
    await before  # one save after the other
    await register.ended(box)


async def ended(box: Sandbox, life: asyncio.Task[None] | None) -> None:
    """Return when its processes are dead.

    Args:
        box: It was asked to end.
        life: Its own task, while there is one.

    Raises:
        UnavailableError: The service leaves, and it lives on.
    """
    if life is not None:
        over = asyncio.ensure_future(box.ended.wait())
        await asyncio.wait({life, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
    if not box.ended.is_set():
        raise box.left_error()


async def let_go(box: Sandbox) -> None:
    """Nothing more is said to its guest."""
    if box.link is not None:
        await box.link.aclose()
    box.tasks.cancel()
    box.adopted.set()
    if not box.ready.done():
        box.ready.cancel()


async def until_dead(box: Sandbox, removal: asyncio.Future[None], failed: asyncio.Event) -> None:
    """Return when the processes are dead, which is before the last trace of them is removed.

    Args:
        box: It.
        removal: Of everything that it has; then they are dead as well.
        failed: Set once that failed, and is tried again.
    """
    if box.instance is not None:
        exits = asyncio.ensure_future(box.instance.wait())
        ends: set[asyncio.Future[Any]] = {removal, exits}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if exits.cancel() or exits.exception() is None:
            return
        _log.error("sandbox.end_unknown", sandbox=box.id, error=str(exits.exception()))
    tried = asyncio.ensure_future(failed.wait())
    tries: set[asyncio.Future[Any]] = {removal, tried}
    await asyncio.wait(tries, timeout=STEP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    tried.cancel()


async def destroy(box: Sandbox, holdings: list[Blank | Instance], disposer: Disposer, failed: asyncio.Event) -> None:
    """Destroy all that a sandbox has on the host, in reverse order. ``failed`` is set after a failed attempt."""
    for resource in reversed(holdings):
        await disposer.destroy(resource, on_failure=failed.set, sandbox=box.id)
