"""Runs that no client follows: their ends, and what is kept of their output, for the log.

Laws:
- No process of it makes a sandbox busy: no hold is taken, and at most :data:`WAITS` of a sandbox's calls wait for an end. A cell does,
  as long as it waits or runs.
- Output is read once, after the end, from what the guest keeps.
- What cannot be known now because the service leaves is left to the next one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sandlot.core.records.executions import LOST, Journal, Line
from sandlot.core.runs.outcomes import outcome_of
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.types import CellError, Lost, Output, ProcessResult
from sandlot.model.errors import ErrorCode, NotFoundError, SandlotError, UnavailableError
from sandlot.model.ids import ProcessId, SandboxId

WAITS = 16
"""Of the 192 calls that a link carries at once (``protocol/table.py``)."""
LOOK_S = 20.0
"""How often a process is looked at for whose end there is no call left."""
AGAIN_S = 1.0

_Result = TypeVar("_Result")


async def settle(journal: Journal, find: Callable[[SandboxId], Sandbox | None]) -> None:
    """Go on with the lines that an earlier service left, beside everything else. Call it once the sandboxes are known.

    Args:
        journal: The log.
        find: Gives a sandbox that lives, or is being taken over.
    """
    for record in await journal.unfinished():
        box = find(record.sandbox)
        if box is None:
            journal.lose(record)
        else:
            box.keep(asyncio.create_task(_settle(box, journal.go_on(box, record))))


def watch(box: Sandbox, line: Line) -> None:
    """End a background process's line when the process ends, with what is kept of its output; beside everything else."""
    box.keep(asyncio.create_task(_finish(line, _watch(box, line))))


async def _settle(box: Sandbox, line: Line) -> None:
    async def go_on() -> None:
        await box.within_reach()
        link = box.require_link()
        if any(info.process == line.id for info in await _patiently(link.processes)):
            await _watch(box, line)
        else:
            await _follow_cell(box, line, link)

    await _finish(line, go_on())


async def _finish(line: Line, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except NotFoundError:
        line.end(LOST)
    except SandlotError:
        line.cut()
    except asyncio.CancelledError:
        line.cut()  # its sandbox ends, and who sleeps hears of it in no other way
        raise
    finally:
        line.leave()


async def _watch(box: Sandbox, line: Line) -> None:
    link = box.require_link()
    outcome = outcome_of(line.id, await _ended(line.journal.waits, box, link, line.id))
    line.again()
    with suppress(NotFoundError):  # it wrote so much, or so many ended since, that the guest keeps nothing of it
        call = await _patiently(lambda: link.attach(line.id))
        try:
            async for event in call:
                line.add(event)
        finally:
            await call.aclose()
    line.end(outcome.reason, exit_code=outcome.exit_code, duration_s=outcome.duration_s)


async def _ended(waits: Counter[SandboxId], box: Sandbox, link: Link, process: ProcessId) -> ProcessResult:
    if waits[box.id] >= WAITS:
        running = True
        while running and waits[box.id] >= WAITS:
            await asyncio.sleep(LOOK_S)
            running = any(info.process == process and info.running for info in await _patiently(link.processes))
    waits[box.id] += 1
    try:
        return await _patiently(lambda: link.wait(process))
    finally:
        waits[box.id] -= 1
        if not waits[box.id]:
            del waits[box.id]


async def _follow_cell(box: Sandbox, line: Line, link: Link) -> None:
    """One that waits or runs keeps its sandbox from being idle, whoever began it."""
    hold = box.hold()
    box.background.add(line.id)
    try:
        await _read_cell(line, link)
    finally:
        box.background.discard(line.id)
        hold.release()


async def _read_cell(line: Line, link: Link) -> None:
    call = await _patiently(lambda: link.attach_cell(line.id))
    try:
        async for event in call:
            if isinstance(event, CellError):
                line.raised(event)
            elif isinstance(event, Output | Lost):
                line.add(event)
        result = await call.result()
    finally:
        await call.aclose()
    line.end(result.status, duration_s=result.duration_s)


async def _patiently(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Make a call again while the sandbox has too many of them under way. Its end, or the service's, cancels this."""
    while True:
        try:
            return await call()
        except UnavailableError as error:
            if error.code is not ErrorCode.BUSY:
                raise
        await asyncio.sleep(AGAIN_S)
