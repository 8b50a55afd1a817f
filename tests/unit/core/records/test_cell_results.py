"""Results of cells for the store: their encoding, and its limits."""

from __future__ import annotations

import pytest

from sandlot.core.records import cell_results
from sandlot.core.records.cell_results import ResultCapture, decode, encode
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.executions import CellError, CellResults, Display
from sandlot.model.specs import MIB

DEEP: object = [[[[[[[[[[[[["x"]]]]]]]]]]]]]


def test_results_are_decoded_as_they_were_encoded() -> None:
    shown = Display({"image/png": b"\x89", "text/plain": "\x00ä"}, main=True, metadata={"a": [1.5, None, {"b": b"c"}], "deep": DEEP}, display_id="x")
    results = CellResults((shown, Display({}, main=False)), 3, CellError("E", "v", ("a", "b")))
    assert decode(encode(results)) == results
    assert encode(CellResults()) == b""
    assert decode(encode(CellResults(omitted=1))) == CellResults(omitted=1)


@pytest.mark.parametrize("text", ["x", "\x01", "\U0001f600"])
def test_encoded_results_have_a_maximum_size(text: str) -> None:
    results = CellResults([Display({"text/plain": text * MIB}, main=False)] * 5, 1, CellError("E", "v", ("line",)))
    encoded = encode(results)
    assert len(encoded) <= cell_results.MAX_BYTES
    found = decode(encoded)
    assert found.error == results.error
    assert len(found.results) + found.omitted == 6


def test_results_with_many_parts_can_be_decoded() -> None:
    results = CellResults([Display({"a/b": ""}, main=False, metadata={"k": [0] * 1000})] * 200)
    assert len(decode(encode(results)).results) == 200


def test_result_that_cannot_be_encoded_is_counted() -> None:
    deep: object = "x"
    for _ in range(20):
        deep = [deep]
    results = CellResults([Display({"a/b": "x"}, main=False, metadata={"k": deep}), Display({"a/b": "y"}, main=False)])
    assert decode(encode(results)) == CellResults((Display({"a/b": "y"}, main=False),), 1)


def test_capture_gives_its_memory_back() -> None:
    memory = BufferBudget(MIB)
    capture = ResultCapture(memory)
    for _ in range(3):
        capture.add(Display({"text/plain": "x" * 1000}, main=False))
        capture.add(CellError("E", "v", ("y" * 1000,)))
    assert memory.taken_bytes > 4000
    capture.close()
    capture.close()
    assert memory.taken_bytes == 0
    assert len(capture.results().results) == 3


def test_exception_without_memory_is_not_kept() -> None:
    capture = ResultCapture(BufferBudget(1000))
    capture.add(CellError("E", "v", ("y" * 1000,)))
    assert capture.results().error is None
