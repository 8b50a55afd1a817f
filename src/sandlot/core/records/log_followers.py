"""Followers of the execution log, and the executions that are running.

Invariants:
- Without a follower, output is not kept here, and passing it on costs one look at a dictionary.
- The output that waits for one follower is limited and counts against the memory for client data. Output beyond the limit is counted, and
  the follower gets the number of lost bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.link.types import Output, OutputGap
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.specs import KIB

if TYPE_CHECKING:
    from sandlot.core.records.execution_log import LogEntry

MAX_WAITING_BYTES = 512 * KIB
"""Output that may wait for one follower."""
PIECE_BYTES = 128
"""Approximate memory of a piece beyond its output."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Output of an execution, or its end.

    Args:
        execution: Id of the execution.
        event: Output or a gap in it; None is the end of the execution.
    """

    execution: ProcessId
    event: Output | OutputGap | None


class LogFollower:
    """Output that waits for one follower of a sandbox. Close the follower when it is no longer needed.

    Args:
        log_followers: Registry of the follower.
        sandbox: Sandbox whose executions are followed.
        buffers: Memory for client data of this sandbox.
    """

    __slots__ = ("_buffers", "_held_bytes", "_log_followers", "_pieces", "_sandbox", "wakeup")

    def __init__(self, log_followers: LogFollowers, sandbox: SandboxId, buffers: BufferBudget) -> None:
        self._buffers = buffers
        self._log_followers = log_followers
        self._sandbox = sandbox
        self._pieces: deque[Piece] = deque()
        self._held_bytes = 0
        self.wakeup = asyncio.Event()
        """Set when :meth:`take` has pieces to return."""

    def put(self, piece: Piece) -> None:
        """Add a piece. Merge it with the last one if both are gaps that touch."""
        event = piece.event
        if isinstance(event, Output) and (self._held_bytes + len(event.data) > MAX_WAITING_BYTES or not self._buffers.has(len(event.data))):
            event = OutputGap(event.channel, len(event.data), event.offset)
        last = self._pieces[-1] if self._pieces else None
        if isinstance(event, OutputGap) and last is not None and last.execution == piece.execution and _follows(last.event, event):
            gap = self._pieces.pop().event
            event = OutputGap(event.channel, event.bytes + gap.bytes, gap.offset) if isinstance(gap, OutputGap) else event
        else:
            self._held_bytes += _size(event)
            self._buffers.take_anyway(_size(event))
        self._pieces.append(Piece(piece.execution, event))
        self.wakeup.set()

    def take(self) -> list[Piece]:
        """Return all waiting pieces and free their memory."""
        taken = list(self._pieces)
        self._pieces.clear()
        self._buffers.give(self._held_bytes)
        self._held_bytes = 0
        self.wakeup.clear()
        return taken

    def close(self) -> None:
        """Stop following. Idempotent."""
        self._log_followers.remove(self, self._sandbox)
        self.take()


class LogFollowers:
    """Followers by sandbox, and running executions by id."""

    __slots__ = ("_by_sandbox", "running")

    def __init__(self) -> None:
        self._by_sandbox: dict[SandboxId, set[LogFollower]] = {}
        self.running: WeakValueDictionary[ProcessId, LogEntry] = WeakValueDictionary()
        """Entries of the executions that may still write or end."""

    @property
    def followed(self) -> bool:
        """True if any sandbox has a follower."""
        return bool(self._by_sandbox)

    def follow(self, sandbox: SandboxId, buffers: BufferBudget) -> LogFollower:
        """Follow the output that the executions of a sandbox write from now on.

        Args:
            sandbox: Id of the sandbox.
            buffers: Memory for client data of the sandbox.
        """
        follower = LogFollower(self, sandbox, buffers)
        self._by_sandbox.setdefault(sandbox, set()).add(follower)
        return follower

    def remove(self, follower: LogFollower, sandbox: SandboxId) -> None:
        """Remove a follower. Idempotent."""
        followers = self._by_sandbox.get(sandbox, set())
        followers.discard(follower)
        if not followers:
            self._by_sandbox.pop(sandbox, None)

    def started(self, entry: LogEntry) -> None:
        """Register an execution that starts, or that an earlier service started."""
        self.running[entry.id] = entry

    def wrote(self, entry: LogEntry, event: Output | OutputGap) -> None:
        """Pass the output of an execution to the followers."""
        self._put(entry, event)

    def ended(self, entry: LogEntry) -> None:
        """Remove an execution, and pass its end to the followers."""
        self.running.pop(entry.id, None)
        self._put(entry, None)

    def _put(self, entry: LogEntry, event: Output | OutputGap | None) -> None:
        for follower in self._by_sandbox.get(entry.sandbox, ()):
            follower.put(Piece(entry.id, event))


def _follows(before: Output | OutputGap | None, after: OutputGap) -> bool:
    """Return whether a gap starts where the gap before it ended."""
    return isinstance(before, OutputGap) and before.channel == after.channel and before.offset + before.bytes == after.offset


def _size(event: Output | OutputGap | None) -> int:
    return PIECE_BYTES + (len(event.data) if isinstance(event, Output) else 0)
