"""Terminals by E2B's own client: opened, typed on, resized, left and gone back to, killed."""

from __future__ import annotations

import pytest
from e2b import InvalidArgumentException, NotFoundException, Sandbox
from e2b.sandbox.commands.command_handle import PtySize
from e2b.sandbox_sync.commands.command_handle import CommandHandle

from tests.support.traces import settle


def until(terminal: CommandHandle, wanted: bytes) -> bytes:
    """What a terminal shows, until that is shown."""
    shown = b""
    for _, _, piece in terminal:
        shown += piece or b""
        if wanted in shown:
            return shown
    raise AssertionError(shown)


def test_terminal_takes_input_and_is_resized(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100), envs={"A": "b"}, timeout=60)
    assert any(each.pid == terminal.pid and each.args == ["-i", "-l"] for each in sandbox.commands.list())
    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $A-$TERM; pwd\n")
    shown = until(terminal, b"/home/user\r\n")
    assert b"30 100\r\n" in shown
    assert b"b-xterm-256color" in shown
    sandbox.pty.resize(terminal.pid, PtySize(rows=11, cols=22))
    sandbox.pty.stream_input(terminal.pid, [b"stty ", "size\n"])
    assert until(terminal, b"11 22\r\n")
    sandbox.pty.send_stdin(terminal.pid, b"exit 0\n")
    assert terminal.wait().exit_code == 0
    assert sandbox.pty.kill(terminal.pid) is False


def test_terminal_survives_a_disconnect(sandbox: Sandbox) -> None:
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), cwd="/tmp", user="root", timeout=60)
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    sandbox.pty.send_stdin(terminal.pid, b"id -un; pwd\n")
    assert b"root\r\n/tmp" in until(again, b"/tmp\r\n")
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.send_stdin(terminal.pid, "x")
    assert sandbox.pty.kill(terminal.pid) is True

    def is_there() -> bool:
        try:
            sandbox.pty.resize(terminal.pid, PtySize(rows=1, cols=1))
        except NotFoundException:
            return False
        return True

    settle(is_there, expected=False)
