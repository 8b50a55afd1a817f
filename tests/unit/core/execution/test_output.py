"""Collected results of a cell: displays that are updated and cleared, and bounds."""

from __future__ import annotations

import pytest

from sandlot.core.execution import output
from sandlot.core.execution.output import OutputCollector
from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.display_capture import value_bytes
from sandlot.model.executions import CellError, CellStarted, Cleared, Display, Output, OutputGap
from sandlot.model.output_capture import COPIES
from sandlot.model.specs import MIB


def collected(*events: Output | OutputGap | CellStarted | Display | Cleared | CellError) -> OutputCollector:
    results = OutputCollector(BufferBudget(64 * MIB))
    for event in events:
        results.add(event)
    return results


def shown(text: str, *, id_: str | None = None, update: bool = False, main: bool = False) -> Display:
    return Display({"text/plain": text}, main, display_id=id_, update=update)


def texts(results: OutputCollector) -> list[str | bytes]:
    return [display.data["text/plain"] for display in results.displays]


def test_output_results_and_error_are_collected() -> None:
    error = CellError("ValueError", "no", ())
    results = collected(CellStarted(1), Output(1, 0, b"out"), Output(2, 0, b"err"), shown("a"), error)
    assert (results.captures[1].text(), results.captures[2].text(), texts(results), results.error) == ("out", "err", ["a"], error)


def test_update_replaces_every_display_of_the_same_name() -> None:
    results = collected(shown("a", id_="x", main=True), shown("b"), shown("c", id_="x"), shown("d", id_="x", update=True))
    assert texts(results) == ["d", "b", "d"]
    assert [display.main for display in results.displays] == [True, False, False]


def test_update_of_another_cells_display_is_kept_as_a_result() -> None:
    assert texts(collected(shown("d", id_="elsewhere", update=True))) == ["d"]


def test_cleared_displays_are_not_kept() -> None:
    assert texts(collected(shown("a"), Cleared(wait=False), shown("b"))) == ["b"]
    assert texts(collected(shown("a"), Cleared(wait=True))) == ["a"]
    assert texts(collected(shown("a"), Cleared(wait=True), shown("b"), shown("c"))) == ["b", "c"]


def test_cleared_output_is_not_kept() -> None:
    def text(*events: Output | OutputGap | Display | Cleared) -> tuple[str, str, list[str | bytes]]:
        results = collected(*events)
        return results.captures[1].text(), results.captures[2].text(), texts(results)

    out, err = Output(1, 0, b"out"), Output(2, 0, b"err")
    loop = [event for number in range(5) for event in (Cleared(wait=True), Output(1, number, b"%d" % number))]
    assert text(*loop) == ("4", "", [])
    assert text(out, err, shown("a"), Cleared(wait=False)) == ("", "", [])
    assert text(out, err, shown("a"), Cleared(wait=True)) == ("out", "err", ["a"])
    assert text(out, Cleared(wait=True), err) == ("", "err", [])
    assert text(out, err, Cleared(wait=True), shown("a"), out) == ("out", "", ["a"])
    assert text(OutputGap(1, 5, 0), out, Cleared(wait=False), err) == ("", "err", []), "what was lost before is cleared too"


def test_cleared_output_frees_its_memory() -> None:
    buffers = BufferBudget(64 * MIB)
    results = OutputCollector(buffers)
    for number in range(100):
        results.add(Cleared(wait=True))
        results.add(Output(1, number * MIB, bytes(MIB)))
    assert (buffers.taken_bytes, results.captures[1].omitted) == (COPIES * MIB, 0)
    results.close()
    assert buffers.taken_bytes == 0


def test_cleared_displays_free_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_RESULT_BYTES", 3 * value_bytes(shown("x" * 100)))
    events = [event for _ in range(100) for event in (Cleared(wait=False), shown("x" * 100))]
    results = collected(*events)
    assert (len(results.displays), results.omitted) == (1, 0)
    assert collected(*[shown("x" * 100)] * 4).omitted == 1


def test_results_beyond_the_budget_are_counted_as_omitted() -> None:
    buffers = BufferBudget(10_000)
    results = OutputCollector(buffers)
    for _ in range(10):
        results.add(shown("x" * 1000))
    assert 0 < len(results.displays) < 10
    assert results.omitted == 10 - len(results.displays)
    results.close()
    assert buffers.taken_bytes == 0


def test_animation_needs_the_memory_of_one_frame() -> None:
    buffers = BufferBudget(4 * COPIES * value_bytes(shown("x" * 1000)))
    for updates in (True, False):
        results = OutputCollector(buffers)
        for number in range(100):
            if not updates:
                results.add(Cleared(wait=True))
            results.add(shown(f"{number}" + "x" * 1000, id_="a", update=updates))
        assert (len(results.displays), results.omitted) == (1, 0)
        assert str(texts(results)[0]).startswith("99x")
        assert buffers.taken_bytes == COPIES * value_bytes(results.displays[0])
        results.close()
        assert buffers.taken_bytes == 0


def test_update_that_is_too_large_leaves_the_old_display() -> None:
    buffers = BufferBudget(3 * COPIES * value_bytes(shown("x" * 1000)))
    results = OutputCollector(buffers)
    for text in ("a", "b" * 5000, "c"):
        results.add(shown(text, id_="a", update=True))
    assert (texts(results), results.omitted) == (["c"], 1)
    results.close()
    assert buffers.taken_bytes == 0


def test_result_that_is_too_large_leaves_memory_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MAX_RESULT_BYTES", 3000)
    results = collected(shown("x" * 10_000), shown("small"))
    assert (texts(results), results.omitted) == (["small"], 1)


def test_metadata_of_a_result_counts_as_memory() -> None:
    small = Display({"text/plain": "a"}, main=False)
    large = Display({"text/plain": "a"}, main=False, metadata={"k": ["x" * 1000, {"deep": "y" * 1000}]})
    assert value_bytes(large) > value_bytes(small) + 2000
