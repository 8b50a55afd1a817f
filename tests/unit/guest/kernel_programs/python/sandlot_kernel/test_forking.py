"""Children of cells: a forked child does not act as a kernel, and the output of children keeps its order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernels import Process, errors_of, values_of


def errors_in(outcome: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [message for message in outcome if message["event"] == "error"]


@pytest.mark.parametrize(
    "child,status",
    [
        ("pass", 0),
        ("raise SystemExit(4)", 4),
        ("raise SystemExit('why')", 1),
        ("raise SystemExit", 0),
        ("1 / 0", 1),
        ("os._exit(7)", 7),
        ("display(1)\n    print('text')", 0),
    ],
)
def test_forked_child_ends_with_its_cell_and_sends_no_messages(kernel: Process, child: str, status: int) -> None:
    outcome = kernel.run(
        f"status = 0\npid = os.fork()\nif pid == 0:\n    {child}\nelse:\n    status = os.waitpid(pid, 0)[1]\nos.waitstatus_to_exitcode(status)"
    )
    assert values_of(outcome) == [str(status)]
    assert errors_of(outcome) == []
    assert kernel.value("'alone'") == "'alone'"


def test_forked_child_prints_to_its_descriptors(tmp_path: Path) -> None:
    kernel = Process(tmp_path, "--plain")
    kernel.run(
        "import os\nprint('parent')\npid = os.fork()\nif pid == 0:\n    print('child')\n    print('half', end='')\nelse:\n    os.waitpid(pid, 0)"
    )
    kernel.run(
        "import multiprocessing\nworker = multiprocessing.get_context('fork').Process(target=print, args=(' and worker',))\n"
        "worker.start()\nworker.join()"
    )
    assert kernel.stop() == b"child\nhalf and worker\n"


STARTS = ("subprocess.call(['touch', {path!r}])", "os.system('touch ' + {path!r})", "os.fork() or (open({path!r}, 'x').close(), os._exit(0))")


@pytest.fixture
def silent(kernel: Process) -> Iterator[Process]:
    """A kernel whose guest does not confirm a ``sync`` message. The test sends the confirmation."""
    kernel.answers = False
    yield kernel
    kernel.answers = True


@pytest.mark.parametrize("start", STARTS)
def test_program_starts_after_the_guest_has_read_earlier_output(silent: Process, tmp_path: Path, start: str) -> None:
    path = tmp_path / "started"
    cell = silent.begin(f"import os\nprint('before')\n{start.format(path=str(path))}\nos.wait() if 'fork' in {start!r} else None\nprint('after')")
    asked = silent.until_event("sync")
    assert b"".join(message["data"] for message in asked if message["event"] == "output") == b"before\n"  # may come in two pieces
    time.sleep(0.1)
    assert not path.exists()
    silent.send({"op": "synced", "number": asked[-1]["number"]})
    silent.answers = True
    assert silent.until(cell)[-1]["ok"]
    assert path.exists()


def test_program_start_without_earlier_output_does_not_wait(silent: Process) -> None:
    cell = silent.begin("_ = [subprocess.call(['true']) for _ in range(3)]")
    outcome = silent.until_event("sync")
    assert [message["event"] for message in outcome] == ["started", "sync"], "for what the last cell outcome"
    silent.send({"op": "synced", "number": outcome[-1]["number"]})
    assert [message["event"] for message in silent.until(cell)] == ["done"]
    cell = silent.begin("_ = [subprocess.call(['true']) for _ in range(3)]\nprint('x', end='')\n_ = [subprocess.call(['true']) for _ in range(3)]")
    outcome = [*silent.until_event("sync")]
    silent.send({"op": "synced", "number": outcome[-1]["number"]})
    outcome += silent.until_event("sync")
    assert [message["event"] for message in outcome] == ["started", "sync", "output", "sync"]
    silent.send({"op": "synced", "number": outcome[-1]["number"]})
    assert [message["event"] for message in silent.until(cell)] == ["done"]


def test_wait_for_the_guest_has_a_timeout(silent: Process) -> None:
    cell = silent.begin("print('before')\nsubprocess.call(['true'])")
    asked = silent.until_event("sync")[-1]
    assert silent.until(cell)[-1]["ok"]
    silent.send({"op": "synced", "number": asked["number"]})  # too late: received between cells and ignored
    assert silent.value("'on'") == "'on'"


def test_wait_for_the_guest_can_be_interrupted(silent: Process, tmp_path: Path) -> None:
    path = tmp_path / "started"
    cell = silent.begin(f"print('before')\nsubprocess.call(['touch', {str(path)!r}])")
    silent.until_event("sync")
    os.kill(silent.pid, signal.SIGINT)
    assert [error["name"] for error in errors_in(silent.until(cell))] == ["KeyboardInterrupt"]
    assert not path.exists()


def test_message_that_arrives_during_the_wait_is_handled_later(silent: Process) -> None:
    first = silent.begin("print('before')\nsubprocess.call(['true'])")
    asked = silent.until_event("sync")[-1]
    second = silent.begin("'second'")
    silent.send({"op": "synced", "number": asked["number"]})
    assert silent.until(first)[-1]["ok"]
    assert values_of(silent.until(second)) == ["'second'"]


def test_threads_and_tasks_between_cells_do_not_wait(silent: Process) -> None:
    cell = silent.begin("t = threading.Thread(target=lambda: (print('x'), subprocess.call(['true'])))\nt.start(); t.join()")
    outcome = silent.until(cell)
    assert "sync" not in [message["event"] for message in outcome]
    assert b"".join(message["data"] for message in outcome if message["event"] == "output") == b"x\n"
    assert outcome[-1]["ok"]


def test_missing_program_has_a_traceback_without_kernel_frames(kernel: Process) -> None:
    (error,) = kernel.run("subprocess.run(['/nonexistent/program'])")
    assert error["name"] == "FileNotFoundError"
    assert "sandlot_kernel" not in "\n".join(error["traceback"])


def test_command_lines_run_in_a_shell(ipython: Process, tmp_path: Path) -> None:
    assert ipython.value("x = !echo one; echo two\nx") == "['one', 'two']"
    assert ipython.value("!exit 3\n_exit_code") == "3"
    assert ipython.value("name = 'brace'\ny = !echo {name} $name\ny") == "['brace brace']"
    assert ipython.text("%%capture kept\n!echo captured; echo err >&2\nprint('p')") == ""
    assert ipython.value("kept.stdout, kept.stderr") == "('captured\\np\\n', 'err\\n')"
    other = Process(tmp_path)
    other.run("print('a')\n!echo b; echo c >&2")
    assert other.stop() == b"b\nc\n", "as it is written, not gathered"
