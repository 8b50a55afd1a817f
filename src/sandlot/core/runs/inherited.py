"""Runs that an earlier service left, or that nobody heard of while their sandbox slept, gone on with by what their records say of them.

Laws:
- A process goes on whoever has left, and keeps its own timeout; its output is there by its offset. It makes no sandbox busy.
- A cell in the background keeps its sandbox from being idle until it is over.
- One in the foreground is given :data:`BACK_S` in which somebody may come back for it; from then on the law of connections that break holds
  (:mod:`sandlot.core.runs.execution`). Who was there for it is gone, and without an end it would keep its sandbox for ever.
- An install that had opened the package indexes has them open until it is over.
- Every line of the log gets its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sandlot.core.activity import Presence
from sandlot.core.records.executions import Journal, Line
from sandlot.core.records.following import finish, patiently, watched
from sandlot.core.runs.code import look
from sandlot.core.runs.execution import Execution, note
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.records import FOREGROUND, INSTALL, ExecutionRecord

BACK_S: Final = 10.0
"""How long a cell goes on whose service has ended, from when the next one has its sandbox. A client that is cut off asks again after a wait that
grows while nobody answers, to 8 s in our own (``sdk/retries.py``): longer than where only its connection broke, and it is asked once."""


async def settle(journal: Journal, find: Callable[[SandboxId], Sandbox | None]) -> None:
    """Go on with the runs that an earlier service left, beside everything else. Call it once the sandboxes are known.

    Args:
        journal: The log.
        find: Gives a sandbox that lives, or is being taken over.
    """
    for record in await journal.unfinished():
        box = find(record.sandbox)
        if box is None:
            journal.lose(record)
            continue
        _go_on(box, record, journal)


def awake(box: Sandbox) -> None:
    """Go on with the runs of a sandbox that slept, beside everything else. Call it the moment that it is awake."""
    left, box.left = box.left, {}
    box.inherited = True
    for record in left.values():
        if box.journal is not None:
            _go_on(box, record, box.journal)


def _go_on(box: Sandbox, record: ExecutionRecord, journal: Journal) -> None:
    # Both before anybody speaks with its guest: who asks then must find them.
    if record.mode == INSTALL:
        box.installs += 1
    if record.mode == FOREGROUND and record.kind == "code":
        box.present.setdefault(ProcessId(record.id), Presence())
    box.spawn(_settle(box, record, journal.go_on(box, record)))


async def _settle(box: Sandbox, record: ExecutionRecord, line: Line) -> None:
    async def go_on() -> None:
        await box.until_awake()
        link = box.require_link()
        presence = box.present.get(line.id)
        if any(info.process == line.id for info in await patiently(link.processes)):
            await watched(box, line)
        elif presence is not None:
            await _wait_for_somebody(box, line, link, presence)
        else:
            await _follow(box, line, link)

    try:
        await finish(line, go_on())
    finally:
        if record.mode == INSTALL:
            box.installs -= 1


async def _wait_for_somebody(box: Sandbox, line: Line, link: Link, presence: Presence) -> None:
    try:
        await patiently(lambda: look(link, line.id))
        execution = Execution(box, await patiently(lambda: link.attach_cell(line.id)), owned=True, presence=presence)
        execution.line = line
        await execution.attend(BACK_S)
    finally:
        if not presence.attended and box.present.get(line.id) is presence:
            del box.present[line.id]  # it is not remembered


async def _follow(box: Sandbox, line: Line, link: Link) -> None:
    """One that waits or runs in the background keeps its sandbox from being idle."""
    hold = box.hold()
    box.background.add(line.id)
    try:
        call = await patiently(lambda: link.attach_cell(line.id))
        try:
            async for event in call:
                note(line, event)
            result = await call.result()
        finally:
            await call.aclose()
        line.end(result.status, duration_s=result.duration_s)
    finally:
        box.background.discard(line.id)
        hold.release()
