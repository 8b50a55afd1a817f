"""The environment of a cell, its messages, and the randomness of a kernel."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.kernels import Process, errors_of, text_of


@pytest.fixture(scope="module")
def engine(shipped: Callable[[str], ModuleType]) -> ModuleType:
    return shipped("engine")


def test_same_entropy_gives_the_same_random_numbers(engine: ModuleType) -> None:
    state, names = random.getstate(), tempfile._name_sequence  # type: ignore[attr-defined]  # noqa: SLF001
    try:
        drawn = []
        for entropy in (b"a" * 64, b"b" * 64, b"a" * 64):
            engine.reseed(entropy)
            drawn.append(random.random())
            assert tempfile._name_sequence is None  # type: ignore[attr-defined]  # noqa: SLF001
        assert drawn[0] == drawn[2] != drawn[1]
    finally:
        random.setstate(state)
        tempfile._name_sequence = names  # type: ignore[attr-defined]  # noqa: SLF001


def test_every_message_contains_the_id_of_its_cell(kernel: Process) -> None:
    first = kernel.begin(
        "go = threading.Event()\nlate = threading.Thread(target=lambda: (go.wait(), display('late')))\nlate.start()\ndisplay('soon')"
    )
    outcome = kernel.until(first)
    assert [message["event"] for message in outcome] == ["started", "display", "done"]
    assert {message["cell"] for message in outcome} == {first}
    second = kernel.begin("go.set(); late.join()")
    assert [(message["event"], message["cell"]) for message in kernel.until(second)] == [
        ("started", second),
        ("display", first),
        ("done", second),
    ]


@pytest.mark.parametrize("code", ["os.environ['LENT'] = 'mine'", "del os.environ['LENT']", "os.environ.clear()", "raise SystemExit"])
def test_environment_of_a_cell_is_restored_after_the_cell(kernel: Process, code: str) -> None:
    kernel.run("kept = dict(os.environ)\nos.environ['LENT'] = 'before'\nos.environ.pop('NEW', None)")
    kernel.run(code, env={"LENT": "during", "NEW": "1"})
    assert kernel.text("print(os.environ['LENT'], 'NEW' in os.environ)") == "before False\n"
    kernel.run("os.environ.update(kept)")


def test_buffered_output_of_a_replaced_stream_belongs_to_the_cell(kernel: Process) -> None:
    cell = kernel.begin("import io\nkept = sys.stdout\nsys.stdout = io.TextIOWrapper(kept.buffer)\nprint('kept back')")
    outcome = kernel.until(cell)
    assert text_of(outcome) == "kept back\n"
    kernel.run("sys.stdout.detach()\nsys.stdout = kept")
    assert kernel.text("print('again')") == "again\n"


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0c"])
def test_only_a_newline_ends_a_line_of_a_traceback(kernel: Process, character: str) -> None:
    outcome = kernel.run(f"raise ValueError({f'a{character}b'!a})")
    (error,) = [message for message in outcome if message["event"] == "error"]
    assert error["value"] == f"a{character}b"
    assert error["traceback"][-1] == f"ValueError: a{character}b"


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85", "\x0c"])
def test_traceback_has_the_line_of_the_code(plain: Process, character: str) -> None:
    outcome = plain.run(f"x = 'a{character}b'\n\nraise ValueError('c{character}d')  # here")
    (error,) = [message for message in outcome if message["event"] == "error"]
    assert {f"    raise ValueError('c{character}d')  # here", f"ValueError: c{character}d"} <= set(error["traceback"])


def test_debugger_fails_with_a_hint(kernel: Process) -> None:
    for code in ("import pdb; pdb.set_trace(); 1", "breakpoint()"):
        (error,) = [message for message in kernel.run(code) if message["event"] == "error"]
        assert error["value"].startswith("A debugger cannot be used"), code


def test_cell_that_cancels_itself_reports_a_cancellation(kernel: Process) -> None:
    assert errors_of(kernel.run("raise asyncio.CancelledError")) == ["CancelledError"]
    assert errors_of(kernel.run("asyncio.current_task().cancel()\nawait asyncio.sleep(1000)")) == ["CancelledError"]


def test_rehearsal_sends_nothing_and_leaves_no_trace(tmp_path: Path) -> None:
    kernel = Process(tmp_path, flush_after_s=None)
    try:
        kernel.send({"op": "rehearse"})
        first = kernel.begin("before = set(globals())\nlen(In), len(Out), _, __, ___, _i")
        outcome = kernel.until(first)
        assert [message["event"] for message in outcome] == ["ready", "started", "display", "done"]
        assert outcome[1]["count"] == 1
        assert outcome[2]["data"]["text/plain"] == "(2, 0, '', '', '', '')"
        kernel.send({"op": "rehearse"})  # the kernel has run a cell, so nothing is run
        assert kernel.text("print([name for name in globals() if name not in before and not name.startswith('_')])") == "['before']\n"
    finally:
        kernel.close()
