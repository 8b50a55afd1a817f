"""Output of terminals, which ends with the process."""

from __future__ import annotations

import os

import pytest

from sandlot.guest.loop import Loop
from sandlot.guest.output import OutputLog
from sandlot.guest.process import pty
from sandlot.guest.process.pty import TerminalOutput
from sandlot.protocol.schema import STDOUT


def test_terminal_that_no_process_holds_open_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pty, "READ_AGAIN_S", 0.001)
    loop, outputs = Loop(), OutputLog((STDOUT,))
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    output = TerminalOutput(loop, ours, STDOUT, outputs, lambda: None)
    os.close(theirs)
    loop.turn()  # a read fails with EIO
    assert output.is_open

    again = os.open(name, os.O_WRONLY | os.O_NOCTTY)
    os.write(again, b"again")
    while not outputs.buffers[STDOUT].end:
        loop.turn()
    os.close(again)
    output.settle()

    assert outputs.buffers[STDOUT].read(0, 100) == b"again"
    assert not output.is_open, "its process has ended"
