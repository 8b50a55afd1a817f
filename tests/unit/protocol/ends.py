"""Two connections and the two pipes between them, without I/O. The test decides when and how many bytes move."""

from __future__ import annotations

from collections.abc import Iterator

from sandlot.protocol import events, frames
from sandlot.protocol.connection import GUEST, HOST, Connection

NONCE = b"0123456789abcdef"


class Ends:
    """A host, a guest, and the bytes in the pipes between them.

    The host writes whole frames. The guest may write a part of a frame, as a real guest does when its pipe is full.
    """

    def __init__(self, *, asleep: bool = False) -> None:
        self.host = Connection(HOST)
        self.guest = Connection(GUEST, asleep=asleep)
        self.to_guest = bytearray()
        self.to_host = bytearray()
        self.half_written = b""
        self.host_events: list[events.Event] = []
        self.guest_events: list[events.Event] = []

    @classmethod
    def greeted(cls) -> Ends:
        ends = cls()
        ends.host.hello(NONCE)
        ends.settle()
        assert ends.host.is_ready
        assert ends.guest.is_ready
        ends.clear()
        return ends

    def clear(self) -> None:
        self.host_events.clear()
        self.guest_events.clear()

    def host_writes(self, count: int = 1) -> int:
        """Move up to ``count`` frames of the host into its pipe, and return their number."""
        for written in range(count):
            frame = self.host.next_frame()
            if frame is None:
                return written
            assert len(frame) <= frames.HOST_FRAME_MAX
            self.to_guest += frame
            self.host_events += self.host.take_events()
        return count

    def guest_writes(self, size: int, *, batch: int = frames.GUEST_FRAME_MAX) -> int:
        """Move up to ``size`` bytes of the guest into its pipe, and return their number."""
        written = 0
        while written < size:
            if not self.half_written:
                self.half_written = self.guest.next_batch(batch)
                self.guest_events += self.guest.take_events()
                if not self.half_written:
                    break
            piece = self.half_written[: size - written]
            self.to_host += piece
            self.half_written = self.half_written[len(piece) :]
            written += len(piece)
        return written

    def guest_reads(self, size: int = 1 << 30) -> list[events.Event]:
        """Let the guest read bytes from its pipe."""
        data = bytes(self.to_guest[:size])
        del self.to_guest[:size]
        happened = self.guest.receive(data)
        for event in happened:
            if isinstance(event, events.Greeted):
                self.half_written = b""
                self.guest_events.clear()
            self.guest_events.append(event)
        return happened

    def host_reads(self, size: int = 1 << 30) -> list[events.Event]:
        """Let the host read bytes from its pipe."""
        data = bytes(self.to_host[:size])
        del self.to_host[:size]
        happened = self.host.receive(data)
        self.host_events += happened
        return happened

    def settle(self) -> None:
        """Move bytes until none are left. No credit is returned, so streams stop at their credit."""
        while self.host_writes(1 << 20) or self.guest_writes(1 << 20) or self.to_guest or self.to_host:
            self.guest_reads()
            self.host_reads()

    def arm(self, *, armed: bool) -> None:
        """Arm or disarm the guest, as before and after a checkpoint."""
        self.guest.armed = armed

    def kill_host(self, *, half_read: int = 0) -> None:
        """End the service after it has read some bytes without handling them. The pipes keep their content."""
        del self.to_host[:half_read]
        self.host = Connection(HOST)
        self.host_events = []

    def of(self, kind: type[events.Event], side: str = HOST) -> Iterator[events.Event]:
        """Return the events of one type at one end."""
        return (event for event in (self.host_events if side == HOST else self.guest_events) if isinstance(event, kind))
