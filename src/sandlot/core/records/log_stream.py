"""Output of the executions of a sandbox on its way to a follower.

The output that waits for one follower is limited and counts against the memory for client data. Without followers, this module keeps no output.
"""

from __future__ import annotations

import asyncio
import codecs
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sandlot.core.records.execution_log import ExecutionLog, OpenLogEntry
from sandlot.core.sandbox import Sandbox
from sandlot.model import utf8
from sandlot.model.executions import RUNNING, Channel, Output, OutputGap
from sandlot.model.history import LogEnd, LogEntry, LogGap, LogOutput
from sandlot.model.ids import ProcessId
from sandlot.model.records import ExecutionRecord
from sandlot.model.specs import KIB

MAX_WAITING_BYTES = 512 * KIB
"""Maximum bytes of output that wait for one follower."""
PIECE_BYTES = 128
"""Approximate memory of a :class:`Piece` in addition to its output."""
MAX_PROGRESS = 4096
"""Maximum number of executions whose progress one follower remembers."""


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
class _ExecutionProgress:
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


class Progress:
    """Part of the output that a follower of some channels already has, by execution."""

    __slots__ = ("_channels", "_executions")

    def __init__(self, channels: Collection[int]) -> None:
        self._channels = channels
        self._executions: dict[ProcessId, _ExecutionProgress] = {}

    def skip(self, entry: LogEntry) -> None:
        """Record that the follower has received the output of an entry."""
        execution = self._executions.setdefault(entry.execution, _ExecutionProgress())
        if entry.end is None:
            execution.is_complete = True
        else:
            execution.ends[entry.channel] = entry.end
            execution.decoder(entry.channel).decode(entry.begun)

    def new_items(self, piece: Piece) -> list[LogOutput | LogGap | LogEnd]:
        """Return the part of a piece that the follower does not have yet, and record that the follower has received this part."""
        event, execution = piece.event, self._executions.setdefault(piece.execution, _ExecutionProgress())
        while len(self._executions) > MAX_PROGRESS:
            del self._executions[next(iter(self._executions))]
        if execution.is_complete:
            return []
        if event is None:
            rest: list[LogOutput | LogGap | LogEnd] = [
                LogOutput(piece.execution, channel, text) for channel in self._channels if (text := execution.decoder(channel).decode(b"", True))
            ]
            return [*rest, LogEnd(piece.execution)]
        begin = execution.ends.get(event.channel, 0)
        end = event.offset + (event.bytes if isinstance(event, OutputGap) else len(event.data))
        if event.channel not in self._channels or end <= begin:
            return []
        execution.ends[event.channel] = end
        if isinstance(event, OutputGap):
            gap = LogGap(piece.execution, event.channel, end - max(begin, event.offset))
            text = execution.decoder(event.channel).decode(b"", True)
            return [LogOutput(piece.execution, event.channel, text), gap] if text else [gap]
        text = execution.decoder(event.channel).decode(event.data[max(0, begin - event.offset) :])
        return [LogOutput(piece.execution, event.channel, text)] if text else []


def output_of(record: ExecutionRecord, running: OpenLogEntry | None, channels: Collection[int]) -> list[LogEntry]:
    """Return the output of one execution: from its log entry while the execution runs, otherwise from its record. Pure."""
    id_, entries = ProcessId(record.id), []
    texts: Mapping[int, tuple[str, int]] = {
        Channel.STDOUT: (record.stdout, record.stdout_omitted_bytes),
        Channel.STDERR: (record.stderr, record.stderr_omitted_bytes),
    }
    for channel in channels:
        if running is not None:
            kept = running.captures[channel]
            content = kept.content()
            begun = content[len(content) - utf8.incomplete_end(content) :]
            text = content.removesuffix(begun).decode("utf-8", "replace")
            entry = LogEntry(id_, record.created_at, channel, text, kept.omitted, kept.written_bytes, begun)
        else:
            entry = LogEntry(id_, record.created_at, channel, *texts[channel], None if record.status != RUNNING else 0)
        if entry.text or entry.begun:
            entries.append(entry)
    return entries
