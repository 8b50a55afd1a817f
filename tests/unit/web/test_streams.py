"""Output as events that lose nothing, and answers that end with their client."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandlot.core.runs.processes import STDERR, STDOUT
from sandlot.link.types import Lost, Output
from sandlot.web.streams import OutputEvents, TextSplitter, event

PIECES = st.lists(
    st.one_of(st.binary(max_size=12), st.text(max_size=6).map(str.encode), st.sampled_from([b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80"]))
)


@given(PIECES)
def test_the_bytes_come_out_as_they_went_in_at_their_offsets(pieces: list[bytes]) -> None:
    splitter, told, at = TextSplitter(), [], 0
    for piece in pieces:
        told.append(splitter.push(piece, at))
        at += len(piece)
    told.append(splitter.flush())
    whole = b""
    for each in told:
        if each is not None:
            assert each["offset"] == len(whole)
            whole += decoded(each)
    assert whole == b"".join(pieces)


def test_text_stays_text_wherever_it_is_cut() -> None:
    text = "héllo 😀 wörld".encode()
    for cut in range(len(text) + 1):
        splitter = TextSplitter()
        told = [splitter.push(text[:cut], 0), splitter.push(text[cut:], cut), splitter.flush()]
        assert {each["encoding"] for each in told if each is not None} == {"utf-8"}


def test_a_gap_comes_after_what_was_before_it() -> None:
    output = OutputEvents()
    assert output.tell(Output(STDOUT, 0, b"a\xc3")) == [
        event("output", {"stream": "stdout", "offset": 0, "encoding": "utf-8", "data": "a"}, "1-0")
    ], "what waits for its other half is not passed over"
    held, lost = output.tell(Lost(STDOUT, 10, 2))
    assert parsed(held)["data"] == base64.b64encode(b"\xc3").decode()
    assert parsed(lost) == {"stream": "stdout", "bytes": 10}
    (after,) = output.tell(Output(STDOUT, 12, b"b"))
    assert parsed(after)["offset"] == 12
    assert output.end() == []


def test_the_two_streams_do_not_mix() -> None:
    output = OutputEvents()
    assert output.tell(Output(STDOUT, 0, b"\xc3")) == []
    (err,) = output.tell(Output(STDERR, 0, b"x"))
    assert parsed(err)["stream"] == "stderr"
    (out,) = output.tell(Output(STDOUT, 1, b"\xa9"))
    assert parsed(out)["data"] == "é"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20)))
def test_an_event_is_two_lines_whatever_it_holds(data: dict[str, str]) -> None:
    raw = event("output", data)
    assert raw.endswith(b"\n\n")
    assert raw.count(b"\n") == 3
    assert b"\r" not in raw
    assert parsed(raw) == data


def parsed(raw: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(raw.split(b"\ndata: ", 1)[1])
    return fields


def decoded(told: dict[str, Any]) -> bytes:
    data: str = told["data"]
    return base64.b64decode(data) if told["encoding"] == "base64" else data.encode()
