"""Limits of display bundles and tracebacks."""

from __future__ import annotations

from types import TracebackType

import pytest

from sandlot.guest.kernel_programs.python.sandlot_kernel import display_data, tracebacks
from sandlot.guest.kernels.kernel_events import is_mime_type, parse_event
from sandlot.protocol import values
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from sandlot.protocol.schema import LIMITS


@pytest.mark.parametrize(
    "given,outcome",
    [
        ({"text/plain": "a"}, {"text/plain": "a"}),
        ({"text/plain": 5}, {"text/plain": "5"}),
        ({"image/png": b"\x89"}, {"image/png": b"\x89"}),
        ({"image/png": "iVBO\nRw=="}, {"image/png": b"\x89PNG"}),
        ({"image/png": "!!"}, {}),
        ({"image/svg+xml": ["<svg>\n", "</svg>"]}, {"image/svg+xml": "<svg>\n</svg>"}),
        ({"application/json": {"a": [1, None]}}, {"application/json": '{"a": [1, null]}'}),
        ({"application/json": [float("nan"), 1e400]}, {"application/json": "[null, null]"}),
        ({"application/json": '{"already": "text"}'}, {"application/json": '{"already": "text"}'}),
        ({"application/vnd.x+json": {"k": object}}, {"application/vnd.x+json": '{"k": "<class \'object\'>"}'}),
        ({"no type": "x", 5: "y"}, {}),
        ({"text/html": object()}, {"text/html": None}),
    ],
)
def test_representations_are_encoded_by_mime_type(given: dict[object, object], outcome: dict[str, object]) -> None:
    data, about = display_data.display_bundle(given)
    assert about == {}
    assert set(data) == set(outcome)
    assert all(outcome[mime] in {None, data[mime]} for mime in outcome)


def test_long_text_is_cut_and_other_long_representations_are_left_out() -> None:
    data, about = display_data.display_bundle(
        {"text/plain": "x" * 3_000_000, "text/html": "h" * 5_000_000, "image/png": b"p" * 5_000_000, "image/jpeg": b"j" * 7_000_000}
    )
    assert data["text/plain"].endswith("[... cut after 1,048,576 of 3,000,000 characters]")
    assert set(data) == {"text/plain", "text/html"}
    assert about == {"image/png": {"left_out_bytes": 5_000_000}, "image/jpeg": {"left_out_bytes": 7_000_000}}
    data, about = display_data.display_bundle({"image/png": b"p" * 7_000_000})
    assert data == {"text/plain": "[image/png of 7,000,000 bytes was left out, because it is too large]"}


def _raised(depth: int) -> tuple[BaseException, TracebackType | None]:
    def deeper(n: int) -> None:
        if n:
            deeper(n - 1)
        raise ValueError("v" * 20_000)

    try:
        deeper(depth)
    except ValueError as error:
        return error, error.__traceback__
    raise AssertionError


def test_size_of_an_error_is_limited() -> None:
    error, trace = _raised(3)
    outcome = tracebacks.error_message(type(error), error, trace)
    assert (outcome["name"], len(outcome["value"])) == ("ValueError", tracebacks.MAX_VALUE_CHARS)
    assert any("in deeper" in line for line in outcome["traceback"])
    many = BaseExceptionGroup("g", [_raised(1)[0] for _ in range(1000)])
    assert len(tracebacks.error_message(type(many), many, None)["traceback"]) <= tracebacks.MAX_LINES


def _knotted() -> list[object]:
    knot: list[object] = []
    knot.extend([knot] * 64)
    return knot


@pytest.mark.parametrize(
    "much",
    [[[[1] * 64] * 64] * 64, {str(n): "ä" * 8000 for n in range(64)}, _knotted()],
    ids=["values", "texts", "knot"],
)
def test_too_large_metadata_is_replaced_by_a_note_and_the_rest_is_kept(much: object) -> None:
    data, about = display_data.display_bundle({"text/plain": "t", "image/x-1": b"p" * 6_000_000}, {"before": 1, "much": much, "after": [{"a": None}]})
    assert about == {"before": 1, "much": display_data.NO_ROOM, "after": [{"a": None}]}
    assert set(data) == {"text/plain", "image/x-1"}


def test_metadata_and_representations_fit_into_one_message() -> None:
    about = {str(n): ["m" * 7999] * 60 for n in range(64)}
    given = {f"image/x-{n}": b"p" * 500_000 for n in range(64)} | {"text/plain": "ä" * 3_000_000}
    data, outcome = display_data.display_bundle(given, about)
    raw = values.encode({"event": "display", "cell": "c", "data": data, "main": True, "metadata": outcome})
    assert len(raw) <= MESSAGE_MAX_BYTES
    assert parse_event(values.decode(raw))["metadata"] == outcome
    assert outcome["0"] == about["0"]
    assert outcome["63"] == display_data.NO_ROOM


def test_length_and_number_of_mime_types_are_limited() -> None:
    data, about = display_data.display_bundle({"a/" + "x" * 9_000_000: "long"} | {f"a/{n}": "many" for n in range(200_000)})
    assert len(data) == display_data.MAX_MIME_TYPES == LIMITS["mime_types"]
    assert about == {}
    assert is_mime_type("a" * 100 + "/" + "b" * 100)
    assert len("a" * 100 + "/" + "b" * 100) == display_data.MAX_MIME_CHARS
