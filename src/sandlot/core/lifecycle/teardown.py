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
from sandlot.core.node.drivers import STEP_TIMEOUT_S
from sandlot.core.records.sandboxes import SandboxRecorder
from sandlot.core.sandbox import Sandbox
from sandlot.model.ports import Instance, PreparedSandbox

RECORD_PATIENCE_S = 1.0
"""How long the end of a sandbox waits for the store: it must not live because a disk or a database is slow."""

_log = structlog.get_logger("sandlot.core")


async def record_end(sandbox: Sandbox, recorder: SandboxRecorder, before: asyncio.Future[None]) -> None:
    """Record how it ended, after what is being recorded of it."""
    await before  # one save after the other
    await recorder.ended(sandbox)


async def ended(sandbox: Sandbox, life: asyncio.Task[None] | None) -> None:
    """Return when its processes are dead.

    Args:
        sandbox: It was asked to end.
        life: Its own task, while there is one.

    Raises:
        UnavailableError: The service leaves, and it lives on.
    """
    if life is not None:
        over = asyncio.ensure_future(sandbox.ended.wait())
        await asyncio.wait({life, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
    if not sandbox.ended.is_set():
        raise sandbox.stopping_error()


async def detach(sandbox: Sandbox) -> None:
    """Nothing more is said to its guest."""
    if sandbox.link is not None:
        await sandbox.link.aclose()
    sandbox.tasks.cancel()
    sandbox.recovered.set()
    if not sandbox.ready.done():
        sandbox.ready.cancel()


async def wait_processes_dead(sandbox: Sandbox, removal: asyncio.Future[None], failed: asyncio.Event) -> None:
    """Return when the processes are dead, which is before the last trace of them is removed.

    Args:
        sandbox: It.
        removal: Of everything that it has; then they are dead as well.
        failed: Set once that failed, and is tried again.
    """
    if sandbox.instance is not None:
        exits = asyncio.ensure_future(sandbox.instance.wait())
        ends: set[asyncio.Future[Any]] = {removal, exits}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if exits.cancel() or exits.exception() is None:
            return
        _log.error("sandbox.end_unknown", sandbox=sandbox.id, error=str(exits.exception()))
    tried = asyncio.ensure_future(failed.wait())
    tries: set[asyncio.Future[Any]] = {removal, tried}
    await asyncio.wait(tries, timeout=STEP_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    tried.cancel()


async def destroy(sandbox: Sandbox, holdings: list[PreparedSandbox | Instance], disposer: Disposer, failed: asyncio.Event) -> None:
    """Destroy all that a sandbox has on the host, in reverse order. ``failed`` is set after a failed attempt."""
    for resource in reversed(holdings):
        await disposer.destroy(resource, on_failure=failed.set, sandbox=sandbox.id)
