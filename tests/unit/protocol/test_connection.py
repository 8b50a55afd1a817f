"""The connection: handshakes, ends, resets, quiesce, and all violations by a guest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.protocol import events, frames, handshake, values
from sandlot.protocol.connection import GENERATION, GUEST, HOST, MESSAGE_MAX_BYTES, Connection
from sandlot.protocol.errors import ProtocolError, TooLarge, TooMany
from sandlot.protocol.stream_table import GUEST_STREAMS_MAX, HOST_STREAMS_MAX
from sandlot.protocol.streams import COST_MIN, QUEUE_BYTES, WINDOW_BYTES
from tests.unit.protocol.ends import NONCE, Ends

OTHER = b"another nonce..."


def said(happened: list[events.Event]) -> list[type[events.Event]]:
    return [type(event) for event in happened]


# -- greeting -----------------------------------------------------------------------------------------------------------


def test_handshake_reports_the_generation_and_the_sleep_state() -> None:
    for asleep in (True, False):
        ends = Ends(asleep=asleep)
        ends.host.hello(NONCE)
        ends.settle()
        (ready,) = ends.of(events.Ready)
        assert isinstance(ready, events.Ready)
        assert (ready.generation, ready.asleep, ends.host.asleep) == (GENERATION, asleep, asleep)
        assert said(ends.guest_events) == [events.Greeted]


def test_open_and_quiesce_are_refused_before_the_handshake() -> None:
    for end in (Connection(HOST), Connection(GUEST)):
        with pytest.raises(ProtocolError):
            end.open({})
        with pytest.raises(ProtocolError):
            end.quiesce()
        assert not end.quiesced()
        end.send(1, {})
        end.send_bytes(1, 0, b"x")
        end.end(1)
        end.reset(1, "conflict", "no")
        end.consumed(1, 100)
        assert end.room(1) == 0
        assert end.next_frame() is None
        assert end.next_batch() == b""


def test_repeated_hello_is_echoed_and_changes_nothing() -> None:
    ends = Ends()
    ends.host.hello(NONCE)
    for _ in range(3):
        ends.host_writes(1)
        ends.host.hello(NONCE)
    ends.guest_reads()
    ends.guest_writes(1 << 20)
    assert said(ends.guest_events) == [events.Greeted]
    ends.host_reads()
    stream = ends.host.open({"call": "x"})
    ends.settle()
    assert said(ends.host_events) == [events.Ready], "the other echoes are no news"
    assert ends.guest.is_open(stream)
    ends.host.hello(NONCE)
    assert ends.host.next_frame() is None, "nobody greets who was answered"


def test_echo_of_another_nonce_is_ignored() -> None:
    host = Connection(HOST)
    host.hello(NONCE)
    assert host.receive(handshake.welcome(OTHER, 1, asleep=False) * 5) == []
    assert said(host.receive(handshake.welcome(NONCE, 1, asleep=False))) == [events.Ready]
    with pytest.raises(ProtocolError, match="does not contain the nonce"):
        host.receive(handshake.welcome(OTHER, 1, asleep=False))


@pytest.mark.parametrize("generation", [0, GENERATION + 1, 0xFFFF])
def test_guest_of_another_generation_is_refused(generation: int) -> None:
    host = Connection(HOST)
    host.hello(NONCE)
    with pytest.raises(ProtocolError, match="generation"):
        host.receive(handshake.welcome(NONCE, generation, asleep=False))
    assert not host.is_ready


def test_host_neither_sends_nor_receives_after_a_violation() -> None:
    ends = Ends.greeted()
    ends.host.open({})
    with pytest.raises(ProtocolError, match="instead of 0xa5"):
        ends.host.receive(b"garbage......")
    with pytest.raises(ProtocolError, match="instead of 0xa5"):
        ends.host.receive(b"")
    assert ends.host.next_frame() is None
    assert ends.host.streams == 0
    with pytest.raises(ProtocolError):
        ends.host.open({})


# -- calls --------------------------------------------------------------------------------------------------------------


def test_largest_message_is_sent_and_a_larger_one_is_refused() -> None:
    ends = Ends.greeted()
    body = b"x" * (MESSAGE_MAX_BYTES - 7)
    stream = ends.host.open({"b": body[:-1]})
    ends.settle()
    (opened,) = ends.of(events.Opened, GUEST)
    assert isinstance(opened, events.Opened)
    assert opened.head == {"b": body[:-1]}
    ends.guest.send(stream, body)
    ends.settle()
    (received,) = ends.of(events.Received)
    assert isinstance(received, events.Received)
    assert (received.message, received.credit) == (body, MESSAGE_MAX_BYTES - 2)
    ends.guest.send(stream, "after it")
    ends.settle()
    assert len(list(ends.of(events.Received))) == 1, "the debt comes first"
    ends.host.consumed(stream, received.credit)
    ends.settle()
    assert len(list(ends.of(events.Received))) == 2
    for end in (ends.host, ends.guest):
        with pytest.raises(TooLarge):
            end.send(stream, b"x" * (MESSAGE_MAX_BYTES - 4))
    with pytest.raises(TooLarge):
        ends.host.open(b"x" * MESSAGE_MAX_BYTES)
    with pytest.raises(TooLarge):
        ends.guest.open(b"x" * frames.GUEST_FRAME_MAX)
    with pytest.raises(values.EncodingError):
        ends.host.open(object())
    assert ends.host.open({}) == stream + 2, "what was refused took no id"


def test_number_of_streams_is_limited() -> None:
    ends = Ends.greeted()
    streams = [ends.host.open({}) for _ in range(HOST_STREAMS_MAX)]
    with pytest.raises(TooMany):
        ends.host.open({})
    served = [ends.guest.open({}) for _ in range(GUEST_STREAMS_MAX)]
    with pytest.raises(TooMany):
        ends.guest.open({})
    ends.settle()
    ends.host.reset(streams[0], "conflict", "no")
    with pytest.raises(TooMany, match="maximum number"):
        ends.host.open({})  # the RESET is not sent yet, so the guest still counts the stream
    ends.host_writes(1)
    ends.host.open({})
    ends.guest.reset(served[0], "conflict", "no")
    ends.guest_writes(1 << 20)
    ends.guest.open({})
    ends.settle()
    assert ends.host.streams == ends.guest.streams == HOST_STREAMS_MAX + GUEST_STREAMS_MAX


def test_many_streams_of_a_guest_share_a_bounded_size_of_send_queues() -> None:
    ends = Ends.greeted()
    own = ends.host.open({})
    queued, ids = 0, []
    for _ in range(GUEST_STREAMS_MAX):  # the guest reads nothing, and the host fills the queue of each stream
        ids.append(ends.guest.open({}))
        ends.guest_writes(1 << 20)
        ends.host_reads()
        room = ends.host.room(ids[-1])
        assert room > 0
        ends.host.send_bytes(ids[-1], 0, bytes(room))
        queued += room
    assert queued <= 19 * 1024 * 1024
    assert ends.host.room(ids[0]) == 0
    assert ends.host.room(own) > QUEUE_BYTES // 2

    sent: set[int] = set()
    while ends.host.next_frame() is not None:
        sent.update(event.stream for event in ends.host.take_events() if isinstance(event, events.Writable))
    assert ids[0] in sent, "a stream whose queue is full becomes writable again"


# -- ends and resets ----------------------------------------------------------------------------------------------------


# -- rest ---------------------------------------------------------------------------------------------------------------


def test_armed_guest_is_asleep_after_the_next_handshake() -> None:
    ends = Ends.greeted()
    stream = ends.host.open({"call": "x"})
    ends.settle()
    ends.arm(armed=True)
    ends.guest.send_bytes(stream, 1, b"undisturbed")
    ends.host.hello(NONCE)  # repeated: the same connection
    ends.settle()
    assert not list(ends.of(events.Quiesced))
    assert [event.data for event in ends.of(events.Bytes) if isinstance(event, events.Bytes)] == [b"undisturbed"]
    ends.kill_host()
    ends.host.hello(OTHER)
    ends.settle()
    assert ends.guest.asleep
    assert ends.host.asleep


def test_guest_is_armed_for_one_handshake() -> None:
    ends = Ends.greeted()
    ends.arm(armed=True)
    ends.kill_host()
    ends.host.hello(OTHER)
    ends.settle()
    ends.guest.asleep = False  # as after guest.wake
    ends.kill_host()
    ends.host.hello(b"a third service.")
    ends.settle()
    assert not ends.host.asleep


def test_disarmed_guest_stays_awake() -> None:
    ends = Ends.greeted()
    ends.arm(armed=True)
    ends.arm(armed=False)
    ends.kill_host()
    ends.host.hello(OTHER)
    ends.settle()
    assert not ends.host.asleep


def test_repeated_hello_in_the_pipe_does_not_disturb_a_quiesce() -> None:
    ends = Ends()
    ends.host.hello(NONCE)
    ends.host_writes(1)
    ends.guest_reads()
    ends.guest_writes(1 << 20)
    ends.host_reads()
    ends.host.quiesce()
    ends.host_writes(1)
    ends.guest_reads()
    hello = handshake.hello(OTHER, 1, 1)
    ends.to_guest += hello[:1000]
    ends.guest_reads()
    ends.guest.quiesced()
    ends.to_guest += hello[1000:]
    assert said(ends.guest_reads()) == [events.Greeted]


# -- what a guest must not do -------------------------------------------------------------------------------------------


def frame(type_: int, stream: int, payload: bytes = b"", channel: int = 0, *, more: bool = False) -> bytes:
    return frames.encode(type_, stream, payload, channel, more)


def message(stream: int, value: object) -> bytes:
    return frame(frames.MESSAGE, stream, values.encode(value))


FULL = frame(frames.DATA, 1, b"x" * 65524, 1)
SERVICE = values.encode({"service": "x", "args": {}})

VIOLATIONS = {
    "garbage": b"GET / HTTP/1.1\r\n",
    "a huge length": bytes.fromhex("a505000100000001ffffffff"),
    "a HELLO": handshake.hello(NONCE, 1, 1),
    "a QUIESCE": frame(frames.QUIESCE, 0),
    "a QUIESCED unasked": frame(frames.QUIESCED, 0),
    "a LOST": frame(frames.LOST, 0, b"\xff\xfe"),
    "a WELCOME of another nonce": handshake.welcome(OTHER, 1, asleep=False),
    "a short WELCOME": frame(frames.WELCOME, 0, handshake.MAGIC),
    "an unknown stream": frame(frames.DATA, 3, b"x", 1),
    "an unknown stream of its own": frame(frames.DATA, 2, b"x", 1),
    "the largest stream": frame(frames.RESET, 0xFFFFFFFF, values.encode({"code": "x", "message": "y"})),
    "a host's stream opened": frame(frames.OPEN, 3, SERVICE),
    "the same stream opened twice": frame(frames.OPEN, 2, SERVICE) * 2,
    "an older stream opened": frame(frames.OPEN, 4, SERVICE) + frame(frames.OPEN, 2, SERVICE),
    "an OPEN in pieces": frame(frames.OPEN, 2, SERVICE, more=True),
    "an OPEN of no value": frame(frames.OPEN, 2, b"\xc1"),
    "a flood of streams": b"".join(frame(frames.OPEN, 2 + 2 * number, SERVICE) for number in range(GUEST_STREAMS_MAX + 1)),
    "more than the credit": FULL * 6,
    "small frames beyond the credit": frame(frames.DATA, 1, b"x", 1) * (WINDOW_BYTES // COST_MIN + 1),
    "small messages beyond the credit": message(1, None) * (WINDOW_BYTES // COST_MIN + 1),
    "a second large message": (frame(frames.MESSAGE, 1, b"x" * 60000, more=True) * 8 + frame(frames.MESSAGE, 1, b"")) * 2,
    "DATA without bytes": frame(frames.DATA, 1),
    "DATA within a message": frame(frames.MESSAGE, 1, b"x", more=True) + frame(frames.DATA, 1, b"x", 1),
    "an END within a message": frame(frames.MESSAGE, 1, b"x", more=True) + frame(frames.END, 1),
    "DATA after the END": frame(frames.END, 1) + frame(frames.DATA, 1, b"x", 1),
    "a message after the END": frame(frames.END, 1) + message(1, {}),
    "two ENDs": frame(frames.END, 1) * 2,
    "two messages in pieces": frame(frames.OPEN, 2, SERVICE) + frame(frames.MESSAGE, 1, b"x", more=True) + frame(frames.MESSAGE, 2, b"x", more=True),
    "an endless message": frame(frames.MESSAGE, 1, b"x" * 65524, more=True) * (MESSAGE_MAX_BYTES // 65524 + 1),
    "a message that is no value": frame(frames.MESSAGE, 1, b"\x91"),
    "a message of nothing": frame(frames.MESSAGE, 1),
    "credit for nothing": frame(frames.CREDIT, 1, b"\0\0\0\1"),
    "no credit": frame(frames.CREDIT, 1, b"\0\0\0\0"),
    "credit of 3 bytes": frame(frames.CREDIT, 1, b"\0\0\1"),
    "a RESET without reason": frame(frames.RESET, 1),
    "a RESET of a list": frame(frames.RESET, 1, values.encode([])),
    "a RESET without message": frame(frames.RESET, 1, values.encode({"code": "x"})),
    "a RESET whose code is bytes": frame(frames.RESET, 1, values.encode({"code": b"x", "message": "y"})),
}


def _feed(host: Connection, sent: bytes, chunk: int) -> None:
    for at in range(0, len(sent), chunk):
        host.receive(sent[at : at + chunk])


@pytest.mark.parametrize("sent", VIOLATIONS.values(), ids=VIOLATIONS.keys())
@pytest.mark.parametrize("chunk", [1 << 20, 4099])
def test_violation_ends_the_connection(sent: bytes, chunk: int) -> None:
    ends = Ends.greeted()
    assert ends.host.open({}) == 1
    ends.settle()
    with pytest.raises(ProtocolError):
        _feed(ends.host, sent, chunk)
    assert ends.host.streams == 0
    assert ends.host.next_frame() is None


def test_bytes_after_quiesced_are_a_violation() -> None:
    ends = Ends.greeted()
    ends.host.quiesce()
    ends.host_writes(1)
    with pytest.raises(ProtocolError, match="QUIESCED"):
        ends.host.receive(frame(frames.QUIESCED, 0) + b"\xa5")


def test_frame_on_a_stream_whose_open_was_not_sent_is_a_violation() -> None:
    ends = Ends.greeted()
    ends.host.open({})
    with pytest.raises(ProtocolError, match="not open yet"):
        ends.host.receive(frame(frames.END, 1))


def test_flood_of_ignored_frames_leaves_no_state() -> None:
    ends = Ends.greeted()
    stream = ends.host.open({})
    ends.settle()
    ends.host.reset(stream, "cancelled", "no")
    ends.host_writes(5)
    past = frame(frames.RESET, 1, b"") + frame(frames.CREDIT, 1, b"") + frame(frames.DATA, 1, b"x", 1) + frame(frames.MESSAGE, 1, b"", more=True)
    assert ends.host.receive(past * 5000) == []
    assert ends.host.receive(handshake.welcome(NONCE, 1, asleep=False) * 1000) == []
    assert ends.host.next_frame() is None


def test_queue_of_the_host_is_limited_if_the_guest_never_reads() -> None:
    ends = Ends.greeted()
    ids = range(2, 2 + 2 * GUEST_STREAMS_MAX, 2)
    for id_ in ids:
        ends.host.receive(frame(frames.OPEN, id_, SERVICE))
        ends.host.reset(id_, "unknown_service", "no")
    assert ends.host.streams == 0
    with pytest.raises(ProtocolError, match="more streams"):
        ends.host.receive(frame(frames.OPEN, ids.stop, SERVICE))


def test_queued_credit_is_limited_over_many_handshakes() -> None:
    ends = Ends.greeted()
    for number in range(200):
        id_ = 2 + 2 * number
        ends.host.receive(frame(frames.OPEN, id_, SERVICE))
        ends.host.receive(frame(frames.DATA, id_, b"x" * 60000, 0) * 3)
        ends.host.consumed(id_, 180_000)
        ends.host.receive(frame(frames.RESET, id_, values.encode({"code": "x", "message": "y"})))
    assert ends.host.next_frame() is None


# -- the guest's start --------------------------------------------------------------------------------------------------


def test_guest_imports_no_slow_modules(tmp_path: Path) -> None:
    (tmp_path / "sandlot").mkdir()
    (tmp_path / "sandlot" / "__init__.py").touch()
    (tmp_path / "sandlot" / "protocol").symlink_to(Path(frames.__file__).parent)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import collections; before = set(sys.modules); "
        "import sandlot.protocol.connection, sandlot.protocol.schema; "
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('sandlot')))"
    )
    done = subprocess.run([sys.executable, "-SIB", "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "['__future__', '_blake2', '_socket', '_struct', 'struct']"
