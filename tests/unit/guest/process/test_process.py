"""When the result of a process is sent, and how long its output is kept for a reader."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

from sandlot.guest.errors import RpcError
from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.loop import Loop
from sandlot.guest.output import OutputLog
from sandlot.guest.process.children import ChildTable
from sandlot.guest.process.manager import ProcessManager
from sandlot.guest.process.pid_limit import PidLimit
from sandlot.guest.process.process import Process
from sandlot.guest.process.spawn import Spawner
from sandlot.guest.rpc import Call
from sandlot.protocol.schema import STDERR, STDIN, STDOUT
from tests.support.guest import JoinedLink, ManualLoop, RecordingCall, flood

ARGS: dict[str, Any] = {"argv": ["true"], "hidden": None, "measured": None, "rows": None, "cols": None}
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
    """A guest with one process, which writes to one pipe.

    Attributes:
        ended: Number of times that the end of the process was reported.
    """

    def __init__(self, args: dict[str, Any]) -> None:
        self.loop = ManualLoop()
        self.ended = 0
        self.process = Process(cast("Loop", self.loop), "p", args, self._on_ended)
        self.pipe = Pipe(self.process.outputs)
        self.process.pipes.append(cast("Any", self.pipe))

    def _on_ended(self) -> None:
        self.ended += 1

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

    machine.process.on_exit(EXITED, USAGE)
    assert call.sent == ["started"]
    machine.pipe.drain()
    machine.pipe.close()
    machine.process.on_output()

    assert call.sent == ["started", (STDOUT, b"last words"), machine.process.result()]


def test_result_does_not_wait_for_children_that_hold_the_pipe(machine: Machine) -> None:
    call = machine.attach()
    machine.pipe.unread = b"last words"

    machine.process.on_exit(EXITED, USAGE)
    machine.loop.advance(1.0)

    assert machine.pipe.is_open
    assert call.sent == ["started", (STDOUT, b"last words"), machine.process.result()]


def test_output_is_kept_for_30_seconds_after_its_reader_was_lost(machine: Machine) -> None:
    call = machine.attach()

    call.on_gone()
    machine.loop.advance(29.5)

    assert flood(machine.process.outputs, (STDOUT, STDERR)), "the process waits"
    machine.loop.advance(1.0)
    assert not flood(machine.process.outputs, (STDOUT, STDERR)), "the oldest output is dropped"


def test_output_is_kept_for_30_seconds_after_the_last_of_several_readers_was_lost(machine: Machine) -> None:
    machine.attach().on_gone()
    machine.loop.advance(20.0)
    machine.attach().on_gone()

    machine.loop.advance(29.5)

    assert flood(machine.process.outputs, (STDOUT, STDERR)), "the process waits"


def test_process_that_the_guest_killed_has_the_reason_in_its_result(machine: Machine) -> None:
    machine.process.on_killed("oom")
    machine.process.on_exit(signal.SIGKILL, USAGE)

    assert (machine.process.result()["reason"], machine.process.result()["signal"]) == ("oom", signal.SIGKILL)
    assert machine.ended == 1


class Input:
    """Standard input of a process: the part of an ``InputPipe`` that a process uses. The process does not read."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.is_open = True
        self.accepted = 0

    def write(self, data: bytes, _taken: Callable[[], object]) -> None:
        self.accepted += len(data)

    def finish(self) -> None:
        self.is_open = False
        self._process.report_input()

    close = finish


def open_input(machine: Machine) -> RecordingCall:
    machine.process.input = machine.process.input or cast("Any", Input(machine.process))
    call = RecordingCall()
    machine.process.open_input(cast("Call", call))
    machine.loop.turn()
    return call


def test_input_is_reported_once_for_many_frames(machine: Machine) -> None:
    call, other = open_input(machine), open_input(machine)
    for _ in range(16):
        call.on_bytes(STDIN, b"x" * 4096, 4096)
    assert call.sent == ["input"], "the report follows at the end of the iteration"

    machine.loop.turn()

    assert call.sent == ["input", "input"]
    assert call.fields == [{"received": 0, "stdin_bytes": 0}, {"received": 65536, "stdin_bytes": 65536}]
    assert other.sent == ["input"], "nothing of its own has arrived"


