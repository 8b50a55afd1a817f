"""Connect's envelopes: whatever comes in whichever pieces, messages come out, or a reason."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.doors.e2b.envd import connect
from sandlot.doors.e2b.envd.connect import Envelopes
from sandlot.model.errors import InvalidRequestError, LimitError, SandlotError, UnsupportedError
from tests.support.cases import cases

MESSAGES = st.lists(st.binary(max_size=200), max_size=8)


def framed(message: bytes, flags: int = 0) -> bytes:
    return bytes((flags,)) + len(message).to_bytes(4, "big") + message


@given(MESSAGES, st.lists(st.integers(0, 2000), max_size=12))
def test_messages_are_the_same_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(framed(message) for message in messages)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    envelopes = Envelopes()
    came = [message for start, end in pairwise(edges) for message in envelopes.feed(whole[start:end])]
    envelopes.finish()
    assert came == messages
    assert envelopes.held_bytes == 0


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_nothing_but_a_reason_comes_of_noise(pieces: list[bytes]) -> None:
    envelopes = Envelopes()
    with suppress(SandlotError):
        for piece in pieces:
            envelopes.feed(piece)
        envelopes.finish()
    assert envelopes.held_bytes <= sum(len(piece) for piece in pieces)


@given(MESSAGES, st.integers(1, 50))
def test_what_breaks_off_is_no_request(messages: list[bytes], cut: int) -> None:
    whole = b"".join(framed(message) for message in messages) + framed(b"x" * 60)
    envelopes = Envelopes()
    assert envelopes.feed(whole[:-cut]) == messages
    with pytest.raises(InvalidRequestError):
        envelopes.finish()


@cases("flags", [2, 3, 4, 128, 255])
def test_a_request_has_no_flags(flags: int) -> None:
    with pytest.raises(InvalidRequestError):
        Envelopes().feed(framed(b"{}", flags))


def test_nothing_compressed_is_taken() -> None:
    with pytest.raises(UnsupportedError):
        Envelopes().feed(framed(b"{}", connect.COMPRESSED))


def test_a_message_that_is_too_large_is_refused_by_its_head() -> None:
    with pytest.raises(LimitError):
        Envelopes().feed(b"\0" + (connect.MESSAGE_BYTES + 1).to_bytes(4, "big"))
    assert Envelopes().feed(b"\0" + connect.MESSAGE_BYTES.to_bytes(4, "big")) == []


def test_what_is_sent_is_an_envelope() -> None:
    raw = connect.envelope({"event": {"data": "ä"}})
    assert (raw[0], int.from_bytes(raw[1:5], "big")) == (0, len(raw) - 5)
    assert json.loads(raw[5:]) == {"event": {"data": "ä"}}
    assert connect.envelope({"lone": "\ud800"})
    assert connect.end() == b"\x02\0\0\0\x02{}"
    told = connect.end({"code": "not_found", "message": "no"})
    assert (told[0], json.loads(told[5:])) == (connect.END, {"error": {"code": "not_found", "message": "no"}})


@cases("text, seconds", [(None, None), ("", None), ("0", 0.0), ("60000", 60.0), ("1", 0.001), ("9999999999", 9999999.999)])
def test_a_timeout_is_milliseconds(text: str | None, seconds: float | None) -> None:
    assert connect.timeout_s(text) == seconds


@cases("text", ["-1", "1.5", "x", "1e3", "10000000000", "٣", " 1"])
def test_no_timeout(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        connect.timeout_s(text)


@cases("given_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_a_type_is_what_the_method_takes(given_type: str) -> None:
    connect.check_type(given_type, connect.UNARY)
    with pytest.raises(UnsupportedError):
        connect.check_type(given_type, connect.STREAM)


@cases("given_type", ["", "application/proto", "application/connect+proto", "text/plain", "application/grpc"])
def test_other_codecs_are_not_spoken(given_type: str) -> None:
    for wanted in (connect.UNARY, connect.STREAM):
        with pytest.raises(UnsupportedError):
            connect.check_type(given_type, wanted)
