"""The event stream decoder: whatever way the bytes are cut, the events are the same."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model.errors import InternalError
from sandlot.sdk import sse
from sandlot.sdk.sse import Decoder, Event

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1).filter(lambda name: not name.startswith(" "))
DATA = st.dictionaries(st.text(), st.text() | st.integers() | st.none(), max_size=4)
LINE_ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def decode(raw: bytes, cuts: list[int]) -> list[Event]:
    decoder, events = Decoder(), []
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    for start, end in itertools.pairwise(edges):
        events += decoder.feed(raw[start:end])
    return events


@given(st.lists(st.tuples(NAMES, DATA), max_size=5), LINE_ENDS, st.lists(st.integers(min_value=0), max_size=20))
def test_cuts_and_line_ends_change_nothing(told: list[tuple[str, dict[str, object]]], end: str, cuts: list[int]) -> None:
    raw = "".join(f"event: {name}{end}: a comment{end}data: {json.dumps(data)}{end}{end}" for name, data in told).encode()
    # A lone \r at the very end may be the first half of \r\n: one more line decides.
    events = decode(raw + b": \n", cuts)
    assert events == [Event(name, data) for name, data in told]


def test_data_of_several_lines_is_one_text() -> None:
    assert Decoder().feed(b'event: x\ndata: {"a":\ndata: 1}\n\n') == [Event("x", {"a": 1})]


def test_comments_and_unknown_fields_are_nothing() -> None:
    assert Decoder().feed(b": keep-alive\n\nid: 7\nretry: 3\n\n") == []


def test_what_is_no_json_object_is_refused(subtests: pytest.Subtests) -> None:
    for data in (b"no json", b"[1]", b'"text"', b"\xff\xfe"):
        with subtests.test(data=data), pytest.raises(InternalError):
            Decoder().feed(b"data: " + data + b"\n\n")


def test_an_event_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    decoder = Decoder()
    decoder.feed(b"data: " + b"x" * 900)
    with pytest.raises(InternalError):
        decoder.feed(b"x" * 900)
