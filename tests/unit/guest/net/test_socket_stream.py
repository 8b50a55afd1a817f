"""Copying between a real socket and a recorded stream."""

from __future__ import annotations

import socket
from collections.abc import Generator
from typing import TYPE_CHECKING, cast

import pytest

from sandlot.guest.loop import Loop
from sandlot.guest.net.socket_stream import SocketStream
from sandlot.guest.streams import Stream
from sandlot.protocol.fast_imports import socket as fast_socket
from sandlot.protocol.schema import BODY, STDERR

if TYPE_CHECKING:
    from sandlot.guest.net.socket_stream import SocketStreamOwner

PATIENCE_S = 20.0
"""Limit of a read that only a defect keeps waiting."""


class RecordedStream:
    """A stream that records the credit it gets back, and accepts no bytes for the host."""

    def __init__(self) -> None:
        self.consumed_bytes = 0

    def consumed(self, credit: int) -> None:
        self.consumed_bytes += credit

    def room(self) -> int:
        return 0


class Copied:
    """A :class:`SocketStream` between the recorded stream and a client of this test."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.stream = RecordedStream()
        self.copy = SocketStream(self.loop, cast("Stream", self.stream), cast("SocketStreamOwner", None))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname(), timeout=PATIENCE_S)
            accepted, _ = listener.accept()
        accepted.setblocking(False)
        self.copy.start(fast_socket.socket(fileno=accepted.detach()))

    def turn(self) -> None:
        self.loop.call_later(0.01, lambda: None)  # maximum time of a turn
        self.loop.turn()


@pytest.fixture
def copied() -> Generator[Copied]:
    made = Copied()
    with made.client:
        yield made
    made.copy.close()


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("pieces", [[b""], [b"", b"a"], [b"a", b"", b"b"], [b"a", b""], [b""] * 100])
def test_empty_pieces_from_the_host_are_dropped_and_their_credit_is_returned(copied: Copied, pieces: list[bytes]) -> None:
    for piece in pieces:
        copied.copy.on_bytes(BODY, piece, max(len(piece), 1))
    copied.copy.on_end()
    copied.turn()

    received = b""
    while data := copied.client.recv(100):
        received += data
    assert received == b"".join(pieces)
    assert copied.stream.consumed_bytes == len(pieces)
    assert not copied.copy.has_output


def test_bytes_on_another_channel_are_dropped(copied: Copied) -> None:
    copied.copy.on_bytes(STDERR, b"no", 2)
    copied.copy.on_bytes(BODY, b"yes", 3)
    copied.turn()

    assert copied.client.recv(100) == b"yes"
    assert copied.stream.consumed_bytes == 5
