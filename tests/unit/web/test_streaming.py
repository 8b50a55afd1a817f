"""Output as events that lose nothing, and answers that end with their client."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.types import Message

from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.executions import Output, OutputGap
from sandlot.protocol.schema import STDOUT
from sandlot.web.streaming import (
    NDJSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    KeepAliveStreamResponse,
    OutputEvents,
    StreamEvent,
    TextSplitter,
    accepts_events,
    event_response,
    ndjson_response,
)

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


@given(st.text(min_size=1, max_size=12), st.lists(st.integers(0, 40), max_size=6))
def test_no_piece_has_a_part_of_a_character(text: str, cuts: list[int]) -> None:
    raw = b"\xff" + text.encode() + b"\xff"
    edges = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    splitter = TextSplitter()
    told = [splitter.push(raw[start:end], start) for start, end in itertools.pairwise(edges)]
    assert "".join(decoded(each).decode("utf-8", "replace") for each in told if each is not None) == f"\ufffd{text}\ufffd"


def test_a_gap_comes_after_what_was_before_it() -> None:
    output = OutputEvents()
    assert output.feed(Output(STDOUT, 0, b"a\xc3")) == [
        StreamEvent("output", {"stream": "stdout", "offset": 0, "encoding": "utf-8", "data": "a"}, "1-0")
    ], "what waits for its other half is not passed over"
    held, lost = output.feed(OutputGap(STDOUT, 10, 2))
    assert held.data["data"] == base64.b64encode(b"\xc3").decode()
    assert lost.data == {"stream": "stdout", "lost_bytes": 10}
    (after,) = output.feed(Output(STDOUT, 12, b"b"))
    assert after.data["offset"] == 12
    assert output.end() == []


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20)))
def test_an_event_is_two_lines_whatever_it_holds(data: dict[str, str]) -> None:
    raw = StreamEvent("output", data).as_sse()
    assert raw.endswith(b"\n\n")
    assert raw.count(b"\n") == 3
    assert b"\r" not in raw
    assert json.loads(raw.split(b"\ndata: ", 1)[1]) == data


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=20)))
def test_an_event_is_one_line_of_json_as_well(data: dict[str, str]) -> None:
    raw = StreamEvent("output", data, 7).as_line()
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    assert json.loads(raw) == {"event": "output", "id": "7", "data": data}
    assert json.loads(StreamEvent("output", data).as_line()) == {"event": "output", "data": data}


@pytest.mark.parametrize("character", ["\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_no_character_is_a_line_break_for_any_reader(character: str) -> None:
    text = f"é{character}ü"
    event = StreamEvent("output", {"data": text, text: [text]}, 7)
    line = event.as_line().decode()
    assert line.splitlines() == [line.removesuffix("\n")]
    assert json.loads(line)["data"] == event.data
    assert [field.partition(": ")[0] for field in event.as_sse().decode().splitlines()] == ["id", "event", "data", ""]


def test_the_client_chooses_the_form_by_what_it_names_first(subtests: pytest.Subtests) -> None:
    for accept, media_type in (
        ("text/event-stream", SSE_MEDIA_TYPE),
        ("application/x-ndjson", NDJSON_MEDIA_TYPE),
        ("application/json, application/x-ndjson;q=0.5", NDJSON_MEDIA_TYPE),
        ("application/x-ndjson, text/event-stream", NDJSON_MEDIA_TYPE),
        ("text/event-stream, */*", SSE_MEDIA_TYPE),
        ("application/json", ""),
        ("*/*", ""),
    ):
        with subtests.test(accept=accept, media_type=media_type):
            request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
            assert accepts_events(request) is bool(media_type)
            if media_type:
                assert event_response(request, nothing(), closed).media_type == media_type


async def failing(first: object, error: Exception) -> AsyncIterator[Any]:
    yield first
    raise error


async def test_failure_after_the_start_is_the_last_line(subtests: pytest.Subtests) -> None:
    request = Request({"type": "http", "headers": [(b"accept", NDJSON_MEDIA_TYPE.encode())], "state": {}})
    for error, code in ((ConflictError("taken", code=ErrorCode.CONFLICT), "conflict"), (ZeroDivisionError("of ours"), "internal")):
        with subtests.test(code=code):
            started, failure = [
                json.loads(line) for line in await sent(event_response(request, failing(StreamEvent("started", {}), error), closed)) if line
            ]
            assert (started["event"], failure["event"], failure["data"]["code"]) == ("started", "failure", code)
            item, problem = [json.loads(line) for line in await sent(ndjson_response(request, failing({"index": 0}, error), closed)) if line]
            assert (item, problem["code"]) == ({"index": 0}, code)


async def nothing() -> AsyncIterator[StreamEvent]:
    return
    yield


async def closed() -> None:
    pass


async def sent(answer: KeepAliveStreamResponse) -> list[bytes]:
    """The pieces of an answer's body."""
    bodies: list[bytes] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {}

    async def send(message: Message) -> None:
        bodies.append(message.get("body", b""))

    await answer({"type": "http"}, receive, send)
    return bodies


def decoded(told: dict[str, Any]) -> bytes:
    data: str = told["data"]
    return base64.b64decode(data) if told["encoding"] == "base64" else data.encode()
