"""What kernels say is hostile: what may be passed on is, everything else is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sandlot.guest.kernels.messages import LINE_CHARS, checked, is_mime_type
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
def test_what_is_right_comes_through_as_it_is(message: dict[str, Any]) -> None:
    assert checked(message) == message


def test_what_may_be_absent_is() -> None:
    assert checked({"event": "ready", "whatever": 1}) == {"event": "ready", "cell": None}
    told = checked({"event": "display", "data": {}, "main": False})
    assert (told["cell"], told["metadata"], told["display_id"], told["update"]) == (None, {}, None, False)


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
def test_what_is_wrong_is_refused(wrong: Any) -> None:  # noqa: ANN401 - anything
    with pytest.raises((ValueError, TypeError, LookupError, AttributeError)):
        checked(wrong)


def test_what_is_too_much_is_cut() -> None:
    told = checked({"event": "error", "name": "n" * 99_999, "value": "v" * 99_999, "traceback": ["t" * 99_999] * 9_999})
    assert (len(told["name"]), len(told["value"]), len(told["traceback"])) == (LINE_CHARS, LINE_CHARS, LIMITS["traceback"])
    assert {len(line) for line in told["traceback"]} == {LINE_CHARS}
    data: dict[str, Any] = {f"text/x{number}": "1" for number in range(100)}
    assert len(checked({**DISPLAY, "data": data})["data"]) == LIMITS["mime_types"]
    assert len(checked({**DISPLAY, "display_id": "i" * 999})["display_id"]) == LIMITS["name"]


def test_representations_that_are_none_are_left_out() -> None:
    told = checked({**DISPLAY, "data": {"text/plain": "1", "nonsense": "2", "a/b/c": "3", "text/": "4", "text/html": 5, "text/\n": "6"}})
    assert told["data"] == {"text/plain": "1"}


@pytest.mark.parametrize("text", ["text/plain", "application/vnd.sandlot.chart.v1+json", "image/svg+xml"])
def test_mime_types(text: str) -> None:
    assert is_mime_type(text)
