"""How much a cell keeps of its results and errors, and of what it was asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.kernels import service
from sandlot.guest.kernels.cells import ERRORS_BYTES, EVENTS_BYTES, EVENTS_MOST, LEFT_OUT, Cell
from sandlot.guest.kernels.service import Kernels
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


def test_a_result_that_does_not_fit_is_left_out_alone_and_the_cells_error_is_told() -> None:
    cell = made()
    for size in (EVENTS_BYTES // 2, EVENTS_BYTES // 2 + 1, 10, EVENTS_BYTES, 10):
        cell.tell(display(f"{size}"), size)
    cell.tell(error("ValueError"), 100)
    cell.fail("KernelDied", "It died.")
    assert texts(cell) == [f"{EVENTS_BYTES // 2}", LEFT_OUT, "10", "10", "ValueError", "KernelDied"]


def test_only_so_many_are_kept_however_small_and_the_error_is_told_all_the_same() -> None:
    cell = made()
    for _ in range(EVENTS_MOST + 10):
        cell.tell(display("x"), 1)
    cell.tell(error("ValueError"), 100)
    assert len(cell.events) < EVENTS_MOST
    assert texts(cell)[-2:] == [LEFT_OUT, "ValueError"]


@pytest.mark.parametrize("wait", [True, False])
def test_what_is_cleared_gives_its_room_back(*, wait: bool) -> None:
    cell = made()
    for number in range(10):
        cell.tell({"event": "clear", "wait": wait}, 1)
        cell.tell(display(f"{number}"), EVENTS_BYTES // 2 + 1)
    assert [text for text in texts(cell) if text != "clear"] == ["9"]
    assert cell.kept_bytes < EVENTS_BYTES
    assert len(cell.events) == 20, "who has seen some of them finds where to go on"


def test_an_update_gives_the_room_of_the_one_before_back() -> None:
    cell = made()
    cell.tell(display("first", "a"), 10)
    cell.tell(display("other", "b", update=True), 10)
    for number in range(10):
        cell.tell(display(f"{number}", "a", update=True), EVENTS_BYTES // 2 + 1)
    assert texts(cell) == ["first", "other", *[""] * 9, "9"]
    assert all(event["display_id"] == "a" and event["update"] for event in cell.events[2:])
    cell.tell(display("too much", "a", update=True), EVENTS_BYTES)
    assert texts(cell)[-2:] == ["9", LEFT_OUT], "what stands is not given up for what does not fit"


def test_many_errors_are_forgotten_for_the_last() -> None:
    cell = made()
    for number in range(5):
        cell.tell(error(f"{number}", "line"), ERRORS_BYTES // 2 + 1)
    cell.tell(error("huge", *["x" * 8000] * 500), 4_000_000)
    assert texts(cell) == ["Error"] * 5 + ["huge"]
    assert sum(len(line) for line in cell.events[-1]["traceback"]) < ERRORS_BYTES


def test_what_is_told_after_the_end_is_kept_within_the_same_bounds() -> None:
    forgotten: list[str] = []
    rpc = SimpleNamespace(forget_result=lambda id_, _name: forgotten.append(id_))
    loop = Loop()
    kernels = Kernels(SimpleNamespace(rpc=rpc, loop=loop))  # type: ignore[arg-type]
    cells = {f"c{number}": made() for number in range(10)}
    for id_, cell in cells.items():
        cell.id = id_
        kernels.remember(cell)
        cell.finish("ok", 1)
    for cell in cells.values():
        cell.tell(display("late"), EVENTS_BYTES // 2)
        loop.turn()
    assert forgotten == [f"c{number}" for number in range(6)]
    for cell in list(cells.values())[6:]:
        cell.outputs.buffers[1].append(b"x" * (2 << 20))
        cell.pump()
        loop.turn()
    assert forgotten[6:] == ["c6"]
    assert sum(cell.kept_bytes for id_, cell in cells.items() if id_ not in forgotten) <= service.KEPT_BYTES
