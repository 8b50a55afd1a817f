"""Output of all executions of a sandbox: read and follow the output, in the order in which the executions started.

Invariants:
- The output comes from the execution log, which keeps the beginning and the end of each stream, even after the sandbox has ended. The output of a
  background process appears when the process has ended.
- Reading sends no request to the sandbox, does not wake the sandbox and does not count as activity.
- One read is limited to the newest executions: :data:`~sandlot.model.history.MAX_LOG_EXECUTIONS` executions or :data:`MAX_CHARS` characters.
- A follower gets the existing output first and then the new output, each byte once. A follower that is too slow gets the number of lost bytes.
- The output that waits for one follower is limited and counts against the memory for client data. Without followers, this module keeps no output.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.records.execution_log import LogEntry as OpenLogEntry
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import NotFoundError
from sandlot.model.executions import RUNNING, Channel, Output, OutputGap
from sandlot.model.history import MAX_LOG_EXECUTIONS, LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.ids import ProcessId
from sandlot.model.records import ExecutionRecord
from sandlot.model.repositories import Position
from sandlot.model.specs import KIB, MIB

MAX_CHARS = 1 * MIB
PAGE = 50
MAX_WAITING_BYTES = 512 * KIB
"""Maximum bytes of output that wait for one follower."""
PIECE_BYTES = 128
"""Approximate memory of a :class:`Piece` in addition to its output."""
MAX_PROGRESS = 4096
"""Maximum number of executions whose progress one follower remembers."""
POLL_S = 1.0
"""Interval at which a follower checks whether the sandbox has ended, or the service is stopping."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Output of an execution, or the end of the execution.

    Args:
        execution: Id of the execution.
        event: Output or a gap in the output; None is the end of the execution.
    """

    execution: ProcessId
    event: Output | OutputGap | None


class LogFollower:
    """Queue that collects the new output of a sandbox's executions for one follower, from the creation of the queue until it is closed.

    Attributes:
        wakeup: Set when :meth:`take` has pieces to return.
    """

    __slots__ = ("_buffers", "_held_bytes", "_listeners", "_pieces", "_sandbox", "wakeup")

    def __init__(self, execution_log: ExecutionLog, sandbox: Sandbox) -> None:
        self._buffers = sandbox.buffers
        self._sandbox = sandbox.id
        self._pieces: deque[Piece] = deque()
        self._held_bytes = 0
        self._listeners = execution_log.listeners
        self._listeners.setdefault(sandbox.id, set()).add(self.put)
        self.wakeup = asyncio.Event()

    def put(self, execution: ProcessId, event: Output | OutputGap | None) -> None:
        """Add output of an execution, a gap in the output, or the end of the execution. Adjacent gaps are merged.

        Args:
            execution: Id of the execution.
            event: Output or gap; None is the end of the execution.
        """
        size = len(event.data) if isinstance(event, Output) else 0
        if isinstance(event, Output) and (self._held_bytes + size > MAX_WAITING_BYTES or not self._buffers.try_take(size)):
            event, size = OutputGap(event.channel, size, event.offset), 0
        self._held_bytes += size
        last = self._pieces[-1] if self._pieces else None
        gap = last.event if last is not None and last.execution == execution else None
        if isinstance(event, OutputGap) and isinstance(gap, OutputGap) and (gap.channel, gap.offset + gap.bytes) == (event.channel, event.offset):
            self._pieces.pop()
            event = OutputGap(event.channel, gap.bytes + event.bytes, gap.offset)
        else:
            self._held_bytes += PIECE_BYTES
            self._buffers.take_anyway(PIECE_BYTES)
        self._pieces.append(Piece(execution, event))
        self.wakeup.set()

    def take(self) -> list[Piece]:
        """Remove all waiting pieces from the queue and return them. They no longer count in the buffer budget."""
        taken = list(self._pieces)
        self._pieces.clear()
        self._buffers.give(self._held_bytes)
        self._held_bytes = 0
        self.wakeup.clear()
        return taken

    def close(self) -> None:
        """Stop following. Idempotent."""
        listeners = self._listeners.get(self._sandbox, set())
        listeners.discard(self.put)
        if not listeners:
            self._listeners.pop(self._sandbox, None)
        self.take()


@dataclass(slots=True)
class _Progress:
    """Part of an execution's output that the follower already has.

    Args:
        ends: Channel -> offset after the last byte that the follower has.
        decoders: Channel -> decoder, which keeps the beginning of an unfinished character.
    """

    is_complete: bool = False
    ends: dict[int, int] = field(default_factory=dict)
    decoders: dict[int, codecs.IncrementalDecoder] = field(default_factory=dict)

    def decoder(self, channel: int) -> codecs.IncrementalDecoder:
        """Return the decoder that converts the bytes of a channel to text. Create the decoder at its first use."""
        if channel not in self.decoders:
            self.decoders[channel] = codecs.getincrementaldecoder("utf-8")("replace")
        return self.decoders[channel]


async def read(execution_log: ExecutionLog, sandbox: Sandbox, principal: Principal, channels: Collection[int]) -> tuple[Sequence[LogEntry], bool]:
    """Return the output of a sandbox's executions up to now, and True if older output was left out."""
    records, more = await _newest(execution_log, sandbox, principal)
    entries: list[LogEntry] = []
    chars = 0
    for record in records:
        found = _entries(record, execution_log.running.get(ProcessId(record.id)), channels)
        chars += sum(len(entry.text) for entry in found)
        if entries and chars > MAX_CHARS:
            more = True
            break
        entries += reversed(found)
    return entries[::-1], more


