"""The Python kernel: behaviour of both shells, and the fork server."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from sandlot.protocol import values
from sandlot.protocol.connection import MESSAGE_MAX_BYTES
from tests.support.kernels import Kernel, Peer, Process, errors_of, ship


@pytest.fixture(scope="module", params=["ipython", "plain"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Process]:
    running = Process(tmp_path_factory.mktemp("kernel"), *(["--plain"] if request.param == "plain" else []))
    yield running
    running.close()


def test_exception_is_reported_with_its_line_and_the_kernel_continues(kernel: Process) -> None:
    kernel.run("x = 1")
    (error,) = kernel.run("x = 2\n1 / 0\nx = 3")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    text = "\n".join(error["traceback"])
    assert ", line 2" in text
    assert "1 / 0" in text
    assert "sandlot_kernel" not in text, "no frame of ours"
    assert "IPython" not in text
    assert "\x1b" not in text, "no colours"
    assert kernel.value("x") == "2"


@pytest.mark.parametrize(
    "code,name",
    [
        ("raise SystemExit(3)", "SystemExit"),
        ("import sys; sys.exit()", "SystemExit"),
        ("exit()", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def", "SyntaxError"),
        ("return 5", "SyntaxError"),
        ("if 1:\n1", "IndentationError"),
        ("raise type('Odd', (Exception,), {'__str__': lambda s: 1/0})()", "Odd"),
        ("def deep(n): return deep(n + 1)\ndeep(0)", "RecursionError"),
        ("'\\ud800'.encode()", "UnicodeEncodeError"),
        ("input('Name? ')", "StdinNotImplementedError"),
        ("import getpass; getpass.getpass()", "StdinNotImplementedError"),
        ("breakpoint()", "StdinNotImplementedError"),
        ("import pdb; pdb.set_trace(); 1", "BdbQuit"),
    ],
)
def test_cell_works_after_a_cell_that_damaged_the_process(kernel: Process, code: str, name: str) -> None:
    assert errors_of(kernel.run(code)) == [name]
    assert kernel.value("1 + 1") == "2"


def test_input_fails_with_a_hint(kernel: Process) -> None:
    (error,) = kernel.run("input('Your name? ')")
    assert "input() cannot be used" in error["value"]
    assert "Your name?" in error["value"]
    assert kernel.value("try:\n    input()\nexcept EOFError:\n    got = 'the end of input'\ngot") == "'the end of input'"


def test_definitions_of_cells_can_be_pickled(kernel: Process) -> None:
    kernel.run("class C:\n    def __eq__(self, other): return True\n    __hash__ = None\nimport pickle")
    assert kernel.value("pickle.loads(pickle.dumps(C())) == C(), C.__module__") == "(True, '__main__')"


@pytest.mark.parametrize("flags", [[], ["--plain"]], ids=["ipython", "plain"])
def test_wake_sets_the_environment_and_before_the_first_cell_the_directory(tmp_path: Path, flags: list[str]) -> None:
    kernel = Process(tmp_path, *flags)
    try:
        (tmp_path / "given").mkdir()
        (tmp_path / "chosen").mkdir()
        for given in (str(tmp_path / "given"), "/nonexistent"):
            kernel.send({"op": "wake", "entropy": b"a" * 64, "env": {"WOKEN": "1"}, "cwd": given})
        here = str(tmp_path / "given")
        assert kernel.text("import os; print(os.environ['WOKEN'], os.environ['PWD'], os.getcwd())").endswith(f"1 {here} {here}\n")
        kernel.run("os.chdir('../chosen')")
        kernel.send({"op": "wake", "entropy": b"b" * 64, "env": {"WOKEN": "2"}, "cwd": here})
        assert kernel.text("print(os.environ['WOKEN'], os.getcwd())") == f"2 {tmp_path / 'chosen'}\n", "a second life goes on where the cell was"
    finally:
        kernel.close()


@pytest.mark.parametrize(
    "code,events",
    [
        ("display('x', metadata={'a': [[[1] * 64] * 64] * 64})", ["display"]),
        ("display('x', metadata={str(n): {'t': ['m' * 8000] * 64} for n in range(61)})", ["display"]),
        ("display('x', display_id='i' * 9_000_000)", ["display"]),
        ("raise type('E' * 9_000_000, (Exception,), {})()", ["error"]),
    ],
)
def test_no_message_exceeds_the_limits_of_the_guest(kernel: Process, code: str, events: list[str]) -> None:
    outcome = kernel.run(f"{code};")
    assert [message["event"] for message in outcome] == events
    assert all(len(values.encode(message)) <= MESSAGE_MAX_BYTES for message in outcome)


@pytest.mark.parametrize("shell", ["ipython", "plain"])
def test_kernel_ends_with_the_guest_even_if_threads_run(tmp_path: Path, shell: str) -> None:
    kernel = Process(tmp_path, *(["--plain"] if shell == "plain" else []))
    kernel.run("import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()")
    assert kernel.stop() == b""


def test_byte_code_beside_the_modules_of_the_kernel_is_ignored(tmp_path: Path) -> None:
    program = ship(tmp_path / "programs")
    planted = tmp_path / "planted.py"
    planted.write_text("raise RuntimeError('from byte code')\n")
    for module in (program.parent / "sandlot_kernel").glob("*.py"):
        py_compile.compile(
            str(planted), cfile=importlib.util.cache_from_source(str(module)), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
    kernel = Process(tmp_path, program=program)
    assert kernel.value("1 + 1") == "2"
    assert kernel.stop() == b""


class ForkServer(Peer):
    def __init__(self, folder: Path, *flags: str, env: dict[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-W", "error", str(ship(folder / "programs")), "--fork-server", str(theirs.fileno()), *flags]
            self.process = subprocess.Popen(
                argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=folder, env={**os.environ, **(env or {})}, start_new_session=True
            )
        super().__init__(ours)
        self.kernels: list[Kernel] = []
        self.flush_fds: list[int] = []
        assert self.receive() == {"event": "ready", "warm": False}
        assert self.receive() == {"event": "warm"}

    def fork(self) -> tuple[Kernel, int]:
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        flush_fd, flush_write = os.pipe()
        self.send({"op": "fork"}, [theirs.fileno(), out_write, out_write, flush_fd])
        outcome = self.receive()
        theirs.close()
        os.close(out_write)
        os.close(flush_fd)
        self.flush_fds.append(flush_write)
        assert outcome["event"] == "forked"
        self.kernels.append(Kernel(ours, outcome["pid"]))
        return self.kernels[-1], out_read

    def fresh(self) -> bool:
        self.send({"op": "check"})
        return bool(self.receive()["fresh"])

    def close(self) -> None:
        self.ours.close()
        self.process.wait(60)
        for kernel in self.kernels:
            kernel.ours.close()
        for flush_fd in self.flush_fds:
            os.close(flush_fd)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of installed packages with one package that the fork server imports."""
    folder = tmp_path / "site-packages"
    (folder / "warmed").mkdir(parents=True)
    (folder / "warmed" / "__init__.py").write_text("import random\ndrawn = random.random()\n")
    return folder


