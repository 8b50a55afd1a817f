"""Promise: output without end stops whoever writes it, or is left out and counted; it is kept nowhere and delays nobody.

Held against commands, cells and background processes that nobody reads, in lines and without any.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.bombs import check_serves
from tests.support.localservice import LocalService
from tests.support.traces import memory_bytes, settle

MIB = 1 << 20
LIMITS = {"memory": "384M", "disk": "16M", "pids": 64}
KEPT = 2 * MIB
"""The first and the last MiB of each stream."""
FLAT_BYTES = 64 * MIB

FLOODS = {
    "nothing but zeros": "cat /dev/zero",
    "bytes that are no text": "cat /dev/urandom",
    "both streams": "yes & yes >&2",
}

CELLS = (
    "import sys\nwhile True:\n    print('x' * 1000)\n    sys.stderr.write('x' * 100000)",
    "import os\nwhile True: os.write(1, bytes(65536))",
    "import subprocess\nsubprocess.run(['yes'])",
)
FLOOD_S = 2.0
"""Long enough for a flood to exceed ``KEPT`` also while other tests take the processors."""


@pytest.fixture(autouse=True)
def _flat(service: LocalService) -> Iterator[None]:
    before = memory_bytes(service.pid)
    yield
    assert memory_bytes(service.pid) - before < FLAT_BYTES


def test_endless_output_of_a_command_is_cut_and_counted(bombed: Sandbox) -> None:
    for name, flood in FLOODS.items():
        done = bombed.commands.run(flood, timeout=FLOOD_S)
        assert done.reason == "timeout", name
        kept = len(done.stdout.encode()) + len(done.stderr.encode())
        assert 0 < kept <= 3 * 2 * KEPT, name  # a byte that is no text becomes a character of three
        assert done.stdout_omitted_bytes + done.stderr_omitted_bytes > 0, name
    check_serves(bombed)


def test_endless_output_of_a_cell_is_cut_and_counted(bombed: Sandbox) -> None:
    for code in CELLS:
        done = bombed.run_code(code, timeout=FLOOD_S)
        assert done.status in {"timeout", "killed"}, code
        assert len(done.stdout) <= 3 * KEPT, code
        assert len(done.stderr) <= 3 * KEPT, code
        assert done.stdout_omitted_bytes + done.stderr_omitted_bytes > 0, code
    check_serves(bombed)


def test_cell_with_much_output_finishes(bombed: Sandbox) -> None:
    done = bombed.run_code("for _ in range(5): print('x' * 999_999)\n'done'", timeout=120)
    assert (done.status, done.text) == ("ok", "'done'")
    assert len(done.stdout) + done.stdout_omitted_bytes - 5_000_000 in range(100), "and the line that says so"


def test_unread_background_processes_keep_little_output(bombed: Sandbox) -> None:
    handles = [bombed.commands.run(flood, background=True) for flood in ("yes", "cat /dev/zero", "yes >&2")]
    settle(lambda: sum(process.stdout_bytes + process.stderr_bytes > KEPT for process in bombed.commands.list() if process.running), len(handles))
    check_serves(bombed)
    for handle in handles:
        handle.kill()
        done = handle.wait()
        assert len(done.stdout) + len(done.stderr) <= KEPT
        assert done.signal == 9


def test_slow_client_stops_only_its_command(service: LocalService, bombed: Sandbox) -> None:
    """It is told all that it did not take, as soon as it reads; until then the command stands still (back-pressure)."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(120)
        client.connect(str(service.data_dir / "sandlot.sock"))
        body = json.dumps({"command": "yes", "timeout": None}).encode()
        head = f"POST /v1/sandboxes/{bombed.id}/processes HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        check_serves(bombed)
        assert any(process.running for process in bombed.commands.list()), "it waits for its reader"
    settle(lambda: any(process.running for process in bombed.commands.list()), expected=False)  # whoever goes away takes the command along


def test_results_that_are_too_large_are_cut(bombed: Sandbox) -> None:
    cells = {
        "'x' * 10_000_000": "ok",  # a result has 8 MiB at most
        "[list(range(1000))] * 2500": "ok",
        "for n in range(1100): display('x')": "ok",  # and there are 1000 of them
        "raise ValueError('x' * 10_000_000)": "error",
        "class Endless:\n    def __repr__(self):\n        while True: pass\nEndless()": "timeout",
    }
    for code, status in cells.items():
        done = bombed.run_code(code, timeout=20 if status != "timeout" else 1)
        assert done.status == status, code
        size = sum(len(content) for result in done.results for content in result.data.values())
        size += len(done.error.value) + len("".join(done.error.traceback)) if done.error else 0
        assert size <= 33 * MIB, code
        assert len(done.results) <= 1000
    check_serves(bombed)


def test_endless_evaluation_ends_at_its_timeout(bombed: Sandbox) -> None:
    """A regular expression that backtracks, a number of a hundred million digits, and brackets a hundred thousand levels deep."""
    cells = {
        "import re; re.match('(a+)+$', 'a' * 60 + 'b')": {"timeout", "killed"},
        "10 ** (10 ** 8)": {"timeout", "killed", "error"},
        "eval('(' * 100_000 + ')' * 100_000)": {"error", "died"},
    }
    for code, statuses in cells.items():
        done = bombed.run_code(code, timeout=1)
        assert done.status in statuses, (code, done.status)
    check_serves(bombed)
