"""Limits of the results and errors of a cell, and of all remembered cells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.kernels.cell import LEFT_OUT, MAX_ERRORS_BYTES, MAX_EVENTS, MAX_RESULTS_BYTES, Cell
from sandlot.guest.kernels.cell_store import MAX_BYTES, CellStore
from sandlot.guest.loop import Loop

ARGS: dict[str, Any] = {"kernel": "default", "code": "", "env": {}, "timeout_s": None, "silent": None, "store_history": None, "stop_on_error": None}


def made(**args: object) -> Cell:
    return Cell(Loop(), "c", {**ARGS, **args})


def display(text: str, id_: str | None = None, *, update: bool = False) -> dict[str, Any]:
    return {"event": "display", "data": {"text/plain": text}, "main": False, "metadata": {}, "display_id": id_, "update": update}


def error(name: str, *lines: str) -> dict[str, Any]:
    return {"event": "error", "name": name, "value": "", "traceback": list(lines)}


def texts(cell: Cell) -> list[str]:
    return [event["data"].get("text/plain", "") if event["event"] == "display" else event.get("name", event["event"]) for event in cell.events]


def test_only_results_that_do_not_fit_are_left_out_and_the_error_is_kept() -> None:
    cell = made()
    for size in (MAX_RESULTS_BYTES // 2, MAX_RESULTS_BYTES // 2 + 1, 10, MAX_RESULTS_BYTES, 10):
        cell.add_event(display(f"{size}"), size)
    cell.add_event(error("ValueError"), 100)
    cell.fail("KernelDied", "It died.")
    assert texts(cell) == [f"{MAX_RESULTS_BYTES // 2}", LEFT_OUT, "10", "10", "ValueError", "KernelDied"]


def test_number_of_results_is_limited_and_the_error_is_kept() -> None:
    cell = made()
    for _ in range(MAX_EVENTS + 10):
        cell.add_event(display("x"), 1)
    cell.add_event(error("ValueError"), 100)
    assert len(cell.events) < MAX_EVENTS
    assert texts(cell)[-2:] == [LEFT_OUT, "ValueError"]


@pytest.mark.parametrize("wait", [True, False])
def test_cleared_results_no_longer_count(*, wait: bool) -> None:
    cell = made()
    for number in range(10):
        cell.add_event({"event": "clear", "wait": wait}, 1)
        cell.add_event(display(f"{number}"), MAX_RESULTS_BYTES // 2 + 1)
    assert [text for text in texts(cell) if text != "clear"] == ["9"]
    assert cell.kept_bytes < MAX_RESULTS_BYTES
    assert len(cell.events) == 20, "a follower that has received some of them finds its place"


def test_updated_result_no_longer_counts() -> None:
    cell = made()
    cell.add_event(display("first", "a"), 10)
    cell.add_event(display("other", "b", update=True), 10)
    for number in range(10):
        cell.add_event(display(f"{number}", "a", update=True), MAX_RESULTS_BYTES // 2 + 1)
    assert texts(cell) == ["first", "other", *[""] * 9, "9"]
    assert all(event["display_id"] == "a" and event["update"] for event in cell.events[2:])
    cell.add_event(display("too much", "a", update=True), MAX_RESULTS_BYTES)
    assert texts(cell)[-2:] == ["9", LEFT_OUT], "a result that fits is not dropped for one that does not"


def test_last_error_is_kept_before_earlier_ones() -> None:
    cell = made()
    for number in range(5):
        cell.add_event(error(f"{number}", "line"), MAX_ERRORS_BYTES // 2 + 1)
    cell.add_event(error("huge", *["x" * 8000] * 500), 4_000_000)
    assert texts(cell) == ["Error"] * 5 + ["huge"]
    assert sum(len(line) for line in cell.events[-1]["traceback"]) < MAX_ERRORS_BYTES


def test_output_after_the_end_counts_for_the_limit_of_remembered_cells() -> None:
    forgotten: list[str] = []
    rpc = SimpleNamespace(forget_result=lambda id_, _name: forgotten.append(id_))
    loop = Loop()
    store = CellStore(loop, rpc)  # type: ignore[arg-type]
    cells = {f"c{number}": made() for number in range(10)}
    for id_, cell in cells.items():
        cell.id = id_
        store.add(cell)
        cell.finish("ok", 1)
    for cell in cells.values():
        cell.add_event(display("late"), MAX_RESULTS_BYTES // 2)
        loop.turn()
    assert forgotten == [f"c{number}" for number in range(6)]
    for cell in list(cells.values())[6:]:
        cell.outputs.buffers[1].append(b"x" * (2 << 20))
        cell.pump()
        loop.turn()
    assert forgotten[6:] == ["c6"]
    assert sum(cell.kept_bytes for id_, cell in cells.items() if id_ not in forgotten) <= MAX_BYTES
