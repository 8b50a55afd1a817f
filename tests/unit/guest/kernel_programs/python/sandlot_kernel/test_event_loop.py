"""Interrupts, and the event loop around cells."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.support.kernels import Process, errors_of, text_of, values_of

NAP = "async def nap(value):\n    await asyncio.sleep(0.01)\n    return value\n"


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(300)",
        "while True: pass",
        "while True: print('x' * 100)",
        "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "subprocess.run(['sleep', '300'])",
        "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
        "await asyncio.sleep(300)",
        "asyncio.run(asyncio.sleep(300))",
        "async def spin():\n    while True: pass\nawait spin()",
        "async def other():\n    while True: pass\nasyncio.create_task(other())\nawait asyncio.sleep(300)",
        "threading.Thread(target=time.sleep, args=(300,), daemon=True).start()\nthreading.Event().wait()",
        "import queue\nqueue.Queue().get()",
        "class Slow:\n    def __repr__(self): time.sleep(300)\nSlow()",
        "try:\n    time.sleep(300)\nfinally:\n    print('cleaned')",
    ],
)
def test_interrupt_ends_a_cell_in_every_situation(kernel: Process, code: str) -> None:
    outcome = kernel.interrupt(code)
    assert errors_of(outcome) == ["KeyboardInterrupt"]
    assert not outcome[-1]["ok"]
    assert "cleaned" not in code or text_of(outcome) == "cleaned\n"
    assert kernel.value("'and the next one works'") == "'and the next one works'"


def test_interrupt_reaches_children_of_the_cell(ipython: Process) -> None:
    assert errors_of(ipython.interrupt("!sleep 300")) == ["KeyboardInterrupt"]
    assert ipython.value("1") == "1"


def test_interrupt_between_cells_is_ignored(kernel: Process) -> None:
    kernel.run("kept = 'yes'\nwaiting = asyncio.create_task(asyncio.sleep(300))")
    for _ in range(3):
        os.kill(kernel.pid, signal.SIGINT)
        time.sleep(0.02)
    assert kernel.value("kept, waiting.done()") == "('yes', False)"
    kernel.run("waiting.cancel()")


def test_task_that_never_yields_between_cells_is_interrupted(kernel: Process) -> None:
    kernel.run("async def greedy():\n    while True: pass\nheld = asyncio.create_task(greedy())")
    time.sleep(0.1)
    cell = kernel.begin("'through'")
    os.kill(kernel.pid, signal.SIGINT)
    assert values_of(kernel.until(cell)) == ["'through'"]


def test_later_cells_can_be_interrupted_after_a_cell_that_ignored_interrupts(kernel: Process) -> None:
    kernel.run("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN);")
    assert errors_of(kernel.interrupt("time.sleep(300)")) == ["KeyboardInterrupt"]


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.run(nap(7))",
        "asyncio.get_event_loop().run_until_complete(nap(7))",
        "asyncio.new_event_loop().run_until_complete(nap(7))",
        "loop = asyncio.get_event_loop()\nloop.run_until_complete(asyncio.gather(nap(1), nap(7)))[1]",
        "asyncio.run(nap(1)), asyncio.run(nap(7))\nasyncio.run(nap(7))",
        "def main():\n    return asyncio.run(nap(7))\nmain()",
        "task = asyncio.create_task(nap(7))\nasyncio.get_running_loop().run_until_complete(task)",
    ],
)
def test_asyncio_run_works_in_a_cell(kernel: Process, code: str) -> None:
    kernel.run(NAP)
    assert kernel.value(code) == "7"


def test_cell_without_await_finds_the_event_loop(kernel: Process) -> None:
    outcome = kernel.run(NAP + "def later():\n    return asyncio.create_task(nap('done'))\nasyncio.run(nap(0))\ntask = later()")
    assert errors_of(outcome) == [], outcome
    assert kernel.value("await task") == "'done'"
    assert kernel.value("asyncio.get_running_loop() is asyncio.get_event_loop()") == "True"


def test_nested_asyncio_run_is_refused(kernel: Process) -> None:
    kernel.run(NAP)
    outcome = kernel.run("await nap(0)\nnested = nap(1)\ntry:\n    asyncio.run(nested)\nfinally:\n    nested.close()")
    assert errors_of(outcome) == ["RuntimeError"]
    assert kernel.value("asyncio.run(nap(2))") == "2"


def test_stopped_or_closed_event_loop_is_replaced(kernel: Process) -> None:
    kernel.run(NAP)
    for broken in ("asyncio.get_event_loop().stop()", "asyncio.get_event_loop().close()", "await nap(0)\nasyncio.get_event_loop().stop()"):
        kernel.run(broken)
        assert kernel.value("await nap(3)") == "3"
        assert kernel.value("asyncio.run(nap(4))") == "4"


def test_interrupt_at_any_moment_is_reported_as_one_error(kernel: Process) -> None:
    cells = (
        "while True: print('x' * 1000)",
        "while True: display(1)",
        "while True: subprocess.run(['true'])",
        "while True: await asyncio.sleep(0)",
        "while True: print('.', end='', flush=True)",
    )
    for number in range(20):
        cell = kernel.begin(cells[number % len(cells)])
        kernel.until(cell, "started")
        time.sleep(number % 8 / 400)
        os.kill(kernel.pid, signal.SIGINT)
        assert errors_of(kernel.until(cell)) == ["KeyboardInterrupt"]
    assert kernel.value("'whole'") == "'whole'"