def test_reports_of_input_are_not_queued_without_bound(machine: Machine) -> None:
    call = open_input(machine)
    call.room_bytes = 0
    for _ in range(1000):
        call.on_bytes(STDIN, b"x", 128)
        machine.loop.turn()
    assert call.sent == ["input"]

    call.room_bytes = 1
    call.on_writable()
    machine.loop.turn()

    assert call.fields[1:] == [{"received": 1000, "stdin_bytes": 1000}]


@pytest.mark.parametrize("end", ["END", "exit"])
def test_closed_input_ends_its_calls(machine: Machine, end: str) -> None:
    calls = [open_input(machine), open_input(machine)]
    gone = open_input(machine)
    gone.on_gone()
    calls[0].on_bytes(STDIN, b"x", 128)

    if end == "END":
        calls[1].on_end()
    else:
        machine.process.on_exit(EXITED, USAGE)
    machine.loop.turn()

    assert [call.sent[-1] for call in calls] == [{"received": 1, "stdin_bytes": 1}, {"received": 0, "stdin_bytes": 1}]
    assert gone.sent == ["input"]
    calls[0].on_bytes(STDIN, b"late", 128)
    machine.loop.turn()
    assert machine.process.describe()["stdin_bytes"] == 1


def test_process_without_input_has_no_open_input(machine: Machine) -> None:
    call = RecordingCall()
    machine.process.open_input(cast("Call", call))
    machine.loop.turn()
    assert call.sent == [{"received": 0, "stdin_bytes": 0}]


class Commands:
    """A process manager with real processes.

    Attributes:
        reported: ``first start`` and ``all ended``, in order.
    """

    def __init__(self) -> None:
        self.loop, self.children = Loop(), ChildTable()
        self.reported: list[str] = []
        link = JoinedLink()
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        spawner = Spawner(SandboxIdentity(self.loop), self.children, PidLimit(self.loop, self.children), self._null)
        self.processes = ProcessManager(
            self.loop, spawner, link.rpc, lambda: self.reported.append("first start"), lambda: self.reported.append("all ended")
        )

    def start(self, id_: str, argv: list[str], **args: object) -> RecordingCall:
        fields = {"argv": argv, "env": {}, "cwd": "/", "user": "root", "stdin": False, "timeout_s": None, "attach": False}
        call = RecordingCall({**fields, "hidden": None, "measured": None, "rows": None, "cols": None, **args})
        call.id = id_
        self.processes.start(cast("Call", call))
        return call

    def turn_until(self, is_so: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < end_s
            self.loop.call_later(0.01, lambda: None)
            self.loop.turn()
            self.children.reap()

    def close(self) -> None:
        self.processes.forget_finished()
        os.close(self._null)


@pytest.fixture
def commands() -> Generator[Commands]:
    made = Commands()
    yield made
    made.close()


def test_first_start_and_last_end_are_reported(commands: Commands) -> None:
    for id_ in ("one", "two"):
        commands.start(id_, ["/bin/sh", "-c", "exit 3"])
    assert commands.reported == ["first start"]
    assert len(commands.processes.running()) == 2

    commands.turn_until(lambda: not commands.processes.running())

    assert commands.reported == ["first start", "all ended"]


def test_repeated_start_returns_the_same_process(commands: Commands) -> None:
    first, second = (commands.start("one", ["/bin/sh", "-c", "exit 3"]) for _ in range(2))

    assert first.sent[0]["pid"] == second.sent[0]["pid"]
    commands.turn_until(lambda: not commands.processes.running())


def test_program_that_does_not_exist_leaves_no_descriptor(commands: Commands) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for size in ({}, {"rows": 24, "cols": 80}):
        with pytest.raises(RpcError, match="has no program"):
            commands.start("one", ["no-such-program"], **size)

    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # fewer, if objects of an earlier test were collected
    assert commands.reported == []


def test_output_of_a_new_terminal_is_kept_for_3_seconds(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(ON_TERMINAL)
    monkeypatch.setattr(ProcessManager, "_spawn", lambda *_: machine.process)

    commands.processes.start(cast("Call", RecordingCall({**ON_TERMINAL, "attach": False})))
    machine.loop.advance(2.5)

    assert flood(machine.process.outputs, (STDOUT,)), "the process waits"
    machine.loop.advance(1.0)
    assert not flood(machine.process.outputs, (STDOUT,)), "the oldest output is dropped"
