"""Output addressed by offset: kept bytes, reports of lost bytes, and backpressure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandlot.guest.loop import READ_BYTES
from sandlot.guest.output import Buffer, OutputLog


class Sink:
    """A stream that accepts ``budget`` bytes."""

    def __init__(self, budget: int = 1 << 60) -> None:
        self.budget = budget
        self.got: dict[int, bytes] = {1: b"", 2: b""}
        self.gaps: list[tuple[int, int]] = []

    def room(self) -> int:
        return self.budget

    def data(self, channel: int, piece: bytes) -> None:
        assert 0 < len(piece) <= self.budget
        self.budget -= len(piece)
        self.got[channel] += piece

    def lost(self, channel: int, size: int) -> None:
        self.gaps.append((channel, size))


@given(st.lists(st.binary(min_size=1, max_size=300_000), max_size=30), st.integers(1, 1_000_000))
def test_buffer_keeps_the_last_bytes_with_their_offsets(pieces: list[bytes], limit: int) -> None:
    buffer = Buffer(limit)
    for piece in pieces:
        buffer.append(piece)
    everything = b"".join(pieces)
    assert buffer.end == len(everything)
    assert buffer.end - buffer.start >= min(len(everything), limit)
    kept = b""
    while buffer.start + len(kept) < buffer.end:
        kept += buffer.read(buffer.start + len(kept), 1 << 20)
    assert kept == everything[buffer.start :]


@given(st.lists(st.binary(min_size=1, max_size=100_000), max_size=20), st.integers(0, 2_000_000))
def test_reader_that_attaches_again_gets_the_rest_and_the_number_of_lost_bytes(pieces: list[bytes], offset: int) -> None:
    outputs = OutputLog((1, 2))
    for piece in pieces:
        outputs.buffers[1].append(piece)
    everything = b"".join(pieces)
    sink = Sink()
    wanted: dict[int, int | None] = {1: offset, 2: 0}
    assert outputs.has(wanted) == (offset <= len(everything))
    if not outputs.has(wanted):
        return
    reader = outputs.attach(sink, wanted)
    assert reader.pump(outputs.buffers)
    lost = sum(size for _, size in sink.gaps)
    assert everything[offset + lost :] == sink.got[1]
    assert lost == max(0, outputs.buffers[1].start - offset)


def test_nothing_is_dropped_while_a_slow_reader_is_attached() -> None:
    outputs = OutputLog((1,))
    sink = Sink(budget=10)
    reader = outputs.attach(sink, {1: 0})
    written = 0
    for _ in range(100):
        if outputs.may_read(1):
            outputs.buffers[1].append(bytes([written % 251]) * READ_BYTES)
            written += READ_BYTES
        reader.pump(outputs.buffers)
    assert not outputs.may_read(1), "a full buffer makes the process wait"
    assert not sink.gaps
    sink.budget = 1 << 60
    assert reader.pump(outputs.buffers)
    assert len(sink.got[1]) == written
    assert not sink.gaps


def test_slowest_of_several_readers_stops_the_process() -> None:
    outputs = OutputLog((1,))
    slow, fast = outputs.attach(Sink(budget=0), {1: 0}), outputs.attach(Sink(), {1: 0})

    while outputs.may_read(1):
        outputs.buffers[1].append(b"x" * READ_BYTES)
        fast.pump(outputs.buffers)
    outputs.detach(slow)

    assert outputs.buffers[1].start == 0, "nothing was dropped"
    assert outputs.may_read(1), "the fast one holds up nobody"
