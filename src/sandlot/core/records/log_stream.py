"""What the runs of a sandbox wrote, read back in the order in which they were begun, and followed.

Laws:
- It comes out of the log of runs: of each stream of a run its beginning and its end, also long after the sandbox has ended. What a process in
  the background writes is there once it has ended.
- The sandbox is neither asked nor woken for it, nor kept from being idle.
- What is told at once is bounded: the newest runs, :data:`MOST_RUNS` of them or :data:`MOST_CHARS` of text.
- Who follows is told what there is, and then what is written, each byte once; bytes that he was too slow for are counted.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from sandlot.core.records.execution_log import RUNNING, ExecutionLog, LogEntry
from sandlot.core.records.log_followers import Piece
from sandlot.core.sandbox import Sandbox
from sandlot.link.types import Lost
from sandlot.model.access import Principal
from sandlot.model.errors import NotFoundError
from sandlot.model.ids import ProcessId
from sandlot.model.records import ExecutionRecord
from sandlot.model.specs import MIB
from sandlot.model.storage import Position
from sandlot.protocol.schema import STDERR, STDOUT

MOST_RUNS = 200
MOST_CHARS = 1 * MIB
PAGE = 50
MOST_SEEN = 4096
"""Runs of which is remembered how far they were told."""
LOOK_S = 1.0
"""How often it is looked whether the sandbox that is followed has ended, or the service is about to."""

CHANNELS: Mapping[str, Collection[int]] = {"stdout": (STDOUT,), "stderr": (STDERR,), "both": (STDOUT, STDERR)}
"""A word of a request -> the channels that it means."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one run wrote to one of its streams.

    Args:
        execution: The run.
        at: When it was begun.
        channel: 1 standard output, 2 standard error.
        text: It. Where something of it is not kept, a line says how much.
        omitted: Bytes that are not kept.
        end: Of a run that goes on: how many bytes it wrote by now.
    """

    execution: ProcessId
    at: datetime
    channel: int
    text: str
    omitted: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """A run wrote something; what is not UTF-8 in it is U+FFFD."""

    execution: ProcessId
    channel: int
    text: str


@dataclass(frozen=True, slots=True)
class Missed:
    """Bytes of a run that were written faster than they were read."""

    execution: ProcessId
    channel: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Over:
    """A run has ended, or nothing more is heard of it."""

    execution: ProcessId


@dataclass(slots=True)
class _Seen:
    """How far a run was told.

    Args:
        whole: To its end.
        ends: Channel -> the offset after what was told of it.
        decoders: Channel -> what waits for the rest of a character.
    """

    whole: bool = False
    ends: dict[int, int] = field(default_factory=dict)
    decoders: dict[int, codecs.IncrementalDecoder] = field(default_factory=dict)

    def decoder(self, channel: int) -> codecs.IncrementalDecoder:
        """What makes text of a channel's bytes."""
        if channel not in self.decoders:
            self.decoders[channel] = codecs.getincrementaldecoder("utf-8")("replace")
        return self.decoders[channel]


async def read(execution_log: ExecutionLog, sandbox: Sandbox, principal: Principal, channels: Collection[int]) -> tuple[Sequence[Entry], bool]:
    """What the runs of a sandbox wrote by now, and whether there is more than is told.

    Args:
        execution_log: The log.
        sandbox: The sandbox.
        principal: For whom.
        channels: Of their streams.
    """
    records, more = await _newest(execution_log, sandbox, principal)
    entries: list[Entry] = []
    chars = 0
    for record in records:
        told = _entries(record, execution_log.log_followers.running.get(ProcessId(record.id)), channels)
        chars += sum(len(entry.text) for entry in told)
        if entries and chars > MOST_CHARS:
            more = True
            break
        entries += reversed(told)
    return entries[::-1], more


