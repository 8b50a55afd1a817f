"""The decoder of event streams."""

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


@given(st.lists(st.tuples(NAMES, DATA), max_size=5), LINE_ENDS, st.booleans(), st.lists(st.integers(min_value=0), max_size=20))
def test_chunk_borders_and_line_ends_do_not_change_events(
    sent: list[tuple[str, dict[str, object]]],
    end: str,
    ascii_only: bool,  # noqa: FBT001 - of hypothesis
    cuts: list[int],
) -> None:
    raw = "".join(f"event: {name}{end}: a comment{end}data: {json.dumps(data, ensure_ascii=ascii_only)}{end}{end}" for name, data in sent)
    # A lone \r at the very end may be the first half of \r\n: one more line decides.
    assert decode((raw + ": \n").encode(), cuts) == [Event(name, data) for name, data in sent]


def test_unicode_line_separators_do_not_end_lines() -> None:
    text = "a\u2028b\u2029c\x85d"
    assert Decoder().feed(f'data: {{"text": "{text}"}}\n\n'.encode()) == [Event("message", {"text": text})]


def test_event_is_complete_with_its_blank_line() -> None:
    decoder = Decoder()
    assert decoder.feed(b'event: x\ndata: {"a": 1}\n') == []
    assert decoder.feed(b"\n") == [Event("x", {"a": 1})]


def test_data_of_several_lines_is_joined() -> None:
    assert Decoder().feed(b'event: x\ndata: {"a":\ndata: 1}\n\n') == [Event("x", {"a": 1})]


def test_comments_and_unknown_fields_are_ignored() -> None:
    assert Decoder().feed(b": keep-alive\n\nid: 7\nretry: 3\n\nevent: empty\n\n") == []


def test_event_has_the_last_id_of_the_stream() -> None:
    sent = b"event: none\ndata: {}\n\nid: 7\nevent: own\ndata: {}\n\nevent: before\ndata: {}\n\n"
    assert Decoder().feed(sent) == [Event("none", {}), Event("own", {}, "7"), Event("before", {}, "7")]


def test_data_that_is_not_a_json_object_is_refused(subtests: pytest.Subtests) -> None:
    for data in (b"no json", b"[1]", b'"text"', b"\xff\xfe"):
        with subtests.test(data=data), pytest.raises(InternalError):
            Decoder().feed(b"data: " + data + b"\n\n")


def test_oversized_event_is_refused(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    for piece in (b"x" * 300, b"data: x\n" * 40):
        with subtests.test(piece=piece):
            decoder = Decoder()
            for _ in range(3):
                assert decoder.feed(piece) == []
            with pytest.raises(InternalError):
                decoder.feed(piece)


def test_stream_of_small_events_is_never_oversized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    decoder = Decoder()
    for _ in range(300):
        assert decoder.feed(b": keep-alive\n\n") == []
        assert decoder.feed(b'data: {"a": 1}\n\n') == [Event("message", {"a": 1})]
