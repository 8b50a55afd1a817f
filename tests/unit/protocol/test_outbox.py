"""Whose turn it is."""

from __future__ import annotations

from sandlot.protocol import frames, values
from sandlot.protocol.outbox import Outbox, parse_credit
from sandlot.protocol.streams import QUEUE_BYTES, WINDOW_BYTES, Outgoing, Stream

MAX = 4084


def known(id_: int) -> Stream:
    return Stream(id_, is_known=True)


def taken(outbox: Outbox) -> list[tuple[int, int, int]]:
    """Type, stream and payload size of every frame that may be sent now."""
    found = []
    while (item := outbox.next()) is not None:
        _, type_, _, _, stream, size = frames.HEADER.unpack_from(item[0])
        found.append((type_, stream, size))
    return found


def test_the_connection_comes_first_then_resets_credits_and_streams() -> None:
    outbox = Outbox(MAX)
    data, credit, reset = known(1), known(3), known(5)
    outbox.put(data, Outgoing(frames.DATA, b"x", 1))
    credit.arrived(WINDOW_BYTES)
    assert credit.owes(WINDOW_BYTES)
    outbox.put_credit(credit)
    outbox.put_reset(reset, "conflict", "no", {})
    outbox.put_control(frames.encode(frames.QUIESCE, 0))
    assert [type_ for type_, _, _ in taken(outbox)] == [frames.QUIESCE, frames.RESET, frames.CREDIT, frames.DATA]


def test_streams_take_turns_frame_by_frame() -> None:
    outbox = Outbox(MAX)
    for id_, size in ((1, 10), (3, 2), (5, 1)):
        stream = known(id_)
        for _ in range(size):
            outbox.put(stream, Outgoing(frames.DATA, b"x", 1))
    assert [stream for _, stream, _ in taken(outbox)] == [1, 3, 5, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1]


def test_a_flood_delays_another_stream_by_one_frame() -> None:
    outbox = Outbox(MAX)
    flood, quiet = known(1), known(3)
    outbox.put(flood, Outgoing(frames.DATA, b"x" * WINDOW_BYTES, 1))
    outbox.next()
    outbox.put(quiet, Outgoing(frames.MESSAGE, b"x"))
    assert [stream for _, stream, _ in taken(outbox)][:2] == [1, 3]


def test_a_stream_without_credit_has_no_turn_until_it_is_granted() -> None:
    outbox = Outbox(MAX)
    stuck, other = known(1), known(3)
    stuck.credit_out = 0
    outbox.put(stuck, Outgoing(frames.DATA, b"x", 1))
    outbox.put(stuck, Outgoing(frames.END, b""))
    outbox.put(other, Outgoing(frames.DATA, b"x", 1))
    assert [stream for _, stream, _ in taken(outbox)] == [3]
    stuck.granted(1)
    outbox.wake(stuck)
    outbox.wake(stuck)
    assert taken(outbox) == [(frames.DATA, 1, 1), (frames.END, 1, 0)]


def test_one_message_is_in_pieces_at_a_time_and_everything_else_goes_on_between() -> None:
    outbox = Outbox(MAX)
    streams = {id_: known(id_) for id_ in (1, 3, 5)}
    for id_ in (1, 3):
        outbox.put(streams[id_], Outgoing(frames.MESSAGE, b"x" * 2 * MAX))
    outbox.put(streams[5], Outgoing(frames.DATA, b"x" * 3 * MAX, 1))
    order = [stream for _, stream, _ in taken(outbox)]
    assert sorted(order) == [1, 1, 3, 3, 5, 5, 5]
    assert max(at for at, stream in enumerate(order) if stream == 1) < min(at for at, stream in enumerate(order) if stream == 3)
    assert order[1] == 5, "DATA does not wait for the message"


def test_opens_leave_in_the_order_of_their_ids() -> None:
    outbox = Outbox(MAX)
    streams = [Stream(id_, is_known=False) for id_ in (1, 3, 5, 7)]
    for stream, size in zip(streams, (2 * MAX, 2 * MAX, 10, 10), strict=True):
        outbox.put(stream, Outgoing(frames.OPEN, b"x" * size))
    outbox.forget(streams[2])
    assert [(type_, stream) for type_, stream, _ in taken(outbox)] == [
        (frames.OPEN, 1),
        (frames.MESSAGE, 1),
        (frames.OPEN, 3),
        (frames.OPEN, 7),
        (frames.MESSAGE, 3),
    ]


def test_a_message_in_pieces_does_not_wait_for_credit_and_so_blocks_nobody() -> None:
    outbox = Outbox(MAX)
    first, second = known(1), known(3)
    first.credit_out = 1
    outbox.put(first, Outgoing(frames.MESSAGE, b"x" * 5 * MAX))
    outbox.put(second, Outgoing(frames.MESSAGE, b"x" * 2 * MAX))
    assert len(taken(outbox)) == 7


def test_a_stream_that_is_over_sends_nothing_and_frees_the_turn() -> None:
    outbox = Outbox(MAX)
    first, second = known(1), known(3)
    outbox.put(first, Outgoing(frames.MESSAGE, b"x" * 2 * MAX))
    outbox.put(second, Outgoing(frames.MESSAGE, b"x" * 2 * MAX))
    outbox.next()
    outbox.forget(first)
    assert [stream for _, stream, _ in taken(outbox)] == [3, 3]


def test_nobody_hears_of_a_stream_whose_open_never_left() -> None:
    outbox = Outbox(MAX)
    unknown, other = Stream(1, is_known=False), Stream(3, is_known=False)
    outbox.put(unknown, Outgoing(frames.OPEN, b"x"))
    outbox.put(other, Outgoing(frames.OPEN, b"x"))
    outbox.forget(unknown)
    outbox.put_reset(unknown, "conflict", "no", {})
    assert taken(outbox) == [(frames.OPEN, 3, 1)]


def test_a_reset_fits_one_frame_whatever_it_says() -> None:
    for fields in ({}, {"path": "x" * 5000}, {"hint": "\U0001f600" * 2000}):
        outbox = Outbox(MAX)
        outbox.put_reset(known(1), "conflict", "\U0001f600" * 5000, fields)
        item = outbox.next()
        assert item is not None
        assert len(item[0]) <= frames.HOST_FRAME_MAX
        assert values.decode(item[0][frames.HEADER_BYTES :])["code"] == "conflict"


def test_a_credit_of_a_stream_that_is_over_is_not_sent() -> None:
    outbox = Outbox(MAX)
    stream = known(1)
    stream.arrived(WINDOW_BYTES)
    stream.owes(WINDOW_BYTES)
    outbox.put_credit(stream)
    outbox.forget(stream)
    assert taken(outbox) == []


def test_a_greeting_waits_once_however_often_it_is_said() -> None:
    outbox = Outbox(MAX)
    for _ in range(5):
        outbox.put_control(b"hello")
    assert outbox.next_control() == b"hello"
    assert outbox.next_control() is None


def test_writable_is_told_once_when_half_of_the_queue_is_gone() -> None:
    outbox = Outbox(MAX)
    stream = known(1)
    stream.wants_writable = True
    outbox.put(stream, Outgoing(frames.DATA, b"x" * QUEUE_BYTES, 1))
    while stream.queued_bytes * 2 > QUEUE_BYTES:
        assert outbox.writable == []
        outbox.next()
    assert outbox.writable == [1]
    taken(outbox)
    assert outbox.writable == [1]


def test_a_credit_is_four_bytes() -> None:
    assert parse_credit(b"\0\0\1\0") == 256
    assert parse_credit(b"") is None
    assert parse_credit(b"\0\0\0\1\0") is None
