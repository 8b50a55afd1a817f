"""The guest's end of the link: what is written, and when."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Generator

import pytest

from sandlot.guest.connection import LinkConnection
from sandlot.guest.loop import READ, Loop
from sandlot.protocol import events, handshake
from sandlot.protocol.connection import GENERATION, HOST, Connection


class Link:
    """The guest's end of the link after the handshake and the first wake, and the host's end."""

    def __init__(self) -> None:
        self.loop = Loop()
        their_in, self._to = os.pipe()
        self._from, their_out = os.pipe()
        self._fds = (their_in, self._to, self._from, their_out)
        os.set_blocking(self._from, False)
        self.opened: list[int] = []
        self.connection = LinkConnection(self.loop, their_in, their_out)
        self.connection.start(self._happened)
        self.connection.protocol.asleep = False
        self.host = Connection(HOST)
        self.host.hello(b"n" * handshake.NONCE_BYTES)
        self.exchange()

    def _happened(self, event: events.Event) -> None:
        if isinstance(event, events.Opened):
            self.opened.append(event.stream)

    def exchange(self) -> None:
        """Exchange frames until neither end has more."""
        for _ in range(4):
            while (frame := self.host.next_frame()) is not None:
                os.write(self._to, frame)
            self.turn()
            self.host.receive(self.written())

    def turn(self) -> None:
        for _ in range(2):
            self.loop.call_soon(lambda: None)
            self.loop.turn()

    def written(self) -> bytes:
        try:
            return os.read(self._from, 1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def link() -> Generator[Link]:
    made = Link()
    made.host.open({"call": "x"})
    made.exchange()
    yield made
    made.close()


def test_writing_continues_after_a_handshake_if_the_epoll_entry_was_lost(link: Link) -> None:
    """A sandbox that was saved while the link was full may have lost the epoll entry that reports room."""
    (stream,) = link.opened
    out = link.connection._fd_out  # noqa: SLF001 - the pipe
    filled = os.write(out, bytes(1 << 20))
    link.connection.protocol.send_bytes(stream, 1, b"output")
    link.connection.flush_soon()
    link.turn()
    link.loop._epoll.unregister(out)  # noqa: SLF001 - as gVisor leaves it
    assert len(link.written()) == filled
    link.turn()
    assert link.written() == b""
    link.host = Connection(HOST)
    link.host.hello(b"m" * handshake.NONCE_BYTES)
    link.exchange()
    assert link.host.is_ready


def test_partly_written_frame_is_dropped_at_a_new_handshake(link: Link) -> None:
    (stream,) = link.opened
    out = link.connection._fd_out  # noqa: SLF001 - the pipe
    os.write(out, bytes(1 << 20))
    assert len(os.read(link._from, 4096)) == 4096  # noqa: SLF001 - its other end
    link.connection.protocol.send_bytes(stream, 1, b"x" * 10_000)
    link.connection.flush_soon()
    link.turn()
    assert select.select([], [out], [], 0)[1] == [], "the pipe is full, with a part of the frame"
    link.host = Connection(HOST)
    link.host.hello(b"m" * handshake.NONCE_BYTES)
    os.write(link._to, link.host.next_frame() or b"")  # noqa: SLF001 - the pipe to the guest
    link.turn()

    link.written()
    link.turn()

    assert link.written() == handshake.welcome(b"m" * handshake.NONCE_BYTES, GENERATION, asleep=False)


def test_handshake_is_completed_without_a_free_descriptor(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(select, "epoll", full)
    link.host = Connection(HOST)
    link.host.hello(b"m" * handshake.NONCE_BYTES)
    link.exchange()
    assert link.host.is_ready


def test_closed_descriptor_does_not_prevent_the_rearming_of_others(link: Link) -> None:
    theirs, ours = os.pipe()
    link.loop.watch(theirs, READ, lambda _: None)
    os.close(theirs)
    os.close(ours)
    link.loop.rearm()
    link.loop.unwatch(theirs)
    link.host.open({"call": "y"})
    link.exchange()
    assert len(link.opened) == 2