@pytest.fixture
def server(tmp_path: Path, packages: Path) -> Generator[ForkServer]:
    made = ForkServer(tmp_path, "--warm", "warmed,there_is_none_of_this_name", env={"PYTHONPATH": str(packages)})
    yield made
    made.close()


def test_forked_kernel_has_its_own_session_and_descriptors(server: ForkServer) -> None:
    kernel, out = server.fork()
    assert kernel.until(kernel.begin("In, Out, _"))[:2] == [
        {"event": "started", "cell": "c1", "count": 1},
        {"event": "display", "cell": "c1", "data": {"text/plain": "(['', 'In, Out, _'], {}, '')"}, "main": True},
    ], "nothing of the rehearsal is left"
    assert kernel.value("import os; os.getpid() == os.getsid(0) == os.getpgid(0)") == "True"
    assert kernel.value(f"os.getppid() != {server.process.pid}") == "True", "it is init's"
    kernel.run("os.write(1, b'raw'); os.write(2, b' and err'); !echo ' child'")
    kernel.run("import os; os.write(1, b'raw'); os.write(2, b' and err')\n!echo ' child'")
    assert kernel.value("'warmed' in __import__('sys').modules") == "True"
    kernel.ours.close()
    with open(out, "rb") as pipe:  # noqa: PTH123 - a descriptor
        assert pipe.read() == b"raw and err child\n"


def test_forked_kernels_share_no_variables(server: ForkServer) -> None:
    (first, out), (second, other) = server.fork(), server.fork()
    first.run("x = 1\nimport os; os.environ['MINE'] = '1'\nimport random")
    assert errors_of(second.run("x")) == ["NameError"]
    assert second.value("'MINE' in __import__('os').environ") == "False"
    assert first.value("random.random()") != second.value("import random; random.random()"), "their own randomness"
    assert first.value("import warmed; warmed.drawn") == second.value("import warmed; warmed.drawn")
    assert errors_of(first.interrupt("while True: pass")) == ["KeyboardInterrupt"]
    assert second.value("2") == "2"
    os.close(out)
    os.close(other)


def test_fork_server_is_fresh_until_an_imported_package_changes(server: ForkServer, packages: Path) -> None:
    assert server.fresh()
    (packages / "another.py").write_text("")
    assert server.fresh(), "another package was installed"
    (packages / "warmed" / "__init__.py").write_text("drawn = 2\n")
    (packages / "one_more.py").write_text("")
    assert not server.fresh()


def test_fork_server_is_not_fresh_if_a_package_was_repaired_during_its_imports(tmp_path: Path, packages: Path) -> None:
    broken, away = packages / "IPython", packages / "away"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise RuntimeError")
    (packages / "warmed" / "__init__.py").write_text(f"import os\nos.rename({str(broken)!r}, {str(away)!r})\n")
    server = ForkServer(tmp_path, "--warm", "warmed", env={"PYTHONPATH": str(packages)})
    try:
        assert away.is_dir()
        assert not server.fresh()
    finally:
        server.close()