async def follow(
    execution_log: ExecutionLog, sandbox: Sandbox, principal: Principal, channels: Collection[int]
) -> AsyncIterator[LogEntry | LogOutput | LogGap | LogEnd]:
    """Yield the existing output of a sandbox's executions, and then new output until the sandbox ends.

    Raises:
        UnavailableError: The service is stopping.
    """
    follower = LogFollower(execution_log, sandbox)
    try:
        progress: dict[ProcessId, _Progress] = {}
        entries, _ = await read(execution_log, sandbox, principal, channels)
        for entry in entries:
            _skip(progress, entry)
        for entry in entries:
            yield entry
        while True:
            has_ended = sandbox.ended.is_set()  # read before take(), so that this take() returns all output of an ended sandbox
            for piece in follower.take():
                for item in _new_items(piece, progress, channels):
                    yield item
            if has_ended:
                return
            if sandbox.detaching.is_set():
                raise sandbox.stopping_error()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await follower.wakeup.wait()
    finally:
        follower.close()


async def _newest(execution_log: ExecutionLog, sandbox: Sandbox, principal: Principal) -> tuple[list[ExecutionRecord], bool]:
    records: list[ExecutionRecord] = []
    chars, before = 0, None
    while len(records) < MAX_LOG_EXECUTIONS and chars <= MAX_CHARS:
        page = await execution_log.page(principal, sandbox=sandbox.id, before=before, limit=PAGE)
        for record in page:
            # The execution may have ended since the store was read.
            if record.status == RUNNING and ProcessId(record.id) not in execution_log.running:
                with suppress(NotFoundError):
                    record = await execution_log.get(principal, record.id)  # noqa: PLW2901 - the same record, read again
            records.append(record)
            chars += len(records[-1].stdout) + len(records[-1].stderr)
        if len(page) < PAGE:
            return records, False
        before = Position(page[-1].created_at, page[-1].id)
    return records, True


def _entries(record: ExecutionRecord, running: OpenLogEntry | None, channels: Collection[int]) -> list[LogEntry]:
    """Return the output of one execution: from its log entry while the execution runs, otherwise from its record. Pure."""
    id_, entries = ProcessId(record.id), []
    texts: Mapping[int, tuple[str, int]] = {
        Channel.STDOUT: (record.stdout, record.stdout_omitted_bytes),
        Channel.STDERR: (record.stderr, record.stderr_omitted_bytes),
    }
    for channel in channels:
        if running is not None:
            kept = running.captures[channel]
            entry = LogEntry(id_, record.created_at, channel, kept.text(), kept.omitted, kept.held_bytes + kept.omitted)
        else:
            entry = LogEntry(id_, record.created_at, channel, *texts[channel], None if record.status != RUNNING else 0)
        if entry.text:
            entries.append(entry)
    return entries


def _skip(progress: dict[ProcessId, _Progress], entry: LogEntry) -> None:
    """Record that the follower has received the output of an entry."""
    execution = progress.setdefault(entry.execution, _Progress())
    if entry.end is None:
        execution.is_complete = True
    else:
        execution.ends[entry.channel] = entry.end


def _new_items(piece: Piece, progress: dict[ProcessId, _Progress], channels: Collection[int]) -> list[LogOutput | LogGap | LogEnd]:
    """Return the part of a piece that the follower does not have yet, and update the progress."""
    event, execution = piece.event, progress.setdefault(piece.execution, _Progress())
    while len(progress) > MAX_PROGRESS:
        del progress[next(iter(progress))]
    if execution.is_complete:
        return []
    if event is None:
        rest: list[LogOutput | LogGap | LogEnd] = [
            LogOutput(piece.execution, channel, text) for channel in channels if (text := execution.decoder(channel).decode(b"", True))
        ]
        return [*rest, LogEnd(piece.execution)]
    begin = execution.ends.get(event.channel, 0)
    end = event.offset + (event.bytes if isinstance(event, OutputGap) else len(event.data))
    if event.channel not in channels or end <= begin:
        return []
    execution.ends[event.channel] = end
    if isinstance(event, OutputGap):
        return [LogGap(piece.execution, event.channel, end - max(begin, event.offset))]
    text = execution.decoder(event.channel).decode(event.data[max(0, begin - event.offset) :])
    return [LogOutput(piece.execution, event.channel, text)] if text else []
