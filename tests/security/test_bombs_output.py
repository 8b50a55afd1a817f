"""Promise: output without end stops whoever writes it, or is left out and counted; it is kept nowhere and delays nobody.

Held against commands, cells and background processes that nobody reads, in lines and without any.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.bombs import Targets, check_serves
from tests.support.localservice import LocalService
from tests.support.traces import memory_bytes

MIB = 1 << 20
KEPT = 2 * MIB
"""The first and the last MiB of each stream."""
FLAT_BYTES = 64 * MIB

FLOODS = {
    "lines": "yes",
    "one line": "tr '\\0' x </dev/zero",
    "nothing but zeros": "cat /dev/zero",
    "bytes that are no text": "cat /dev/urandom",
    "broken characters": "while :; do printf '\\360\\237'; done",
    "both streams": "yes & yes >&2",
    "errors": "yes >&2",
    "many writers": "for i in 1 2 3 4 5 6 7 8; do yes $i & done; wait",
}

CELLS = (
    "while True: print('x' * 1000)",
    "import sys\nwhile True: sys.stderr.write('x' * 100000)",
    "import os\nwhile True: os.write(1, bytes(65536))",
    "import subprocess\nsubprocess.run(['yes'])",
)
FLOOD_S = 0.7


@pytest.fixture(scope="module")
def targets(service: LocalService) -> Iterator[Targets]:
    made = Targets(service, memory="384M", disk="64M", pids=64)
    yield made
    made.close()


@pytest.fixture
def sandbox(targets: Targets) -> Sandbox:
    return targets.get()


@pytest.fixture(autouse=True)
def _flat(service: LocalService) -> Iterator[None]:
    before = memory_bytes(service.pid)
    yield
    assert memory_bytes(service.pid) - before < FLAT_BYTES


def test_a_command_that_writes_without_end(sandbox: Sandbox) -> None:
    for name, flood in FLOODS.items():
        done = sandbox.commands.run(flood, timeout=FLOOD_S)
        assert done.reason == "timeout", name
        kept = len(done.stdout.encode()) + len(done.stderr.encode())
        assert 0 < kept <= 3 * 2 * KEPT, name  # a byte that is no text becomes a character of three
        if name != "broken characters":  # too slow to be too much
            assert done.stdout_omitted + done.stderr_omitted > 0, name
        check_serves(sandbox)


def test_a_cell_that_writes_without_end(sandbox: Sandbox) -> None:
    for code in CELLS:
        done = sandbox.run_code(code, timeout=FLOOD_S)
        assert done.status in {"timeout", "killed"}, code
        assert len(done.stdout) <= 3 * KEPT, code
        assert len(done.stderr) <= 3 * KEPT, code
        assert done.stdout_omitted + done.stderr_omitted > 0, code
        check_serves(sandbox)


def test_a_cell_that_writes_much_comes_to_its_end(sandbox: Sandbox) -> None:
    done = sandbox.run_code("for _ in range(20): print('x' * 999_999)\n'done'", timeout=120)
    assert (done.status, done.text) == ("ok", "'done'")
    assert len(done.stdout) + done.stdout_omitted - 20_000_000 in range(100), "and the line that says so"


def test_background_processes_that_nobody_reads_keep_a_little_each(sandbox: Sandbox) -> None:
    handles = [sandbox.commands.run(flood, background=True) for flood in ("yes", "cat /dev/zero", "yes >&2")]
    time.sleep(1)
    check_serves(sandbox)
    for handle in handles:
        handle.kill()
        done = handle.wait()
        assert len(done.stdout) + len(done.stderr) <= KEPT
        assert done.signal == 9


def test_a_client_that_does_not_read_stops_its_command_only(service: LocalService, sandbox: Sandbox) -> None:
    """It is told all that it did not take, as soon as it reads; until then the command stands still (back-pressure)."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(120)
        client.connect(str(service.data_dir / "sandlot.sock"))
        body = json.dumps({"command": "yes", "timeout": None}).encode()
        head = f"POST /v1/sandboxes/{sandbox.id}/processes HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        check_serves(sandbox)
        written = [sum(process.running for process in sandbox.commands.list()) for _ in range(3)]
        assert min(written) >= 1, "it waits for its reader"
        check_serves(sandbox)
    deadline = time.monotonic() + 60
    while any(process.running for process in sandbox.commands.list()):
        assert time.monotonic() < deadline, "whoever goes away takes the command along"
        time.sleep(0.1)


def test_results_that_are_too_large(sandbox: Sandbox) -> None:
    cells = {
        "'x' * 10_000_000": "ok",  # a result has 8 MiB at most
        "[list(range(1000))] * 2500": "ok",
        "{n: str(n) * 100 for n in range(20_000)}": "ok",
        "for n in range(5000): display('x' * 1000)": "ok",
        "for n in range(40): display('x' * 1_000_000)": "ok",
        "raise ValueError('x' * 10_000_000)": "error",
        "def deeper(n): return deeper(n + 1)\ndeeper(0)": "error",
        "class Nasty:\n    def __repr__(self): raise SystemExit\nNasty()": "error",
        "class Endless:\n    def __repr__(self):\n        while True: pass\nEndless()": "timeout",
    }
    for code, status in cells.items():
        done = sandbox.run_code(code, timeout=20 if status != "timeout" else 1)
        assert done.status == status, code
        size = sum(len(content) for result in done.results for content in result.data.values())
        size += len(done.error.value) + len("".join(done.error.traceback)) if done.error else 0
        assert size <= 33 * MIB, code
        assert len(done.results) <= 1000
    check_serves(sandbox)


def test_a_result_that_the_interpreter_never_comes_to(sandbox: Sandbox) -> None:
    """A regular expression that backtracks, JSON a hundred thousand levels deep, a number of ten million digits."""
    cells = {
        "import re; re.match('(a+)+$', 'a' * 60 + 'b')": {"timeout", "killed"},
        "import json; json.loads('[' * 100_000)": {"error"},
        "10 ** (10 ** 8)": {"timeout", "killed", "error"},
        "sum(1 for _ in iter(int, 1))": {"timeout", "killed"},
        "eval('(' * 100_000 + ')' * 100_000)": {"error", "died"},
    }
    for code, statuses in cells.items():
        done = sandbox.run_code(code, timeout=1)
        assert done.status in statuses, (code, done.status)
        check_serves(sandbox)
