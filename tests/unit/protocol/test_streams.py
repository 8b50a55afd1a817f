"""Credit: what may begin, what it costs, when it is given back; and the one message in pieces."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.streams import COST_MIN, WINDOW_BYTES, Assembly, Outgoing, Stream, cost

MAX = 4084


def stream() -> Stream:
    return Stream(1, is_known=True)


def test_what_is_small_costs_what_it_takes_to_keep() -> None:
    assert [cost(size) for size in (1, COST_MIN, COST_MIN + 1, 5000)] == [COST_MIN, COST_MIN, COST_MIN + 1, 5000]


def test_something_begins_while_any_credit_is_left_and_is_charged_whole() -> None:
    sender = stream()
    sender.credit_out = 1
    sender.put(Outgoing(frames.DATA, b"x" * 100, 1))
    sender.put(Outgoing(frames.DATA, b"x", 1))
    assert not sender.lacks_credit
    sender.take(MAX, may_fragment=True)
    assert sender.credit_out == 1 - COST_MIN
    assert sender.lacks_credit


def test_a_message_that_has_begun_needs_no_more_credit() -> None:
    sender = stream()
    sender.credit_out = 1
    sender.put(Outgoing(frames.MESSAGE, b"x" * 3 * MAX))
    pieces = []
    while sender.queue:
        assert not sender.lacks_credit
        taken = sender.take(MAX, may_fragment=True)
        assert taken is not None
        pieces.append(taken[1])
    assert pieces == [True, True, False]
    assert sender.credit_out == 1 - 3 * MAX


def test_opening_costs_nothing() -> None:
    sender = stream()
    sender.put(Outgoing(frames.OPEN, b"x" * 3 * MAX))
    types = []
    while sender.queue:
        taken = sender.take(MAX, may_fragment=True)
        assert taken is not None
        types.append(taken[0][1])
    assert types == [frames.OPEN, frames.MESSAGE, frames.MESSAGE]
    assert sender.credit_out == WINDOW_BYTES


def test_an_end_needs_no_credit_and_nothing_follows_it() -> None:
    sender = stream()
    sender.credit_out = 0
    assert sender.put(Outgoing(frames.END, b""))
    assert not sender.put(Outgoing(frames.END, b""))
    assert not sender.put(Outgoing(frames.DATA, b"x"))
    assert not sender.lacks_credit
    assert sender.take(MAX, may_fragment=True) == (frames.encode(frames.END, 1), False)
    assert sender.sent_end


def test_a_message_in_pieces_waits_for_its_turn_and_a_whole_one_does_not() -> None:
    sender = stream()
    sender.put(Outgoing(frames.MESSAGE, b"x" * (MAX + 1)))
    assert sender.take(MAX, may_fragment=False) is None
    other = stream()
    other.put(Outgoing(frames.MESSAGE, b"x" * MAX))
    assert other.take(MAX, may_fragment=False) is not None


def test_a_receiver_notices_what_begins_without_credit() -> None:
    receiver = stream()
    receiver.arrived(WINDOW_BYTES - 1)
    receiver.begins()
    receiver.arrived(1)
    with pytest.raises(ProtocolError, match="credit"):
        receiver.begins()


def test_credit_is_given_back_by_halves_of_the_window_and_once() -> None:
    receiver = stream()
    receiver.arrived(WINDOW_BYTES)
    assert not receiver.owes(WINDOW_BYTES // 2 - 1)
    assert receiver.owes(1)
    assert not receiver.owes(1), "one CREDIT is due already"
    assert receiver.grant() == WINDOW_BYTES // 2 + 1
    assert receiver.credit_in == WINDOW_BYTES // 2 + 1
    assert receiver.grant() == 0


@pytest.mark.parametrize("granted", [0, 1, 1 << 31])
def test_more_credit_than_was_used_is_a_violation(granted: int) -> None:
    with pytest.raises(ProtocolError, match="granted"):
        stream().granted(granted)


@given(st.lists(st.tuples(st.sampled_from([frames.DATA, frames.MESSAGE]), st.integers(1, 400_000)), max_size=30))
def test_both_ends_count_the_same_and_what_waits_is_bounded(sent: list[tuple[int, int]]) -> None:
    sender, receiver = stream(), stream()
    for type_, size in sent:
        sender.put(Outgoing(type_, b"x" * size))
    held: list[int] = []
    size = 0
    while sender.queue or held:
        while sender.queue and not sender.lacks_credit:
            taken = sender.take(65524, may_fragment=True)
            assert taken is not None
            frame, more = taken
            if not size:
                receiver.begins()
            size += len(frame) - frames.HEADER_BYTES
            if not more:
                held.append(receiver.arrived(size))
                size = 0
            assert sum(held[:-1]) < WINDOW_BYTES
        price = held.pop(0)
        if receiver.owes(price):
            sender.granted(receiver.grant())
    assert sender.credit_out == receiver.credit_in == WINDOW_BYTES - receiver.owed


def _piece(payload: bytes, *, more: bool, id_: int = 1, type_: int = frames.MESSAGE) -> frames.Frame:
    return frames.Frame(type_, id_, payload, more=more)


def test_pieces_are_put_together_and_whole_messages_pass_between_them() -> None:
    assembly = Assembly(100)
    assert assembly.add(_piece(b"a", more=True)) is None
    assert assembly.add(_piece(b"whole", more=False, id_=3)) == b"whole"
    assert assembly.add(_piece(b"b", more=True)) is None
    assert assembly.add(_piece(b"c", more=False)) == b"abc"
    assert assembly.stream == 0


def test_a_second_message_in_pieces_is_a_violation() -> None:
    assembly = Assembly(100)
    assembly.add(_piece(b"a", more=True))
    with pytest.raises(ProtocolError, match="at once"):
        assembly.add(_piece(b"b", more=True, id_=3))


def test_an_assembly_is_bounded_in_bytes_and_in_memory() -> None:
    assembly = Assembly(1000)
    for _ in range(1000):
        assembly.add(_piece(b"x", more=True))
    with pytest.raises(ProtocolError, match="more than 1000"):
        assembly.add(_piece(b"x", more=True))
    tracemalloc.start()
    try:
        empty = Assembly(1000)
        for _ in range(50_000):
            empty.add(_piece(b"", more=True))
        assert tracemalloc.get_traced_memory()[0] < 10_000, "pieces of nothing are kept as nothing"
    finally:
        tracemalloc.stop()
