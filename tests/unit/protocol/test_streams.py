"""Credit: when data may be sent, what it costs, and when it is returned; and the assembly of a message in pieces."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.protocol import frames
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.streams import WINDOW_BYTES, Assembly, Outgoing, Stream

MAX = 4084


def stream() -> Stream:
    return Stream(1, is_known=True)


@given(st.lists(st.tuples(st.sampled_from([frames.DATA, frames.MESSAGE]), st.integers(1, 400_000)), max_size=30))
def test_both_ends_agree_on_the_credit_and_buffers_are_limited(sent: list[tuple[int, int]]) -> None:
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
        if receiver.release_credit(price):
            sender.granted(receiver.take_grant())
    assert sender.credit_out == receiver.credit_in == WINDOW_BYTES - receiver.owed


def _piece(payload: bytes, *, more: bool, id_: int = 1, type_: int = frames.MESSAGE) -> frames.Frame:
    return frames.Frame(type_, id_, payload, more=more)


def test_size_and_memory_of_an_assembly_are_limited() -> None:
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
