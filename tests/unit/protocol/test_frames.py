"""Frames: the exact bytes of generation 1, and a decoder that refuses all others."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.protocol import frames, handshake, values
from sandlot.protocol.errors import ProtocolError

NONCE = bytes(range(16))

#: One frame of each type, as the wire of generation 1 has it for as long as there are guests that speak it.
VECTORS = [
    pytest.param(
        handshake.hello(NONCE, 1, 1),
        "a501000000000000 00000ff4 9353414e444c541a 000102030405060708090a0b0c0d0e0f 0001 0001" + "00" * 4056,
        frames.Frame(frames.HELLO, 0, handshake.hello(NONCE, 1, 1)[12:]),
        id="HELLO",
    ),
    pytest.param(
        handshake.welcome(NONCE, 1, asleep=True),
        "a502000000000000 0000001c 9353414e444c541a 000102030405060708090a0b0c0d0e0f 0001 01 00",
        frames.Frame(frames.WELCOME, 0, handshake.welcome(NONCE, 1, asleep=True)[12:]),
        id="WELCOME",
    ),
    pytest.param(
        frames.encode(frames.OPEN, 1, values.encode({"call": "guest.info"})),
        "a503000000000001 00000011 81 a463616c6c aa67756573742e696e666f",
        frames.Frame(frames.OPEN, 1, b"\x81\xa4call\xaaguest.info"),
        id="OPEN",
    ),
    pytest.param(
        frames.encode(frames.MESSAGE, 0x01020304, b"\x81\xa6result", more=True),
        "a504010001020304 00000008 81a6726573756c74",
        frames.Frame(frames.MESSAGE, 0x01020304, b"\x81\xa6result", more=True),
        id="MESSAGE",
    ),
    pytest.param(
        frames.encode(frames.DATA, 2, b"hi\n", channel=2), "a505000200000002 00000003 68690a", frames.Frame(frames.DATA, 2, b"hi\n", 2), id="DATA"
    ),
    pytest.param(frames.encode(frames.END, 3), "a506000000000003 00000000", frames.Frame(frames.END, 3), id="END"),
    pytest.param(
        frames.encode(frames.RESET, 5, values.encode({"code": "conflict", "message": "no"})),
        "a507000000000005 0000001a 82 a4636f6465 a8636f6e666c696374 a76d657373616765 a26e6f",
        frames.Frame(frames.RESET, 5, b"\x82\xa4code\xa8conflict\xa7message\xa2no"),
        id="RESET",
    ),
    pytest.param(
        frames.encode(frames.CREDIT, 7, b"\0\2\0\0"), "a508000000000007 00000004 00020000", frames.Frame(frames.CREDIT, 7, b"\0\2\0\0"), id="CREDIT"
    ),
    pytest.param(frames.encode(frames.QUIESCE, 0), "a509000000000000 00000000", frames.Frame(frames.QUIESCE, 0), id="QUIESCE"),
    pytest.param(frames.encode(frames.QUIESCED, 0), "a50a000000000000 00000000", frames.Frame(frames.QUIESCED, 0), id="QUIESCED"),
    pytest.param(frames.encode(frames.LOST, 0, b"why"), "a50b000000000000 00000003 776879", frames.Frame(frames.LOST, 0, b"why"), id="LOST"),
]


def _fields(frame: frames.Frame) -> tuple[object, ...]:
    return frame.type, frame.stream, frame.payload, frame.channel, frame.more


@pytest.mark.parametrize("encoded, golden, frame", VECTORS)
def test_frames_have_the_bytes_of_generation_1(encoded: bytes, golden: str, frame: frames.Frame) -> None:
    assert encoded == bytes.fromhex(golden)
    decoder = frames.Decoder(from_host=frame.type not in frames.FROM_GUEST_ONLY)
    decoder.feed(bytes.fromhex(golden))
    decoded = decoder.next()
    assert decoded is not None
    assert _fields(decoded) == _fields(frame)
    assert decoder.at_boundary


def test_every_frame_type_has_a_vector() -> None:
    assert {vector.values[2].type for vector in VECTORS if isinstance(vector.values[2], frames.Frame)} == set(frames.NAMES)


FRAMES = st.lists(
    st.one_of(
        st.builds(
            lambda stream, data, channel: (frames.DATA, stream, data, channel, False), st.integers(1, 9), st.binary(max_size=300), st.integers(0, 255)
        ),
        st.builds(
            lambda stream, data, more: (frames.MESSAGE, stream, data, 0, more), st.integers(1, 2**32 - 1), st.binary(max_size=4084), st.booleans()
        ),
        st.just((frames.END, 4, b"", 0, False)),
    ),
    max_size=12,
)


@given(sent=FRAMES, cuts=st.lists(st.integers(1, 5000), min_size=1), from_host=st.booleans())
def test_frames_are_decoded_from_pieces_of_any_size(sent: list[tuple[int, int, bytes, int, bool]], cuts: list[int], *, from_host: bool) -> None:
    raw = b"".join(frames.encode(*frame) for frame in sent)
    decoder = frames.Decoder(from_host=from_host)
    got = []
    at = turn = 0
    while at < len(raw):
        size = cuts[turn % len(cuts)]
        decoder.feed(raw[at : at + size])
        at, turn = at + size, turn + 1
        while (frame := decoder.next()) is not None:
            got.append(_fields(frame))
    assert got == sent
    assert decoder.at_boundary


def _header(sync: int = 0xA5, type_: int = frames.DATA, flags: int = 0, channel: int = 0, stream: int = 1, length: int = 1) -> bytes:
    return struct.pack(">BBBBII", sync, type_, flags, channel, stream, length)


@pytest.mark.parametrize("from_host", [True, False])
@pytest.mark.parametrize(
    "header",
    [
        _header(sync=0xA4),
        _header(type_=0),
        _header(type_=12),
        _header(type_=255),
        _header(flags=1),
        _header(type_=frames.MESSAGE, flags=2),
        _header(type_=frames.OPEN, flags=0x81),
        _header(type_=frames.END, flags=1, length=0),
        _header(type_=frames.MESSAGE, channel=1),
        _header(stream=0),
        _header(type_=frames.CREDIT, stream=0, length=4),
        _header(length=0xFFFFFFFF),
        _header(length=65536 - 12 + 1),
        _header(type_=frames.QUIESCE, stream=1, length=0),
    ],
)
def test_invalid_header_is_refused_before_its_payload_arrives(header: bytes, *, from_host: bool) -> None:
    decoder = frames.Decoder(from_host=from_host)
    decoder.feed(header)
    with pytest.raises(ProtocolError):
        decoder.next()
    assert decoder.take_all() == header
    assert decoder.at_boundary


def test_each_side_has_its_own_maximum_size_and_frame_types() -> None:
    for from_host, longest in ((True, 4096 - 12), (False, 65536 - 12)):
        decoder = frames.Decoder(from_host=from_host)
        decoder.feed(_header(length=longest))
        assert decoder.next() is None
        with pytest.raises(ProtocolError, match="at most"):
            _decode(_header(length=longest + 1), from_host=from_host)
    for type_ in frames.FROM_HOST_ONLY:
        with pytest.raises(ProtocolError, match="this direction"):
            _decode(_header(type_=type_, stream=0, length=0), from_host=False)
    for type_ in frames.FROM_GUEST_ONLY:
        with pytest.raises(ProtocolError, match="this direction"):
            _decode(_header(type_=type_, stream=0, length=0), from_host=True)


def _decode(raw: bytes, *, from_host: bool) -> frames.Frame | None:
    decoder = frames.Decoder(from_host=from_host)
    decoder.feed(raw)
    return decoder.next()


def test_repr_of_a_frame_contains_no_payload() -> None:
    assert repr(frames.Frame(frames.DATA, 3, b"secret", 1)) == "<DATA stream=3 channel=1 more=False bytes=6>"
