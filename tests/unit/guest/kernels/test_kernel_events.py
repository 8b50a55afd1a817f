"""Validation of a kernel's messages."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.guest.kernels.kernel_events import MAX_LINE_CHARS, is_mime_type, parse_event
from sandlot.protocol.schema import LIMITS

DISPLAY = {"event": "display", "cell": "a", "data": {"text/plain": "1"}, "main": True}


@pytest.mark.parametrize(
    "message",
    [
        {"event": "started", "cell": "a", "count": 3},
        {"event": "output", "cell": "a", "channel": 2, "data": b"x"},
        {**DISPLAY, "metadata": {"image/png": {"width": 10}}, "display_id": "i", "update": True},
        {"event": "clear", "cell": "a", "wait": True},
        {"event": "error", "cell": "a", "name": "E", "value": "v", "traceback": ["l"]},
        {"event": "done", "cell": "a", "ok": True, "count": 3},
    ],
    ids=lambda message: message["event"],
)
def test_valid_message_is_returned_unchanged(message: dict[str, Any]) -> None:
    assert parse_event(message) == message


def test_optional_fields_get_defaults() -> None:
    assert parse_event({"event": "ready", "whatever": 1}) == {"event": "ready", "cell": None}
    event = parse_event({"event": "display", "data": {}, "main": False})
    assert (event["cell"], event["metadata"], event["display_id"], event["update"]) == (None, {}, None, False)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"k": value}
    return value


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        None,
        {},
        {"event": "nonsense"},
        {"event": "started"},
        {"event": "started", "count": -1},
        {"event": "started", "count": True},
        {"event": "started", "count": 1 << 63},
        {"event": "started", "count": 1, "cell": b"a"},
        {"event": "output", "channel": 0, "data": b""},
        {"event": "output", "channel": 1, "data": "text"},
        {"event": "output", "channel": [], "data": b""},
        {"event": "display", "data": [], "main": True},
        {**DISPLAY, "metadata": []},
        {**DISPLAY, "metadata": {"k": b"bytes"}},
        {**DISPLAY, "metadata": {"k" * 300: 1}},
        {**DISPLAY, "metadata": {str(number): 1 for number in range(100)}},
        {**DISPLAY, "metadata": nested(20)},
        {**DISPLAY, "display_id": 7},
        {"event": "error", "name": 1, "value": "", "traceback": []},
        {"event": "error", "name": "", "value": "", "traceback": [1]},
        {"event": "error", "name": "", "value": "", "traceback": None},
        {"event": "done", "ok": True},
    ],
    ids=lambda wrong: str(wrong)[-60:],
)
def test_invalid_message_is_refused(wrong: Any) -> None:  # noqa: ANN401 - anything
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        parse_event(wrong)


def test_long_fields_are_cut() -> None:
    event = parse_event({"event": "error", "name": "n" * 99_999, "value": "v" * 99_999, "traceback": ["t" * 99_999] * 9_999})
    assert (len(event["name"]), len(event["value"]), len(event["traceback"])) == (MAX_LINE_CHARS, MAX_LINE_CHARS, LIMITS["traceback"])
    assert {len(line) for line in event["traceback"]} == {MAX_LINE_CHARS}
    data: dict[str, Any] = {f"text/x{number}": "1" for number in range(100)}
    assert len(parse_event({**DISPLAY, "data": data})["data"]) == LIMITS["mime_types"]
    assert len(parse_event({**DISPLAY, "display_id": "i" * 999})["display_id"]) == LIMITS["name"]


def test_invalid_representations_are_left_out() -> None:
    event = parse_event({**DISPLAY, "data": {"text/plain": "1", "nonsense": "2", "a/b/c": "3", "text/": "4", "text/html": 5, "text/\n": "6"}})
    assert event["data"] == {"text/plain": "1"}


@pytest.mark.parametrize("text", ["text/plain", "application/vnd.sandlot.chart.v1+json", "image/svg+xml"])
def test_mime_types_are_recognized(text: str) -> None:
    assert is_mime_type(text)
