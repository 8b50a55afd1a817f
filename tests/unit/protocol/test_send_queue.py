"""The order and the limits of the send queue."""

from __future__ import annotations

from sandlot.protocol import frames, values
from sandlot.protocol.send_queue import SendQueue
from sandlot.protocol.streams import WINDOW_BYTES, Outgoing, Stream

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


def test_nothing_is_kept_of_streams_that_are_over_while_the_peer_reads_nothing() -> None:
    outbox = SendQueue(MAX)
    for id_ in range(2, 2000, 2):
        stream = known(id_)
        outbox.put(stream, Outgoing(frames.DATA, b"x"))
        assert stream.release_credit(WINDOW_BYTES)
        outbox.put_credit(stream)
        outbox.forget(stream)
    assert outbox.resetting(2) == 0
    assert not outbox._credits  # noqa: SLF001 - what is kept is the promise
    assert not outbox._turns  # noqa: SLF001


def test_resets_are_counted_until_they_are_sent() -> None:
    outbox = SendQueue(MAX)
    for id_ in (1, 2, 4):
        outbox.put_reset(known(id_), "conflict", "", {})
    assert (outbox.resetting(3), outbox.resetting(6)) == (1, 2)
    assert [stream for _, stream, _ in taken(outbox)] == [1, 2, 4]
    assert (outbox.resetting(3), outbox.resetting(6)) == (0, 0)
