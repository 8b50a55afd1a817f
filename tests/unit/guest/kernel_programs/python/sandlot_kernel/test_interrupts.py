"""Interrupts at every moment of a cell: a failed cell has reported exactly one error, a successful cell none."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest

from tests.support.kernels import Process, errors_of, text_of

STEPS = """
import signal, sys, asyncio
def arm(steps):
    # SIGINT is handled at the profiled call: Python checks for signals at calls and returns.
    left = [steps]
    def tell(frame, event, arg):
        left[0] -= 1
        if not left[0]:
            sys.setprofile(None)
            signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)
    sys.setprofile(tell)
"""
CELLS = (
    "x = 1\ny = 2",
    "1/0",
    "[1]",
    "print('a')\nraise ValueError('x')",
    "await asyncio.sleep(0)\ny = 2",
    "await asyncio.gather(asyncio.sleep(0))\n1/0",
)
BUDGET = 12


def is_true_to_itself(outcome: list[dict[str, Any]]) -> bool:
    """Return True if the messages of a cell agree with its result."""
    return len(errors_of(outcome)) == (0 if outcome[-1]["ok"] else 1)


@pytest.mark.parametrize("code", CELLS)
def test_interrupt_at_any_step_is_at_most_one_error(kernel: Process, code: str) -> None:
    kernel.run(STEPS)
    chance = random.Random(7)
    interrupted = 0
    for _ in range(BUDGET):
        kernel.until(kernel.begin(f"arm({chance.randrange(900, 3000)})", stored=False))
        cell = kernel.begin(code)
        outcome = kernel.until(cell)
        interrupted += "KeyboardInterrupt" in errors_of(outcome)
        kernel.until(kernel.begin("sys.setprofile(None)", stored=False))  # this cell may be interrupted too
        assert {message["cell"] for message in outcome} == {cell}
        assert is_true_to_itself(outcome), outcome
    assert interrupted
    assert kernel.text("print('whole')") == "whole\n"


def test_interrupt_soon_after_the_start_is_at_most_one_error(kernel: Process) -> None:
    cells = ("y = 5\nwhile True: pass", "time.sleep(300)", "1/0", "while True: await asyncio.sleep(0)", "print('x' * 100)\n[1] * 100")
    chance = random.Random(3)
    for number in range(30):
        cell = kernel.begin(cells[number % len(cells)])
        kernel.until(cell, "started")
        time.sleep(chance.choice((0.03, 0.002)) * chance.random())
        os.kill(kernel.pid, signal.SIGINT)
        outcome = kernel.until(cell)
        assert is_true_to_itself(outcome), outcome


def test_second_error_of_a_cell_is_written_to_stderr(ipython: Process) -> None:
    outcome = ipython.until(ipython.begin("for n in (0, 1):\n    try: 1 / 0\n    except Exception: get_ipython().showtraceback()"))
    assert errors_of(outcome) == ["ZeroDivisionError"]
    assert text_of(outcome, 2).endswith("ZeroDivisionError: division by zero\n")


def test_late_error_of_a_cell_is_not_attributed_to_the_next_cell(ipython: Process) -> None:
    """The error must not make the running cell fail without an error of its own."""
    first = ipython.begin(
        "import asyncio\nasync def late():\n    await asyncio.sleep(0.05)\n    try: 1 / 0\n"
        "    except Exception: get_ipython().showtraceback()\ntask = asyncio.create_task(late())"
    )
    ipython.until(first)
    outcome = ipython.until(ipython.begin("await task"))
    assert (outcome[-1]["ok"], errors_of(outcome)) == (True, [])
    assert {message["cell"] for message in outcome if message["event"] == "output" and b"ZeroDivisionError" in message["data"]} == {first}
