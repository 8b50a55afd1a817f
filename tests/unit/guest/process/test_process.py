"""When the result of a process is sent, and how long its output is kept for a reader."""

from __future__ import annotations

import resource
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandlot.guest.rpc import Call
from sandlot.guest.output import OutputLog
from sandlot.guest.main import Guest
from sandlot.guest.process.process import Process
from sandlot.guest.process.manager import Processes
from sandlot.protocol.schema import STDERR, STDOUT
from tests.support.guest import ManualLoop, RecordingCall, flood

ARGS: dict[str, Any] = {"argv": ["true"], "hidden": None, "rows": None, "cols": None}
ON_TERMINAL: dict[str, Any] = {**ARGS, "rows": 24, "cols": 80}
EXITED = 0
"""Status of a process that ended with 0, as wait(2) tells it."""
USAGE = resource.getrusage(resource.RUSAGE_SELF)


class Pipe:
    """Standard output of a process: the part of an ``OutputPipe`` that a process uses."""

    def __init__(self, outputs: OutputLog) -> None:
        self._outputs = outputs
        self.is_open = True
        self.unread = b""

    def drain(self) -> bool:
        if self.unread:
            self._outputs.buffers[STDOUT].append(self.unread)
            self.unread = b""
        return True

    def settle(self) -> None:
        pass

    def refresh(self) -> None:
        pass

    def close(self) -> None:
        self.is_open = False


class Machine:
    """A guest with one process, which writes to one pipe."""

    def __init__(self, args: dict[str, Any]) -> None:
        self.loop = ManualLoop()
        self.guest = cast("Guest", SimpleNamespace(loop=self.loop, calls=SimpleNamespace(handlers={})))
        self.process = Process(self.guest, "p", args)
        self.pipe = Pipe(self.process.outputs)
        self.process.pipes.append(cast("Any", self.pipe))

    def attach(self) -> RecordingCall:
        call = RecordingCall()
        self.process.attach(cast("Call", call), 0, 0)
        return call


@pytest.fixture
def machine() -> Machine:
    return Machine(ARGS)


def test_result_comes_after_the_output_of_the_process(machine: Machine) -> None:
    call = machine.attach()
    machine.pipe.unread = b"last words"

    machine.process.reaped(EXITED, USAGE)
    assert call.told == ["started"]
    machine.pipe.drain()
    machine.pipe.close()
    machine.process.changed()

    assert call.told == ["started", (STDOUT, b"last words"), machine.process.result()]


def test_result_does_not_wait_for_children_that_hold_the_pipe(machine: Machine) -> None:
    call = machine.attach()
    machine.pipe.unread = b"last words"

    machine.process.reaped(EXITED, USAGE)
    machine.loop.advance(1.0)

    assert machine.pipe.is_open
    assert call.told == ["started", (STDOUT, b"last words"), machine.process.result()]


def test_output_is_kept_for_30_seconds_after_its_reader_was_lost(machine: Machine) -> None:
    call = machine.attach()

    call.on_gone()
    machine.loop.advance(29.5)

    assert flood(machine.process.outputs, (STDOUT, STDERR)), "the process waits"
    machine.loop.advance(1.0)
    assert not flood(machine.process.outputs, (STDOUT, STDERR)), "the oldest output is dropped"


def test_output_of_a_new_terminal_is_kept_for_3_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(ON_TERMINAL)
    monkeypatch.setattr(Processes, "_spawn", lambda *_: machine.process)

    Processes(machine.guest).start(cast("Call", RecordingCall({**ON_TERMINAL, "attach": False})))
    machine.loop.advance(2.5)

    assert flood(machine.process.outputs, (STDOUT,)), "the process waits"
    machine.loop.advance(1.0)
    assert not flood(machine.process.outputs, (STDOUT,)), "the oldest output is dropped"
