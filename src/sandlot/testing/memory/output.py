"""Output of a process or cell, addressed by byte offset. The newest bytes are kept, and are sent to the calls that receive the output.

Invariants:
- Standard output, standard error and events are sent in the order in which they were written.
- While no call receives the output, each channel keeps about the last :data:`~sandlot.protocol.schema.OUTPUT_BUFFER_BYTES` bytes. A call that
  requests dropped bytes gets the event ``lost`` with the number of dropped bytes.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

from sandlot.protocol.schema import OUTPUT_BUFFER_BYTES, STDERR, STDOUT
from sandlot.testing.memory.rpc import Call

CHUNK_BYTES = 60000

Item = tuple[int, bytes | dict[str, Any]]
"""Either a channel and bytes that were written to the channel, or ``EVENT`` and an event."""
EVENT = 0


class Follower:
    """One call that receives the output of a process or cell.

    Attributes:
        position: Index in the list of kept items, pieces of bytes and events, of the next item to look at.
        at: Channel -> offset of the next byte of the channel to send; earlier bytes are skipped.
        next_event: Number of the next event to send, from 0; earlier events are skipped.
        until: Number of items to send, counted from the start of the output; None: all items until the process or cell ends.
    """

    def __init__(self, call: Call, at: dict[int, int], next_event: int, until: int | None) -> None:
        self.call = call
        self.position = 0
        self.at = at
        self.next_event = next_event
        self.until = until
        self.within = 0


class OutputLog:
    """All output of one process or cell."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._starts: list[int] = []
        self._first_kept = {STDOUT: 0, STDERR: 0}
        self._kept = {STDOUT: 0, STDERR: 0}
        self.ends = {STDOUT: 0, STDERR: 0}
        self.events = 0
        self.followers: list[Follower] = []
        self._drained = asyncio.Event()

    def write(self, channel: int, data: bytes) -> None:
        """Append bytes to a channel of the output."""
        for at in range(0, len(data), CHUNK_BYTES):
            piece = data[at : at + CHUNK_BYTES]
            self._starts.append(self.ends[channel])
            self._items.append((channel, piece))
            self.ends[channel] += len(piece)
            self._kept[channel] += len(piece)
        if not self.followers:
            self._trim(channel)
        self.pump()

    def add_event(self, event: dict[str, Any]) -> None:
        """Append an event to the output."""
        self._starts.append(self.events)
        self._items.append((EVENT, event))
        self.events += 1
        self.pump()

    async def drained(self) -> None:
        """Wait until no follower has more than ``OUTPUT_BUFFER_BYTES`` bytes of unsent output."""
        while any(self._behind(follower) > OUTPUT_BUFFER_BYTES for follower in self.followers):
            self._drained.clear()
            await self._drained.wait()

    def follow(self, call: Call, stdout_from: int | None, stderr_from: int | None, *, events_from: int = 0, wait: bool = True) -> Follower | None:
        """Send output to a call.

        Args:
            call: Call that receives the output.
            stdout_from: Offset of the first byte of standard output to send; None: 0.
            stderr_from: Offset of the first byte of standard error to send; None: 0.
            events_from: Number of events to skip at the start of the output.
            wait: If True, also send all output that is written later. If False, send only the output that exists now.

        Returns:
            The new follower. None if an offset is negative or beyond the end of the output.
        """
        at = {STDOUT: stdout_from or 0, STDERR: stderr_from or 0}
        if any(not 0 <= offset <= self.ends[channel] for channel, offset in at.items()):
            return None
        for channel, offset in at.items():
            if offset < self._first_kept[channel]:
                call.event("lost", channel=channel, bytes=self._first_kept[channel] - offset)
                at[channel] = self._first_kept[channel]
        follower = Follower(call, at, max(0, events_from), None if wait else len(self._items))
        self.followers.append(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """Stop sending to a follower. Idempotent."""
        if follower in self.followers:
            self.followers.remove(follower)
        self._drained.set()

    def pump(self) -> None:
        """Send output to all followers until their send queues are full."""
        for follower in list(self.followers):
            self._send(follower)
        self._drained.set()

    def has_all(self, follower: Follower) -> bool:
        """Return whether a follower has received all output that was written until now."""
        return follower.position >= len(self._items)

    def has_enough(self, follower: Follower) -> bool:
        """Return whether a follower that was created with ``wait=False`` has received all output that existed at its creation."""
        return follower.until is not None and follower.position >= follower.until

    def copy(self) -> OutputLog:
        """Return a copy of the output without followers."""
        other = copy.deepcopy({name: value for name, value in vars(self).items() if name not in {"followers", "_drained"}})
        result = OutputLog()
        vars(result).update(other)
        return result

    def text(self, channel: int) -> str:
        """Return the bytes of a channel that are still kept, as text."""
        return b"".join(data for kind, data in self._items if kind == channel and isinstance(data, bytes)).decode("utf-8", "replace")

    def _send(self, follower: Follower) -> None:
        while follower.position < len(self._items):
            (kind, item), start = self._items[follower.position], self._starts[follower.position]
            if isinstance(item, dict):
                if start >= follower.next_event:
                    if follower.call.room() <= 0:
                        return
                    follower.call.event(item["event"], **{name: value for name, value in item.items() if name != "event"})
                    follower.next_event = start + 1
            else:
                skip = max(0, follower.at[kind] - start)
                while skip < len(item):
                    room = follower.call.room()
                    if room <= 0:
                        return
                    piece = item[skip : skip + room]
                    follower.call.data(kind, piece)
                    skip += len(piece)
                    follower.at[kind] = start + skip
            follower.position += 1

    def _behind(self, follower: Follower) -> int:
        return sum(self.ends.values()) - sum(follower.at.values())

    def _trim(self, channel: int) -> None:
        index = 0
        while self._kept[channel] > OUTPUT_BUFFER_BYTES + CHUNK_BYTES and index < len(self._items):
            kind, item = self._items[index]
            if kind == channel and item and isinstance(item, bytes):
                self._first_kept[channel] = self._starts[index] + len(item)
                self._kept[channel] -= len(item)
                self._items[index] = (channel, b"")
            index += 1