async def follow(
    execution_log: ExecutionLog, sandbox: Sandbox, principal: Principal, channels: Collection[int]
) -> AsyncIterator[Entry | Wrote | Missed | Over]:
    """What the runs of a sandbox wrote, and what they write, until it ends.

    Args:
        execution_log: The log.
        sandbox: The sandbox.
        principal: For whom.
        channels: Of their streams.

    Raises:
        UnavailableError: The service stops.
    """
    tail = execution_log.log_followers.follow(sandbox.id, sandbox.buffers)
    try:
        seen: dict[ProcessId, _Seen] = {}
        entries, _ = await read(execution_log, sandbox, principal, channels)
        for entry in entries:
            _note(seen, entry)
        for entry in entries:
            yield entry
        while True:
            over = sandbox.ended.is_set()  # before the look: what was written until then is taken by it
            for piece in tail.take():
                for item in _told(piece, seen, channels):
                    yield item
            if over:
                return
            if sandbox.detaching.is_set():
                raise sandbox.stopping_error()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await tail.told.wait()
    finally:
        tail.close()


async def _newest(execution_log: ExecutionLog, sandbox: Sandbox, principal: Principal) -> tuple[list[ExecutionRecord], bool]:
    """The newest runs, newest first, and whether there are older ones."""
    records: list[ExecutionRecord] = []
    chars, before = 0, None
    while len(records) < MOST_RUNS and chars <= MOST_CHARS:
        page = await execution_log.page(principal, sandbox=sandbox.id, before=before, limit=PAGE)
        for record in page:
            # One that has ended since the store was read.
            if record.status == RUNNING and ProcessId(record.id) not in execution_log.log_followers.running:
                with suppress(NotFoundError):
                    record = await execution_log.get(principal, record.id)  # noqa: PLW2901 - the same, as it is now
            records.append(record)
            chars += len(records[-1].stdout) + len(records[-1].stderr)
        if len(page) < PAGE:
            return records, False
        before = Position(page[-1].created_at, page[-1].id)
    return records, True


def _entries(record: ExecutionRecord, line: LogEntry | None, channels: Collection[int]) -> list[Entry]:
    """What is told of one run: of one that goes on, what it wrote by now. Pure."""
    id_, entries = ProcessId(record.id), []
    texts = {STDOUT: (record.stdout, record.stdout_omitted_bytes), STDERR: (record.stderr, record.stderr_omitted_bytes)}
    for channel in channels:
        if line is not None:
            kept = line.so_far(channel)
            entry = Entry(id_, record.created_at, channel, kept.text(), kept.omitted, kept.held_bytes + kept.omitted)
        else:
            entry = Entry(id_, record.created_at, channel, *texts[channel], None if record.status != RUNNING else 0)
        if entry.text:
            entries.append(entry)
    return entries


def _note(seen: dict[ProcessId, _Seen], entry: Entry) -> None:
    told = seen.setdefault(entry.execution, _Seen())
    if entry.end is None:
        told.whole = True
    else:
        told.ends[entry.channel] = entry.end


def _told(piece: Piece, seen: dict[ProcessId, _Seen], channels: Collection[int]) -> list[Wrote | Missed | Over]:
    """What a piece comes to for one who has seen that much."""
    event, told = piece.event, seen.setdefault(piece.execution, _Seen())
    while len(seen) > MOST_SEEN:
        del seen[next(iter(seen))]
    if told.whole:
        return []
    if event is None:
        rest: list[Wrote | Missed | Over] = [
            Wrote(piece.execution, channel, text) for channel in channels if (text := told.decoder(channel).decode(b"", True))
        ]
        return [*rest, Over(piece.execution)]
    begin = told.ends.get(event.channel, 0)
    end = event.offset + (event.bytes if isinstance(event, Lost) else len(event.data))
    if event.channel not in channels or end <= begin:
        return []
    told.ends[event.channel] = end
    if isinstance(event, Lost):
        return [Missed(piece.execution, event.channel, end - max(begin, event.offset))]
    text = told.decoder(event.channel).decode(event.data[max(0, begin - event.offset) :])
    return [Wrote(piece.execution, event.channel, text)] if text else []
