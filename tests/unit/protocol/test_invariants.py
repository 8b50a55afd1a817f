"""The invariants of the protocol (``protocol/__init__.py``), each tested with any input.

Repeated calls and output offsets are tested with link and guest.
"""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.protocol import events, frames, handshake
from sandlot.protocol.connection import GUEST, HOST, Connection
from sandlot.protocol.errors import ProtocolError
from sandlot.protocol.streams import QUEUE_BYTES, WINDOW_BYTES
from tests.unit.protocol.ends import Ends

SIZES = st.one_of(st.integers(1, 300), st.integers(1, 100_000))
WORK = st.lists(st.tuples(st.sampled_from(["open", "message", "bytes", "end", "reset"]), st.sampled_from([HOST, GUEST]), SIZES), max_size=15)
GARBAGE = st.one_of(
    st.binary(max_size=5000),
    st.sampled_from(
        [
            handshake.MAGIC,
            handshake.hello(b"of another life.", 1, 1),
            handshake.hello(b"of another life.", 1, 1)[:2000],
            frames.encode(frames.DATA, 1, b"x" * 4000)[:100],
            frames.encode(frames.END, 77),
            b"\xa5",
        ]
    ),
)


def do(ends: Ends, work: list[tuple[str, str, int]], tag: str) -> None:
    """Make requests at both ends, without moving bytes."""
    for what, side, size in work:
        end = ends.host if side == HOST else ends.guest
        if what == "open":
            end.open({"tag": tag, "pad": b"x" * min(size, 60_000)})
        for id_ in range(1, 7):
            if what == "message":
                end.send(id_, {"tag": tag, "pad": b"x" * size})
            elif what == "bytes":
                end.send_bytes(id_, 1, tag.encode() * (size // len(tag) + 1))
            elif what == "end":
                end.end(id_)
            elif what == "reset" and id_ == size % 7:
                end.reset(id_, "conflict", tag)


def tags(happened: list[events.Event]) -> set[str]:
    """Return the tags of all messages that arrived."""
    found = set()
    for event in happened:
        if isinstance(event, events.Opened):
            found.add(event.head["tag"])
        elif isinstance(event, events.Received):
            found.add(event.message["tag"])
        elif isinstance(event, events.WasReset):
            found.add(event.reason["message"])
        elif isinstance(event, events.Bytes):
            found |= {"old"} if b"old" in event.data else {"new"}
    return found


# -- bounded writes ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(WORK)
def test_host_frames_fit_into_one_atomic_write(work: list[tuple[str, str, int]]) -> None:
    ends = Ends.greeted()
    do(ends, [*work, ("open", HOST, 100_000)], "new")
    decoder = frames.Decoder(from_host=True)
    count = 0
    while (frame := ends.host.next_frame()) is not None:
        assert len(frame) <= 4096
        decoder.feed(frame)
        assert decoder.next() is not None
        assert decoder.at_boundary
        count += 1
    assert count >= 60_000 // 4096


# -- handshake --------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    before=WORK,
    after=WORK,
    host_frames=st.integers(0, 40),
    guest_bytes=st.integers(0, 300_000),
    cut_to_guest=st.integers(0, 5000),
    read_by_guest=st.integers(0, 100_000),
    read_by_dead_host=st.integers(0, 100_000),
    garbage=GARBAGE,
)
def test_new_host_sees_nothing_of_an_earlier_connection(
    before: list[tuple[str, str, int]],
    after: list[tuple[str, str, int]],
    host_frames: int,
    guest_bytes: int,
    cut_to_guest: int,
    read_by_guest: int,
    read_by_dead_host: int,
    garbage: bytes,
) -> None:
    """The host never leaves a partial frame, but the handshake works even after one, and after any bytes."""
    ends = Ends.greeted()
    do(ends, before, "old")
    ends.host_writes(host_frames)
    ends.guest_writes(guest_bytes)
    del ends.to_guest[max(0, len(ends.to_guest) - cut_to_guest) :]
    ends.to_guest += garbage
    ends.guest_reads(read_by_guest)
    ends.kill_host(half_read=read_by_dead_host)

    nonce = os.urandom(16)
    for _ in range(3):
        ends.host.hello(nonce)
        ends.settle()
        if ends.host.is_ready:
            break
    assert ends.host.is_ready, "a guest is found by its third HELLO at the latest, whatever it was in the middle of"
    assert ends.guest.is_ready
    assert [type(event) for event in ends.host_events] == [events.Ready]
    assert type(ends.guest_events[-1]) is events.Greeted
    assert ends.host.streams == ends.guest.streams == 0

    ends.clear()
    do(ends, [("open", HOST, 10), ("open", GUEST, 10), *after], "new")
    ends.settle()
    assert tags(ends.host_events) | tags(ends.guest_events) <= {"new"}


@settings(max_examples=25)
@given(st.lists(st.binary(max_size=200), max_size=5), st.lists(st.integers(1, 5000), min_size=1, max_size=5))
def test_guest_finds_a_hello_after_any_bytes(noise: list[bytes], cuts: list[int]) -> None:
    guest = Connection(GUEST)
    hello = handshake.hello(b"0123456789abcdef", 1, 1)
    raw = b"".join(noise) + hello * 3
    at = 0
    while at < len(raw):
        size = cuts[at % len(cuts)]
        guest.receive(raw[at : at + size])
        at += size
    assert guest.is_ready
    assert guest.next_batch().endswith(handshake.welcome(b"0123456789abcdef", 1, asleep=True))


# -- flow control ---------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(1, 20), st.integers(0, 19), st.integers(1, 5))
def test_quiet_stream_waits_for_at_most_one_frame_of_each_other(floods: int, position: int, later: int) -> None:
    ends = Ends.greeted()
    streams = [ends.host.open({}) for _ in range(floods + 1)]
    ends.settle()
    quiet = streams.pop(position % len(streams))
    for stream in streams:
        ends.guest.send_bytes(stream, 1, b"x" * WINDOW_BYTES)
    for _ in range(later):
        ends.guest.next_frame()
    ends.guest.send(quiet, {"result": {}})
    turns = []
    while (frame := ends.guest.next_frame()) is not None:
        turns.append(frames.HEADER.unpack_from(frame)[4])
    assert turns.index(quiet) <= floods


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([frames.DATA, frames.MESSAGE]), SIZES), min_size=1, max_size=40))
def test_streams_respect_their_credit_and_do_not_block_each_other(sent: list[tuple[int, int, int]]) -> None:
    ends = Ends.greeted()
    streams = [ends.host.open({}) for _ in range(4)]
    ends.settle()
    queued = dict.fromkeys(streams, 0)
    for which, type_, size in sent:
        stream = streams[which]
        queued[stream] += 1
        if type_ == frames.DATA:
            ends.guest.send_bytes(stream, 1, b"x" * size)
        else:
            ends.guest.send(stream, b"x" * size)
    ends.settle()  # the host raises if the guest exceeds its credit
    held = dict.fromkeys(streams, 0)
    for event in ends.host_events:
        assert isinstance(event, events.Bytes | events.Received)
        assert held[event.stream] < WINDOW_BYTES, "it began without credit"
        held[event.stream] += event.credit
    for which, stream in enumerate(streams):
        wanted = sum(size for at, _, size in sent if at == which)
        assert held[stream] >= min(wanted, WINDOW_BYTES), "credit was left, and it was not used"


