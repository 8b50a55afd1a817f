"""Children of cells: forked ones are no second kernels, and their order with what cells print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kernels import Process, errors_of, values_of


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
def test_a_forked_child_ends_with_its_cell_and_never_speaks_for_the_kernel(kernel: Process, child: str, status: int) -> None:
    told = kernel.run(
        f"status = 0\npid = os.fork()\nif pid == 0:\n    {child}\nelse:\n    status = os.waitpid(pid, 0)[1]\nos.waitstatus_to_exitcode(status)"
    )
    assert values_of(told) == [str(status)]
    assert errors_of(told) == []
    assert kernel.value("'alone'") == "'alone'"


def test_what_a_forked_child_prints_comes_by_the_descriptors(tmp_path: Path) -> None:
    kernel = Process(tmp_path, "--plain")
    kernel.run(
        "import os\nprint('parent')\npid = os.fork()\nif pid == 0:\n    print('child')\n    print('half', end='')\nelse:\n    os.waitpid(pid, 0)"
    )
    kernel.run(
        "import multiprocessing\nworker = multiprocessing.get_context('fork').Process(target=print, args=(' and worker',))\n"
        "worker.start()\nworker.join()"
    )
    assert kernel.stop() == b"child\nhalf and worker\n"


def test_pools_of_processes_work(kernel: Process) -> None:
    kernel.run("import multiprocessing")
    assert kernel.value("with multiprocessing.get_context('fork').Pool(2) as pool: found = pool.map(abs, [-1, -2])\nfound") == "[1, 2]"


def test_a_program_that_is_not_there_is_told_without_frames_of_ours(kernel: Process) -> None:
    (error,) = kernel.run("subprocess.run(['/nonexistent/program'])")
    assert error["name"] == "FileNotFoundError"
    assert "sandlot_kernel" not in "\n".join(error["traceback"])


def test_command_lines(ipython: Process, tmp_path: Path) -> None:
    assert ipython.value("x = !echo one; echo two\nx") == "['one', 'two']"
    assert ipython.value("!exit 3\n_exit_code") == "3"
    assert ipython.value("name = 'brace'\ny = !echo {name} $name\ny") == "['brace brace']"
    assert ipython.text("%%capture kept\n!echo captured; echo err >&2\nprint('p')") == ""
    assert ipython.value("kept.stdout, kept.stderr") == "('captured\\np\\n', 'err\\n')"
    other = Process(tmp_path)
    other.run("print('a')\n!echo b; echo c >&2")
    assert other.stop() == b"b\nc\n", "as it is written, not gathered"
