"""The plain kernel, run for real on this machine's python."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from sandlot.guest.kernels.kernel import HEAD
from sandlot.link import payload
from sandlot.protocol import values


class Running:
    def __init__(self, folder: Path) -> None:
        for name, text in payload.programs().items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(text)
        self.ours, theirs = socket.socketpair()
        self.ours.settimeout(60)
        with theirs:
            argv = [sys.executable, "-W", "error", str(folder / "kernel.py"), str(theirs.fileno())]
            self.process = subprocess.Popen(argv, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder)
        assert self.receive() == {"event": "ready"}

    def send(self, message: dict[str, Any]) -> None:
        raw = values.encode(message)
        self.ours.sendall(HEAD.pack(len(raw)) + raw)

    def receive(self) -> dict[str, Any]:
        (size,) = HEAD.unpack(self._exactly(HEAD.size))
        message: dict[str, Any] = values.decode(self._exactly(size))
        return message

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.ours.recv(size - len(data))
            assert part, "the kernel is gone"
            data += part
        return data

    def run(self, code: str, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
        self.send({"op": "execute", "cell": "c", "code": code, "env": env or {}})
        return self.until_done()

    def until_done(self) -> list[dict[str, Any]]:
        messages = []
        while True:
            messages.append(self.receive())
            if messages[-1]["event"] == "done":
                return messages

    def stop(self) -> bytes:
        self.ours.close()
        assert self.process.stdout is not None
        text = self.process.stdout.read()
        self.process.stdout.close()
        assert self.process.wait(60) == 0, text
        return text


@pytest.fixture
def kernel(tmp_path: Path) -> Generator[Running]:
    running = Running(tmp_path)
    yield running
    running.ours.close()
    running.process.kill()
    running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()


def plain(messages: list[dict[str, Any]]) -> list[str]:
    return [message["data"]["text/plain"] for message in messages if message["event"] == "display"]


def test_variables_imports_and_functions_stay(kernel: Running) -> None:
    assert kernel.run("import math\nx = 20\ndef f(y):\n    return x + y")[-1] == {"event": "done", "ok": True, "count": 1}
    assert plain(kernel.run("f(1) + math.floor(1.5)")) == ["22"]
    assert plain(kernel.run("_ * 2")) == ["44"]


def test_an_exception_is_told_with_its_line_and_leaves_everything_as_it_was(kernel: Running) -> None:
    kernel.run("x = 1")
    error, done = kernel.run("x = 2\n1 / 0\nx = 3")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(error["traceback"])
    assert 'File "<cell 2>", line 2' in text
    assert "1 / 0" in text
    assert "kernel.py" not in text, "no frame of ours"
    assert not done["ok"]
    assert plain(kernel.run("x")) == ["2"]


@pytest.mark.parametrize(
    "code,name",
    [
        ("raise SystemExit(3)", "SystemExit"),
        ("def", "SyntaxError"),
        ("raise type('Odd', (Exception,), {'__str__': lambda s: 1/0})()", "Odd"),
        ("import sys; sys.stdout.close(); print(1)", "ValueError"),
        ("'\\ud800'.encode()", "UnicodeEncodeError"),
        ("x = '\0'", None),
    ],
)
def test_whatever_a_cell_does_the_next_one_works(kernel: Running, code: str, name: str | None) -> None:
    messages = kernel.run(code)
    if name is not None:
        assert messages[0]["name"] == name
    assert plain(kernel.run("1 + 1")) == ["2"]


def test_what_a_cell_prints_comes_on_the_ordinary_streams(kernel: Running) -> None:
    kernel.run("import os, subprocess\nprint('python', flush=False)")
    kernel.run("os.write(1, b'raw\\n'); subprocess.run(['echo', 'child'])")
    assert kernel.stop() == b"python\nraw\nchild\n"


def test_rich_representations_travel_as_bytes(kernel: Running) -> None:
    methods = ["_repr_png_(self): return b'\\x89PNG\\xff'", "_repr_html_(self): raise ValueError", "__repr__(self): return 'p'"]
    code = "class P:\n" + "".join(f"    def {method}\n" for method in methods) + "P()"
    display = kernel.run(code)[0]
    assert display == {"event": "display", "data": {"text/plain": "p", "image/png": b"\x89PNG\xff"}, "main": True}
    assert [message["main"] for message in kernel.run("display(1, 2)")[:-1]] == [False, False]
    assert plain(kernel.run("5;")) == []


def test_an_interrupt_ends_the_cell_and_nothing_else(kernel: Running) -> None:
    kernel.run("kept = 'yes'")
    kernel.process.send_signal(signal.SIGINT)  # between cells it is ignored
    kernel.send({"op": "execute", "code": "display('started')\nimport time\ntime.sleep(300)", "env": {}})
    assert kernel.receive()["event"] == "display"
    time.sleep(0.2)  # it sleeps by now, or the interrupt comes a moment earlier and does the same
    kernel.process.send_signal(signal.SIGINT)
    error = kernel.receive()
    assert error["name"] == "KeyboardInterrupt"
    assert not kernel.receive()["ok"]
    assert plain(kernel.run("kept")) == ["'yes'"]


def test_cells_define_things_in_main_so_that_pickle_finds_them(kernel: Running) -> None:
    kernel.run("class C:\n    def __eq__(self, other): return True\nimport pickle")
    assert plain(kernel.run("pickle.loads(pickle.dumps(C())) == C(), C.__module__")) == ["(True, '__main__')"]


def test_entropy_parts_the_ways_of_clones(kernel: Running) -> None:
    kernel.send({"op": "wake", "entropy": b"a" * 64, "env": {}})
    first = plain(kernel.run("import random; random.random()"))
    kernel.send({"op": "wake", "entropy": b"b" * 64, "env": {}})
    second = plain(kernel.run("random.random()"))
    kernel.send({"op": "wake", "entropy": b"a" * 64, "env": {}})
    assert first == plain(kernel.run("random.random()")) != second


def test_the_environment_of_a_cell_arrives(kernel: Running) -> None:
    assert plain(kernel.run("import os; os.environ['SANDLOT_TEST']", {"SANDLOT_TEST": "ä"})) == ["'ä'"]


def test_the_kernel_ends_when_the_guest_is_gone(kernel: Running) -> None:
    assert kernel.stop() == b""


def test_the_program_is_shipped_as_it_stands_here() -> None:
    source = (resources.files("sandlot") / "guest" / "programs" / "kernel.py").read_bytes()
    assert payload.programs()["kernel.py"] == source
