"""Runs that an earlier service left, or that nobody heard of while their sandbox slept, gone on with by what their records say of them.

Laws:
- A process goes on whoever has left, and keeps its own timeout; its output is there by its offset. It makes no sandbox busy.
- A cell in the background keeps its sandbox from being idle until it is over.
- One in the foreground is given :data:`BACK_S` in which somebody may come back for it; from then on the law of connections that break holds
  (:mod:`sandlot.core.execution.code`). Who was there for it is gone, and without an end it would keep its sandbox for ever.
- An install that had opened the package indexes has them open until it is over.
- Every line of the log gets its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandlot.core.execution.code import CodeExecution, look, note
from sandlot.core.execution.following import finish, retry_while_busy, watched
from sandlot.core.records.execution_log import ExecutionLog, LogEntry
from sandlot.core.sandbox import ExecutionFollowers, Sandbox
from sandlot.link.client import Link
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.records import FOREGROUND, INSTALL, ExecutionRecord

BACK_S: Final = 10.0
"""How long a cell goes on whose service has ended, from when the next one has its sandbox. A client that is cut off asks again after a wait that
grows while nobody answers, to 8 s in our own (``sdk/retries.py``): longer than where only its connection broke, and it is asked once."""


async def settle(execution_log: ExecutionLog, find: Callable[[SandboxId], Sandbox | None]) -> None:
    """Go on with the runs that an earlier service left, beside everything else. Call it once the sandboxes are known.

    Args:
        execution_log: The log.
        find: Gives a sandbox that lives, or is being taken over.
    """
    for record in await execution_log.unfinished():
        sandbox = find(record.sandbox)
        if sandbox is None:
            execution_log.lose(record)
            continue
        _go_on(sandbox, record, execution_log)


def awake(sandbox: Sandbox) -> None:
    """Go on with the runs of a sandbox that slept, beside everything else. Call it the moment that it is awake."""
    left, sandbox.left = sandbox.left, {}
    sandbox.inherited = True
    for record in left.values():
        if sandbox.execution_log is not None:
            _go_on(sandbox, record, sandbox.execution_log)


def _go_on(sandbox: Sandbox, record: ExecutionRecord, execution_log: ExecutionLog) -> None:
    # Both before anybody speaks with its guest: who asks then must find them.
    if record.mode == INSTALL:
        sandbox.installs += 1
    if record.mode == FOREGROUND and record.kind == "code":
        sandbox.present.setdefault(ProcessId(record.id), ExecutionFollowers())
    sandbox.spawn(_settle(sandbox, record, execution_log.go_on(sandbox, record)))


async def _settle(sandbox: Sandbox, record: ExecutionRecord, entry: LogEntry) -> None:
    async def go_on() -> None:
        await sandbox.wait_awake()
        link = sandbox.require_link()
        followers = sandbox.present.get(entry.id)
        if any(info.process == entry.id for info in await retry_while_busy(link.processes)):
            await watched(sandbox, entry)
        elif followers is not None:
            await _wait_for_somebody(sandbox, entry, link, followers)
        else:
            await _follow(sandbox, entry, link)

    try:
        await finish(entry, go_on())
    finally:
        if record.mode == INSTALL:
            sandbox.installs -= 1


async def _wait_for_somebody(sandbox: Sandbox, entry: LogEntry, link: Link, followers: ExecutionFollowers) -> None:
    try:
        await retry_while_busy(lambda: look(link, entry.id))
        execution = CodeExecution(sandbox, await retry_while_busy(lambda: link.attach_cell(entry.id)), owned=True, followers=followers)
        execution.entry = entry
        await execution.attend(BACK_S)
    finally:
        if not followers.attended and sandbox.present.get(entry.id) is followers:
            del sandbox.present[entry.id]  # it is not remembered


async def _follow(sandbox: Sandbox, entry: LogEntry, link: Link) -> None:
    """One that waits or runs in the background keeps its sandbox from being idle."""
    hold = sandbox.hold()
    sandbox.background.add(entry.id)
    try:
        call = await retry_while_busy(lambda: link.attach_cell(entry.id))
        try:
            async for event in call:
                note(entry, event)
            result = await call.result()
        finally:
            await call.aclose()
        entry.end(result.status, duration_s=result.duration_s)
    finally:
        sandbox.background.discard(entry.id)
        hold.release()
