"""Who follows what the runs of a sandbox write, and the runs that go on.

Laws:
- Where nobody follows, nothing is kept here of what is written, and telling it costs one look at a set.
- What waits for one who follows is bounded, and is of the memory that is held for clients; what is too much is counted, and told as lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.link.types import Lost, Output
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.specs import KIB

if TYPE_CHECKING:
    from sandlot.core.records.execution_log import LogEntry

MOST_BYTES = 512 * KIB
"""Waiting for one who follows."""
PIECE_BYTES = 128
"""About what a piece takes beyond its bytes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a run wrote, or that it ended.

    Args:
        execution: The run.
        event: The piece; None is its end.
    """

    execution: ProcessId
    event: Output | Lost | None


class LogFollower:
    """One who follows; close it in the end.

    Args:
        log_followers: Where it is counted.
        sandbox: Whose runs.
        buffers: Where the memory is taken from.
    """

    __slots__ = ("_buffers", "_held_bytes", "_log_followers", "_pieces", "_sandbox", "told")

    def __init__(self, log_followers: LogFollowers, sandbox: SandboxId, buffers: BufferBudget) -> None:
        self._buffers = buffers
        self._log_followers = log_followers
        self._sandbox = sandbox
        self._pieces: deque[Piece] = deque()
        self._held_bytes = 0
        self.told = asyncio.Event()
        """Set when there is something to take."""

    def put(self, piece: Piece) -> None:
        """The next piece."""
        event = piece.event
        if isinstance(event, Output) and (self._held_bytes + len(event.data) > MOST_BYTES or not self._buffers.has(len(event.data))):
            event = Lost(event.channel, len(event.data), event.offset)
        last = self._pieces[-1] if self._pieces else None
        if isinstance(event, Lost) and last is not None and last.execution == piece.execution and _follows(last.event, event):
            gap = self._pieces.pop().event
            event = Lost(event.channel, event.bytes + gap.bytes, gap.offset) if isinstance(gap, Lost) else event
        else:
            self._held_bytes += _size(event)
            self._buffers.take_anyway(_size(event))
        self._pieces.append(Piece(piece.execution, event))
        self.told.set()

    def take(self) -> list[Piece]:
        """All that waits."""
        taken = list(self._pieces)
        self._pieces.clear()
        self._buffers.give(self._held_bytes)
        self._held_bytes = 0
        self.told.clear()
        return taken

    def close(self) -> None:
        """Follow no more. Idempotent."""
        self._log_followers.leave(self, self._sandbox)
        self.take()


class LogFollowers:
    """All who follow, and all runs that go on."""

    __slots__ = ("_by_sandbox", "running")

    def __init__(self) -> None:
        self._by_sandbox: dict[SandboxId, set[LogFollower]] = {}
        self.running: WeakValueDictionary[ProcessId, LogEntry] = WeakValueDictionary()
        """Runs of which something may still be heard."""

    @property
    def followed(self) -> bool:
        """Whether anybody follows anything."""
        return bool(self._by_sandbox)

    def follow(self, sandbox: SandboxId, buffers: BufferBudget) -> LogFollower:
        """Follow what a sandbox's runs write from now on.

        Args:
            sandbox: Its id.
            buffers: Where the memory is taken from for what waits.
        """
        tail = LogFollower(self, sandbox, buffers)
        self._by_sandbox.setdefault(sandbox, set()).add(tail)
        return tail

    def leave(self, tail: LogFollower, sandbox: SandboxId) -> None:
        """One follows no more."""
        tails = self._by_sandbox.get(sandbox, set())
        tails.discard(tail)
        if not tails:
            self._by_sandbox.pop(sandbox, None)

    def begun(self, entry: LogEntry) -> None:
        """A run begins, or is gone on with."""
        self.running[entry.id] = entry

    def tell(self, entry: LogEntry, event: Output | Lost) -> None:
        """A run wrote something."""
        self._put(entry, event)

    def ended(self, entry: LogEntry) -> None:
        """Nothing more is heard of a run."""
        self.running.pop(entry.id, None)
        self._put(entry, None)

    def _put(self, entry: LogEntry, event: Output | Lost | None) -> None:
        for tail in self._by_sandbox.get(entry.sandbox, ()):
            tail.put(Piece(entry.id, event))


def _follows(before: Output | Lost | None, after: Lost) -> bool:
    """Whether a gap goes on where one before it ended."""
    return isinstance(before, Lost) and before.channel == after.channel and before.offset + before.bytes == after.offset


def _size(event: Output | Lost | None) -> int:
    return PIECE_BYTES + (len(event.data) if isinstance(event, Output) else 0)
