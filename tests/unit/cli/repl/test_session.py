"""`sandlot repl`, `sandlot context` and cells of `sandlot run`: on a terminal and without one, against a whole service."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from sandlot.cli.main import dispatch
from tests.support.service import Bench
from tests.support.serving import at, folder, http

__all__ = ["at", "folder", "http"]

PATIENCE_S = 60.0
_LEAD = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
"""Its session leads it to its terminal, so that Ctrl-C comes as a signal."""
_CONTROLS = re.compile(rb"\x1b\[[0-9;?=>]*[A-Za-z]|\x1b[=>]|\r")


class Desk:
    """A service with a sandbox, and somebody who uses the command line."""

    def __init__(self, bench: Bench, sandbox: str, cwd: Path) -> None:
        self.sandbox = sandbox
        self.cwd = cwd
        self.env = {
            **os.environ,
            "SANDLOT_URL": f"unix://{bench.service.settings.socket}",
            "XDG_STATE_HOME": str(cwd / "state"),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "COLUMNS": "80",
        }

    async def run(self, *arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
        """Run a command without a terminal: its exit status, output and errors."""
        command = [sys.executable, "-P", "-m", "sandlot.cli", *arguments]
        pipe = asyncio.subprocess.PIPE
        given = asyncio.subprocess.DEVNULL if stdin is None else pipe
        process = await asyncio.create_subprocess_exec(*command, stdin=given, stdout=pipe, stderr=pipe, env=self.env, cwd=self.cwd)
        out, err = await process.communicate(None if stdin is None else stdin.encode())
        return process.returncode or 0, out.decode(), err.decode()


class Terminal:
    """A terminal with a program on it."""

    def __init__(self, ours: int, process: asyncio.subprocess.Process) -> None:
        self.ours = ours
        self.process = process
        self.shown = b""

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    async def until(self, wanted: str) -> str:
        """Read until something is shown; what was, up to and with it, without what moves the cursor and colours."""
        while wanted.encode() not in (shown := _CONTROLS.sub(b"", self.shown)):
            piece = await self._read()
            assert piece, f"it ended without {wanted!r}: {shown!r}"
            self.shown += piece
        start = shown.index(wanted.encode()) + len(wanted.encode())
        self.shown = shown[start:]
        return shown[:start].decode()

    async def ended(self) -> int:
        while await self._read():
            pass
        return await self.process.wait()

    async def _read(self) -> bytes:
        """What is shown next; nothing when nobody has the terminal's other end any more."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                await anyio.wait_readable(self.ours)
            return os.read(self.ours, 65536)
        except TimeoutError:
            raise AssertionError(f"nothing more came: {self.shown!r}") from None
        except OSError:  # EIO
            return b""


@asynccontextmanager
async def on_terminal(desk: Desk, *arguments: str) -> AsyncIterator[Terminal]:
    ours, theirs = os.openpty()
    command = [sys.executable, "-P", "-c", _LEAD, sys.executable, "-P", "-m", "sandlot.cli", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=theirs, stdout=theirs, stderr=theirs, env=desk.env, cwd=desk.cwd, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(ours, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)


@pytest.fixture
async def desk(at: Bench, http: httpx.AsyncClient, tmp_path: Path) -> Desk:
    assert (await http.get("/healthz")).is_success
    return Desk(at, (await at.sandbox()).id, tmp_path)


async def test_session_continues_after_an_interrupt(desk: Desk) -> None:
    async with on_terminal(desk, "repl", desk.sandbox) as terminal:
        await terminal.until("Ctrl-D ends the session")
        for typed, shown in (
            ("x = 6; print('a' + 'b')\r", "ab\n"),
            ("for i in range(2):\rprint('i' + str(i * x))\r\r", "i0\ni6\n"),
            ("x * 70\r", "420\n"),
            ("1 / 0\r", "ZeroDivisionError: division by zero\n"),
            ("print(chr(27) + ']0;title' + chr(7), x)\r", "\\x1b]0;title\\x07 6\n"),
        ):
            await terminal.until(">>>")
            terminal.type(typed)
            await terminal.until(shown)
        await terminal.until(">>>")
        terminal.type("print('be' + 'gun'); import time; time.sleep(600)\r")
        await terminal.until("begun\n")
        terminal.type("\x03")
        await terminal.until("KeyboardInterrupt")
        await terminal.until(">>>")
        terminal.type("print('ne' + 'ver')\x03")
        terminal.type("print('la' + 'st')\r")
        assert "never\n" not in await terminal.until("last\n")
        await terminal.until(">>>")
        terminal.type("\x04")
        assert await terminal.ended() == 0
    assert "x * 70" in (desk.cwd / "state/sandlot/history-python").read_text()
    status, out, _ = await desk.run("run", "--sandbox", desk.sandbox, "-c", "print(x)")
    assert (status, out) == (0, "6\n"), "the session's variables are the sandbox's"


@pytest.mark.real_guest
async def test_all_of_a_pipe_is_one_cell_whose_exit_status_it_is_and_images_are_saved(desk: Desk) -> None:
    code = "print('é')\nfrom base64 import b64decode\nclass P:\n    def _repr_png_(self): return b'\\x89PNG'\ndisplay(P())\nP()"
    status, out, err = await desk.run("repl", desk.sandbox, "--save", "pictures", stdin=code)
    assert (status, out.partition("\n")[0], err) == (0, "é", "")
    assert re.findall(r"pictures/\d+\.png", out) == ["pictures/001.png", "pictures/002.png"]
    assert (desk.cwd / "pictures/002.png").read_bytes() == b"\x89PNG"
    status, out, err = await desk.run("repl", desk.sandbox, stdin="print('a')\n1 / 0")
    assert (status, out) == (1, "a\n")
    assert err.rstrip().endswith("ZeroDivisionError: division by zero")
    status, _, err = await desk.run("repl", desk.sandbox, "--timeout", "0.5", stdin="import time; time.sleep(600)")
    assert status == 124
    assert "after its timeout" in err


@pytest.mark.real_guest
async def test_contexts_from_the_terminal(desk: Desk, tmp_path: Path) -> None:
    status, out, _ = await desk.run("context", "create", desk.sandbox, "--cwd", "/tmp", "--env", "A=b")
    assert status == 0
    made = out.strip()
    script = tmp_path / "it.py"
    script.write_text("import os; print(os.getcwd(), os.environ['A'])")
    assert await desk.run("run", "--sandbox", desk.sandbox, "--context", made, str(script)) == (0, "/tmp b\n", "")
    listed = json.loads((await desk.run("context", "ls", desk.sandbox, "--json"))[1])
    assert {each["id"]: each["execution_count"] for each in listed}[made] == 1
    assert await desk.run("context", "restart", desk.sandbox, made) == (0, f"{made}\n", "")
    status, out, err = await desk.run("context", "rm", desk.sandbox, made, "ctx-0123456789abcdef")
    assert (status, out) == (1, f"{made}\n")
    assert "does not exist" in err


def test_what_makes_no_sense_is_told(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    for arguments in (
        ("run", "--context", "default", "-c", "1"),
        ("run", "--sandbox", "sb", "-c", "1", "argument"),
        ("run", "--sandbox", "sb"),
        ("run", "--sandbox", "sb", "-c", "1", "-t", "base"),
        ("run", "--sandbox", "sb", "/there/is/none.py"),
        ("repl", "sb", "-t", "base"),
    ):
        with subtests.test(arguments=arguments):
            assert dispatch(list(arguments)) == 125
            assert capsys.readouterr().err.startswith("sandlot: ")
