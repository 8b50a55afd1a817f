"""Bounded results of a cell. ``core/execution/test_output.py`` has the collector of responses on top of them."""

from __future__ import annotations

from sandlot.model.buffer_budget import BufferBudget
from sandlot.model.display_capture import MAX_RESULTS, DisplayCapture, value_bytes
from sandlot.model.executions import Display


def test_results_beyond_the_number_are_counted() -> None:
    capture = DisplayCapture(BufferBudget(1 << 30), 1 << 30)
    for _ in range(MAX_RESULTS + 2):
        capture.add(Display({"text/plain": "x"}, main=False))
    assert (len(capture.displays), capture.omitted) == (MAX_RESULTS, 2)


def test_memory_is_taken_for_each_copy_and_given_back() -> None:
    memory, shown = BufferBudget(1 << 30), Display({"text/plain": "x" * 1000}, main=False)
    capture = DisplayCapture(memory, 1 << 20, copies=3)
    capture.add(shown)
    assert memory.taken_bytes == 3 * value_bytes(shown)
    capture.clear()
    assert (memory.taken_bytes, capture.displays) == (0, [])
