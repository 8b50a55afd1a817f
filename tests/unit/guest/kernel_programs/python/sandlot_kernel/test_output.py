"""Output of cells: order, attribution, limits, and the interface of streams that libraries expect."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.kernels import Process, errors_of, text_of


def test_many_lines_arrive_complete(kernel: Process) -> None:
    outcome = kernel.run("for n in range(20_000): print(n)")
    assert text_of(outcome) == "".join(f"{n}\n" for n in range(20_000))
    assert len(outcome) < 500, "gathered into pieces"


def test_very_long_string_is_sent_in_pieces(kernel: Process) -> None:
    cell = kernel.begin("print('x' * 5_000_000)")
    size = 0
    while (message := kernel.receive())["event"] != "done":
        size += len(message.get("data", b""))
        assert len(message.get("data", b"")) <= 65536 * 4
    assert (size, message["cell"]) == (5_000_001, cell)


def test_delayed_output_is_sent_while_the_cell_runs(kernel: Process) -> None:
    cell = kernel.begin("print('half', end='')\nwhile not os.path.exists('go'): time.sleep(0.01)\nos.remove('go')")
    assert kernel.until(cell, "output")[-1]["data"] == b"half"
    Path(f"/proc/{kernel.pid}/cwd/go").touch()
    assert kernel.until(cell)[-1]["ok"]


HELD = "import ctypes\nos.mkfifo('gate')\nsys.stdout.flush()\n{}\nctypes.PyDLL(None).open(b'gate', os.O_RDONLY)\nos.remove('gate')"
"""The code ends with a C call that holds the interpreter lock until the other end is opened."""


@pytest.mark.parametrize(
    "code,lines",
    [
        ("print('on it')", "on it\n"),
        ("print('a')\nprint('b', file=sys.stderr)\nprint('c', 'd')\nsys.stdout.buffer.write(b'e\\n')", "a\nb\nc d\ne\n"),
        ("for n in range(1000): print(n, end=' ')\nprint()\nsys.stdout.flush()\ntime.sleep(0.1)\nprint('then')", "then\n"),
    ],
)
def test_lines_are_sent_before_a_call_that_holds_the_interpreter_lock(kernel: Process, code: str, lines: str) -> None:
    kernel.run("print('just before')")
    cell = kernel.begin(HELD.format(code))
    kernel.ours.settimeout(5)
    outcome = [kernel.receive()]
    while not text_of(outcome).endswith(lines):
        outcome.append(kernel.receive())
    (Path(f"/proc/{kernel.pid}/cwd") / "gate").open("wb").close()
    kernel.ours.settimeout(60)
    assert kernel.until(cell)[-1]["ok"]


def test_output_of_a_thread_belongs_to_the_cell_that_started_it(kernel: Process) -> None:
    code = "def late():\n    while not done: time.sleep(0.01)\n    print('late')\n    threading.Thread(target=print, args=('later',)).start()\n"
    first = kernel.begin("done = False\n" + code + "thread = threading.Thread(target=late)\nthread.start()")
    kernel.until(first)
    second = kernel.begin("done = True\nthread.join()\nprint('mine')")
    outcome = kernel.until(second)
    told_of = {cell: "".join(m["data"].decode() for m in outcome if m["event"] == "output" and m["cell"] == cell) for cell in (first, second)}
    assert told_of[second] == "mine\n"
    assert told_of[first].startswith("late\n")


@pytest.mark.parametrize(
    "function",
    [
        "def raises(): 1 / 0",
        "def raises():\n    time.sleep(0.02)\n    1 / 0",
        "def raises():\n    print('y' * 100_000)\n    1 / 0",
        "def raises():\n    os.write(1, b'y')\n    subprocess.run(['true'])\n    1 / 0",
    ],
)
def test_cell_that_ends_with_a_join_has_the_tracebacks_of_its_threads(kernel: Process, function: str) -> None:
    code = "threads = [threading.Thread(target=raises, daemon=bool(n % 2)) for n in range(4)]\nfor thread in threads: thread.start()\n"
    outcome = kernel.run(f"{function}\n{code}threads[3].join()\nthreads[2].join()\nthreads[1].join()\nthreads[0].join()")
    assert text_of(outcome, 2).count("ZeroDivisionError: division by zero\n") == 4
    assert text_of(outcome, 2).count(", in raises\n") == 4


def test_output_of_a_task_belongs_to_the_cell_that_created_it(kernel: Process) -> None:
    first = kernel.begin("async def late():\n    await asyncio.sleep(0.05)\n    print('late')\ntask = asyncio.create_task(late())")
    kernel.until(first)
    outcome = kernel.until(kernel.begin("await task\nprint('mine')"))
    cells = {message["data"]: message["cell"] for message in outcome if message["event"] == "output"}
    assert cells[b"late\n"] == first
    assert cells[b"mine\n"] != first


def test_output_of_pool_work_belongs_to_the_cell_that_submitted_it(kernel: Process) -> None:
    kernel.run("from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(print, 'a').result()")
    outcome = kernel.until(kernel.begin("pool.submit(print, 'b').result()\nawait asyncio.to_thread(print, 'c')"))
    assert {message["cell"] for message in outcome} == {outcome[0]["cell"]}
    kernel.run("pool.shutdown()")


def test_output_of_a_thread_is_sent_after_the_end_of_its_cell(kernel: Process) -> None:
    cell = kernel.begin("threading.Timer(0.05, print, ('by itself',)).start()")
    kernel.until(cell)
    message = kernel.receive()
    assert (message["event"], message["cell"], message["data"]) == ("output", cell, b"by itself\n")


def test_exception_in_a_thread_is_written_to_the_stderr_of_its_cell(kernel: Process) -> None:
    outcome = kernel.run("thread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()")
    assert "ZeroDivisionError" in text_of(outcome, 2)
    assert "sandlot" not in text_of(outcome, 2)


@pytest.mark.parametrize(
    "code,text",
    [
        ("print('\\0 \\ud800 \\udcff ä')", "\0 \\ud800 \\udcff ä\n"),
        ("sys.stdout.buffer.write(bytearray(b'raw')); None", "raw"),
        ("sys.stdout.writelines(['a', 'b'])", "ab"),
        ("print('f', flush=True)", "f\n"),
        ("print('o', file=sys.__stdout__)", "o\n"),
        ("class S(str): pass\nprint(S('sub'), end=S('.'))", "sub."),
        ("sys.stdout.reconfigure(line_buffering=True); print('r')", "r\n"),
        ("import logging; logging.warning('logged')", "WARNING:root:logged\n"),
        ("import warnings; warnings.simplefilter('always'); warnings.warn('care')", None),
        ("import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as kept: print('kept')\nprint(len(kept.getvalue()))", "5\n"),
    ],
)
def test_streams_have_the_attributes_that_programs_expect(kernel: Process, code: str, text: str | None) -> None:
    outcome = kernel.run(code)
    assert errors_of(outcome) == []
    assert text_of(outcome) == text if text is not None else "UserWarning: care" in text_of(outcome, 2)


def test_streams_behave_like_text_streams(kernel: Process) -> None:
    seen = (
        "sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty(), sys.stdout.encoding"
        ", sys.stdout.writable(), sys.stdout.readable(), sys.stdout.name"
    )
    assert kernel.value(seen) == "(1, 2, False, 'utf-8', True, False, '<stdout>')"
    assert kernel.value("import io; isinstance(sys.stdout, io.TextIOBase), isinstance(sys.stdout.buffer, io.BufferedIOBase)") == "(True, True)"
    assert errors_of(kernel.run("sys.stdout.write(b'bytes')")) == ["TypeError"]
    kernel.run("import faulthandler; faulthandler.enable(); faulthandler.disable()")


@pytest.mark.parametrize(
    "code",
    [
        "sys.stdout.close()",
        "sys.stdout = None",
        "sys.stdout = sys.stderr = None",
        "sys.stdout.buffer.close()",
        "del sys.stdout",
        "os.close(1); os.close(2)",
    ],
)
def test_removed_stream_is_restored_for_the_next_cell(kernel: Process, code: str) -> None:
    kernel.run(code)
    assert kernel.text("print('back'); print('too', file=sys.stderr)") == "back\ntoo\n"


def test_output_of_children_comes_after_earlier_output(kernel: Process) -> None:
    """The test reads the pipes at once, so messages that have arrived by then were written earlier."""
    kernel.run("marks = []\nfor n in range(3):\n    print('before', n)\n    subprocess.run(['true'])")
    outcome = kernel.run(
        "print('first', end='')\nsubprocess.run(['true'])\nprint('second', end='')\nos.system('true')\n"
        "print('third', end='')\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)\nprint('fourth');"
    )
    pieces = [message["data"] for message in outcome if message["event"] == "output"]
    assert pieces[:3] == [b"first", b"second", b"third"]
    assert b"".join(pieces[3:]) == b"fourth\n", "print writes the text and the newline apart"


def test_all_output_is_sent_before_the_process_ends(tmp_path: Path) -> None:
    other = Process(tmp_path)
    cell = other.begin("print('last words', end='')\nimport os\nos._exit(0)")
    assert other.until(cell, "output")[-1]["data"] == b"last words"
    other.close()


def test_cell_whose_output_is_not_read_can_be_interrupted(kernel: Process) -> None:
    cell = kernel.begin("for n in range(10**9): print('x' * 1000)")
    time.sleep(0.5)  # the socket is full by now
    os.kill(kernel.pid, signal.SIGINT)
    outcome = kernel.until(cell)
    assert errors_of(outcome) == ["KeyboardInterrupt"]
    assert len(outcome) < 1000


@pytest.fixture(scope="module")
def unflushed(tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    """A kernel for which the test requests flushes."""
    running = Process(tmp_path_factory.mktemp("kernel"), flush_after_s=0)
    running.run("import os, time")
    yield running
    running.close()


LONG = "while not os.path.exists('go'): time.sleep(0.01)\nos.remove('go')"


@pytest.mark.parametrize("code,events", [("pass", ["started", "done"]), ("print('half', end='')", ["started", "output", "done"])])
def test_short_cell_is_reported_in_one_write(unflushed: Process, code: str, events: list[str]) -> None:
    cell = unflushed.begin(code)
    unflushed.ours.recv(1, socket.MSG_PEEK)
    first = unflushed.ours.recv(1 << 16, socket.MSG_PEEK)
    assert [message["event"] for message in unflushed.until(cell)] == events
    unflushed.ours.setblocking(False)
    with pytest.raises(BlockingIOError):
        unflushed.ours.recv(1)
    unflushed.ours.settimeout(60)
    assert first.count(b"event") >= len(events) - 1, "nothing was outcome before there was a line, or the end"


def test_delayed_output_is_sent_when_the_guest_requests_a_flush(unflushed: Process) -> None:
    cell = unflushed.begin(f"print('half', end='')\n{LONG}")
    unflushed.request_flush()
    assert [message["event"] for message in unflushed.until(cell, "output")] == ["started", "output"]
    Path(f"/proc/{unflushed.pid}/cwd/go").touch()
    assert unflushed.until(cell)[-1]["ok"]


def test_start_of_a_cell_is_sent_when_the_guest_requests_a_flush(unflushed: Process) -> None:
    cell = unflushed.begin(LONG)
    unflushed.request_flush()
    assert [message["event"] for message in unflushed.until(cell, "started")] == ["started"]
    Path(f"/proc/{unflushed.pid}/cwd/go").touch()
    assert unflushed.until(cell)[-1]["ok"]


NO_PIPES = """
for fd in os.listdir("/proc/self/fd"):
    if int(fd) > 700 and os.path.exists("/proc/self/fd/" + fd) and os.readlink("/proc/self/fd/" + fd).startswith("pipe"):
        os.close(int(fd))
"""
"""Closes the flush pipe and all other pipes of the kernel."""


def test_delayed_output_is_sent_even_if_the_flush_pipe_is_closed(tmp_path: Path) -> None:
    kernel = Process(tmp_path, flush_after_s=0)
    kernel.run(f"import os, time\n{NO_PIPES}")
    kernel.request_flush()
    for _ in range(2):
        cell = kernel.begin(f"print('half', end='')\n{LONG}")
        assert kernel.until(cell, "output")[-1]["data"] == b"half"
        Path(f"/proc/{kernel.pid}/cwd/go").touch()
        assert kernel.until(cell)[-1]["ok"]
    kernel.close()
