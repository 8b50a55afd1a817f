"""Output put together from events: nothing lost, nothing twice, whole characters."""

from __future__ import annotations

import base64
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model.output_capture import HEAD_BYTES, TAIL_BYTES
from sandlot.sdk.models.code import ExceptionInfo, OutputCleared, Result
from sandlot.sdk.models.processes import Output, PrintedUrl
from sandlot.sdk.sse import Event
from sandlot.sdk.transcript import Transcript


def output(data: bytes, offset: int, stream: str = "stdout") -> Event:
    try:
        fields: dict[str, Any] = {"encoding": "utf-8", "data": data.decode()}
    except UnicodeDecodeError:
        fields = {"encoding": "base64", "data": base64.b64encode(data).decode()}
    return Event("output", {"stream": stream, "offset": offset, **fields})


def told(transcript: Transcript, events: list[Event]) -> str:
    text = ""
    for event in events:
        piece = transcript.feed(event)
        if isinstance(piece, Output):
            text += transcript.stream(piece.stream).decode(piece.data)
    return text + "".join(rest for _, rest in transcript.remainders())


@given(st.text(), st.lists(st.integers(min_value=0), max_size=10))
def test_characters_survive_any_cut(text: str, cuts: list[int]) -> None:
    raw = text.encode()
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    transcript = Transcript()
    events = [output(raw[start:end], start) for start, end in itertools.pairwise(edges)]
    assert told(transcript, events) == text
    assert transcript.stdout.text() == text
    assert transcript.stdout.omitted == 0


def test_what_was_read_before_is_not_taken_again() -> None:
    transcript = Transcript()
    transcript.feed(output(b"hello", 0))
    piece = transcript.feed(output(b"lo world", 3))
    assert piece == Output("stdout", b" world")
    assert transcript.feed(output(b"hello world", 0)) is None
    assert transcript.stdout.text() == "hello world"


def test_printed_urls_are_kept_once() -> None:
    transcript = Transcript()
    for token in ("1", "2"):  # a stream that is continued may repeat an event, with another token
        transcript.feed(Event("url", {"printed": "http://localhost:8000", "port": 8000, "url": f"http://preview/?sandlot_token={token}"}))
    transcript.feed(Event("exit", {"exit_code": 0}))
    result = transcript.command_result()
    assert result is not None
    assert result.urls == (PrintedUrl("http://localhost:8000", 8000, "http://preview/?sandlot_token=1"),)


def test_a_gap_is_counted_whether_it_is_told_or_seen() -> None:
    transcript = Transcript()
    assert transcript.feed(Event("lost", {"stream": "stdout", "lost_bytes": 100})) == Output("stdout", b"", 100)
    assert transcript.feed(output(b"x", 100)) == Output("stdout", b"x")
    assert transcript.feed(output(b"y", 111)) == Output("stdout", b"y", 10)
    assert transcript.stdout.offset == 112
    assert transcript.stdout.omitted == 111, "what stood between two gaps is left out with them"


def test_the_first_and_last_mib_are_kept(subtests: pytest.Subtests) -> None:
    total = HEAD_BYTES + 3 * TAIL_BYTES + 17
    raw = b"".join(b"%015d\n" % number for number in range(total // 16 + 1))[:total]
    for piece_bytes in (10_000, 65536, HEAD_BYTES + TAIL_BYTES + 5):
        with subtests.test(piece_bytes=piece_bytes):
            transcript = Transcript()
            for start in range(0, total, piece_bytes):
                transcript.feed(output(raw[start : start + piece_bytes], start))
            omitted = total - HEAD_BYTES - TAIL_BYTES
            assert transcript.stdout.omitted == omitted
            text = transcript.stdout.text().encode()
            assert text.startswith(raw[:HEAD_BYTES])
            assert text.endswith(raw[-TAIL_BYTES:])
            assert b"[... %d bytes omitted ...]\n" % omitted in text[HEAD_BYTES:-TAIL_BYTES]


def test_a_command_ends_with_its_exit_event() -> None:
    transcript = Transcript()
    transcript.feed(Event("started", {"id": "p1", "pid": 7}))
    transcript.feed(output(b"hi\n", 0))
    assert transcript.command_result() is None
    transcript.feed(Event("exit", {"id": "p1", "exit_code": 137, "signal": 9, "reason": "timeout", "duration_s": 1.5}))
    result = transcript.command_result()
    assert result is not None
    assert (transcript.id, transcript.pid) == ("p1", 7)
    assert (result.id, result.exit_code, result.signal, result.stdout, result.duration_s) == ("p1", 137, 9, "hi\n", 1.5)
    assert result.timed_out
    assert not result.ok


def test_a_cell_collects_results_and_its_error() -> None:
    transcript = Transcript()
    assert transcript.feed(Event("display", {"data": {"text/plain": "1"}, "main": True})) == Result({"text/plain": "1"}, main=True)
    failed = {"name": "KeyError", "value": "'x'", "traceback": ["Traceback", "KeyError: 'x'"]}
    assert transcript.feed(Event("error", failed)) == ExceptionInfo("KeyError", "'x'", ("Traceback", "KeyError: 'x'"))
    assert transcript.feed(Event("of a later version", {"x": 1})) is None
    transcript.feed(Event("exit", {"id": "e1", "status": "error", "execution_count": 3, "duration_s": 0.5}))
    execution = transcript.execution()
    assert execution is not None
    assert (execution.text, execution.exit_code, execution.execution_count, execution.id) == ("1", 1, 3, "e1")
    assert execution.error is not None
    assert execution.error.name == "KeyError"


def test_text_is_what_a_notebook_shows_in_the_end() -> None:
    transcript, pieces = Transcript(), []
    for number in range(5):
        transcript.feed(Event("clear", {"wait": True}))
        pieces.append(transcript.feed(output(b"%d\n" % number, 2 * number)))
    assert b"".join(piece.data for piece in pieces if isinstance(piece, Output)) == b"0\n1\n2\n3\n4\n", "the stream has all"
    assert (transcript.stdout.text(), transcript.stdout.omitted, transcript.stdout.offset) == ("4\n", 0, 10)
    transcript.feed(output(b"err", 0, "stderr"))
    transcript.feed(Event("clear", {"wait": True}))
    assert (transcript.stdout.text(), transcript.stderr.text()) == ("4\n", "err")
    transcript.feed(Event("display", {"data": {"text/plain": "a"}, "main": False}))
    assert (transcript.stdout.text(), transcript.stderr.text()) == ("", "")
    transcript.feed(output(b"x", 10))
    transcript.feed(Event("clear", {"wait": False}))
    assert (transcript.stdout.text(), transcript.stdout.offset) == ("", 11)


def test_results_are_what_a_notebook_shows_in_the_end() -> None:
    transcript = Transcript()

    def show(text: str, **more: Any) -> None:  # noqa: ANN401 - JSON
        transcript.feed(Event("display", {"data": {"text/plain": text}, "main": False, **more}))

    def texts() -> list[str | None]:
        return [each.text for each in transcript.results]

    show("a", display_id="d")
    show("b")
    show("c", display_id="d", update=True)
    assert texts() == ["c", "b"]
    show("nobody's", display_id="e", update=True)
    assert texts() == ["c", "b", "nobody's"]
    assert transcript.feed(Event("clear", {"wait": True})) == OutputCleared(wait=True)
    assert texts() == ["c", "b", "nobody's"], "not before it shows the next thing"
    show("d")
    assert texts() == ["d"]
    transcript.feed(Event("clear", {"wait": False}))
    assert texts() == []
    assert transcript.events == 7
