"""The order and the limits of the send queue."""

from __future__ import annotations

from sandlot.protocol import frames, values
from sandlot.protocol.send_queue import SendQueue
from sandlot.protocol.streams import Stream

MAX = 4084


def known(id_: int) -> Stream:
    return Stream(id_, is_known=True)


def taken(outbox: SendQueue) -> list[tuple[int, int, int]]:
    """Return type, stream and payload size of every frame that may be sent now."""
    found = []
    while (item := outbox.next()) is not None:
        _, type_, _, _, stream, size = frames.HEADER.unpack_from(item[0])
        found.append((type_, stream, size))
    return found


def test_reset_fits_into_one_frame() -> None:
    for fields in ({}, {"path": "x" * 5000}, {"hint": "\U0001f600" * 2000}):
        outbox = SendQueue(MAX)
        outbox.put_reset(known(1), "conflict", "\U0001f600" * 5000, fields)
        item = outbox.next()
        assert item is not None
        assert len(item[0]) <= frames.HOST_FRAME_MAX
        assert values.decode(item[0][frames.HEADER_BYTES :])["code"] == "conflict"


def test_repeated_hello_is_queued_once() -> None:
    outbox = SendQueue(MAX)
    for _ in range(5):
        outbox.put_control(b"hello")
    assert outbox.next_control() == b"hello"
    assert outbox.next_control() is None
