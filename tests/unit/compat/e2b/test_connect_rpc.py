"""Connect's envelopes: whatever comes in whichever pieces, messages come out, or a reason."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sandlot.compat.e2b.envd import connect_rpc
from sandlot.compat.e2b.envd.connect_rpc import ConnectRpcDecoder
from sandlot.model.errors import SandlotError
from tests.support.cases import cases

MESSAGES = st.lists(st.binary(max_size=200), max_size=8)


def framed(message: bytes, flags: int = 0) -> bytes:
    return bytes((flags,)) + len(message).to_bytes(4, "big") + message


@given(MESSAGES, st.lists(st.integers(0, 2000), max_size=12))
def test_messages_do_not_depend_on_chunk_boundaries(messages: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(framed(message) for message in messages)
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    envelopes = ConnectRpcDecoder()
    came = [message for start, end in pairwise(edges) for message in envelopes.feed(whole[start:end])]
    envelopes.finish()
    assert came == messages
    assert envelopes.held_bytes == 0


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_random_bytes_raise_only_project_errors(pieces: list[bytes]) -> None:
    envelopes = ConnectRpcDecoder()
    with suppress(SandlotError):
        for piece in pieces:
            envelopes.feed(piece)
        envelopes.finish()
    assert envelopes.held_bytes <= sum(len(piece) for piece in pieces)


def test_responses_are_framed_as_envelopes() -> None:
    raw = connect_rpc.envelope({"event": {"data": "ä"}})
    assert (raw[0], int.from_bytes(raw[1:5], "big")) == (0, len(raw) - 5)
    assert json.loads(raw[5:]) == {"event": {"data": "ä"}}
    assert connect_rpc.envelope({"lone": "\ud800"})
    assert connect_rpc.end() == b"\x02\0\0\0\x02{}"
    told = connect_rpc.end({"code": "not_found", "message": "no"})
    assert (told[0], json.loads(told[5:])) == (connect_rpc.END, {"error": {"code": "not_found", "message": "no"}})


@cases("text, seconds", [(None, None), ("", None), ("0", 0.0), ("60000", 60.0), ("1", 0.001), ("9999999999", 9999999.999)])
def test_connect_timeout_is_in_milliseconds(text: str | None, seconds: float | None) -> None:
    assert connect_rpc.timeout_s(text) == seconds