@settings(max_examples=25)
@given(st.lists(SIZES, min_size=1, max_size=30))
def test_sender_that_respects_room_stays_within_the_queue(sizes: list[int]) -> None:
    ends = Ends.greeted()
    stream = ends.host.open({})
    ends.settle()
    left = sum(sizes)
    queued = turn = 0
    while left:
        room = ends.host.room(stream)
        if not room:
            assert ends.host_writes(1) == 1
            queued -= len(ends.to_guest) - frames.HEADER_BYTES
            ends.guest_reads()
            for event in ends.guest_events:
                if isinstance(event, events.Bytes):
                    ends.guest.consumed(stream, event.credit)
            ends.clear()
            ends.guest_writes(1 << 20)
            ends.host_reads()
            continue
        size = min(room, left, sizes[turn % len(sizes)])
        ends.host.send_bytes(stream, 0, b"x" * size)
        left, turn = left - size, turn + 1
        assert QUEUE_BYTES - ends.host.room(stream) <= QUEUE_BYTES


# -- streams ----------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from([HOST, GUEST]), SIZES), min_size=1, max_size=60))
def test_streams_opened_by_either_end_are_known_to_both(opened: list[tuple[str, int]]) -> None:
    ends = Ends.greeted()
    wanted: dict[str, list[tuple[int, int]]] = {HOST: [], GUEST: []}
    for side, size in opened:
        end = ends.host if side == HOST else ends.guest
        wanted[side].append((end.open(b"x" * min(size, 60_000)), min(size, 60_000)))
    ends.settle()
    for side, happened in ((HOST, ends.guest_events), (GUEST, ends.host_events)):
        assert [(event.stream, len(event.head)) for event in happened if isinstance(event, events.Opened)] or not wanted[side]
        heads = {event.stream: len(event.head) for event in happened if isinstance(event, events.Opened)}
        assert heads == dict(wanted[side])


# -- sleep ------------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(before=WORK, between=WORK, host_frames=st.integers(0, 40), guest_bytes=st.integers(0, 300_000), read=st.integers(0, 300_000))
def test_quiesce_ends_at_a_frame_boundary_with_empty_pipes(
    before: list[tuple[str, str, int]], between: list[tuple[str, str, int]], host_frames: int, guest_bytes: int, read: int
) -> None:
    ends = Ends.greeted()
    do(ends, before, "old")
    ends.host_writes(host_frames)
    ends.guest_writes(guest_bytes)
    ends.guest_reads(read)
    ends.host_reads(read)
    ends.host.quiesce()
    do(ends, [item for item in between if item[:2] != ("open", HOST)], "old")
    while not any(ends.of(events.QuiesceRequested, GUEST)):
        ends.host_writes(1 << 20)
        ends.guest_reads()
        ends.guest_writes(read + 1)
        ends.host_reads()
    assert ends.guest.quiesced()
    ends.settle()
    assert type(ends.host_events[-1]) is events.Quiesced
    assert not ends.to_guest
    assert not ends.to_host
    assert not ends.half_written
    assert ends.guest.next_frame() is None
    assert ends.host.next_frame() is None
    ends.clear()
    do(ends, [("open", HOST, 10)], "new")
    ends.settle()
    assert tags(ends.guest_events) == {"new"}


# -- every byte of a guest is hostile -------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.lists(st.one_of(GARBAGE, st.binary(max_size=100)), max_size=10), st.integers(1, 5000))
def test_host_raises_only_protocol_errors_and_guest_none(noise: list[bytes], chunk: int) -> None:
    raw = b"".join(noise)
    for ends in (Ends(), Ends.greeted()):
        for at in range(0, len(raw), chunk):
            ends.guest.receive(raw[at : at + chunk])
        try:
            for at in range(0, len(raw), chunk):
                ends.host.receive(raw[at : at + chunk])
        except ProtocolError:
            assert ends.host.next_frame() is None
