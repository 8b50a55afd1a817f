"""Processes that no client follows: their ends, and what is kept of their output, for the log.

Laws:
- None of them makes a sandbox busy: no hold is taken, and at most :data:`WAITS` of a sandbox's calls wait for an end.
- Output is read once, after the end, from what the guest keeps.
- What cannot be known now because the service leaves is left to the next one (:mod:`sandlot.core.execution.unattended`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sandlot.core.execution.output import process_outcome
from sandlot.core.records.execution_log import LOST, LogEntry
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.types import ProcessResult
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId, SandboxId

WAITS = 16
"""Of the 192 calls that a link carries at once (``protocol/table.py``)."""
LOOK_S = 20.0
"""How often a process is looked at for whose end there is no call left."""
AGAIN_S = 1.0

_Result = TypeVar("_Result")


def watch(sandbox: Sandbox, entry: LogEntry) -> None:
    """End a background process's line when the process ends, with what is kept of its output; beside everything else."""
    sandbox.spawn(finish(entry, watched(sandbox, entry)))


async def finish(entry: LogEntry, work: Coroutine[Any, Any, None]) -> None:
    """Do what ends a line; where it cannot, the line is lost, cut, or left to the next service."""
    try:
        await work
    except NotFoundError:
        entry.end(LOST)
    except SandlotError:
        entry.cut()
    except asyncio.CancelledError:
        entry.cut()  # its sandbox ends, and who sleeps hears of it in no other way
        raise
    finally:
        entry.leave()


async def watched(sandbox: Sandbox, entry: LogEntry) -> None:
    """Wait for the end of a process, and end its line.

    Raises:
        NotFoundError: The guest does not remember it.
        SandlotError: The end of the sandbox, or of the link.
    """
    link = sandbox.require_link()
    outcome = process_outcome(entry.id, await _ended(entry.execution_log.waits, sandbox, link, entry.id))
    entry.again()
    with suppress(NotFoundError):  # it wrote so much, or so many ended since, that the guest keeps nothing of it
        call = await retry_while_busy(lambda: link.attach(entry.id))
        try:
            async for event in call:
                entry.add(event)
        finally:
            await call.aclose()
    entry.end(outcome.reason, exit_code=outcome.exit_code, duration_s=outcome.duration_s)


async def _ended(waits: Counter[SandboxId], sandbox: Sandbox, link: Link, process: ProcessId) -> ProcessResult:
    if waits[sandbox.id] >= WAITS:
        running = True
        while running and waits[sandbox.id] >= WAITS:
            await asyncio.sleep(LOOK_S)
            running = any(info.process == process and info.running for info in await retry_while_busy(link.processes))
    waits[sandbox.id] += 1
    try:
        return await retry_while_busy(lambda: link.wait(process))
    finally:
        waits[sandbox.id] -= 1
        if not waits[sandbox.id]:
            del waits[sandbox.id]


async def retry_while_busy(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Make a call again while the sandbox has too many of them under way. Its end, or the service's, cancels this."""
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if error.code is not ErrorCode.BUSY:
                raise
        await asyncio.sleep(AGAIN_S)
