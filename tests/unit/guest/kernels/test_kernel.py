"""How a kernel is heard: in order, all of it, and in turn with everything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.kernels import family
from sandlot.guest.kernels import kernel as module
from sandlot.guest.kernels.ends import Ends
from sandlot.guest.kernels.kernel import AT_ONCE, Kernel, Owner
from sandlot.guest.loop import Loop
from sandlot.guest.output import OutputLog
from sandlot.protocol import values
from sandlot.protocol.schema import STDERR, STDOUT

TOLD = 5 * AT_ONCE + 3


class Listener(Owner):
    """What was heard, by the turn in which it was."""

    def __init__(self) -> None:
        self.turns: list[list[int]] = [[]]
        self.is_over = False

    def on_message(self, message: dict[str, Any], size: int) -> None:
        assert size > 0
        assert not self.is_over
        self.turns[-1].append(message["count"])

    def on_piped(self) -> None:
        pass

    def on_over(self) -> None:
        self.is_over = True


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Generator[Ends]:
    monkeypatch.setattr(family, "mark", lambda _pid, _number: None)  # there is no process
    monkeypatch.setattr(family, "end", lambda _pid, _number: None)
    made = Ends()
    yield made
    made.theirs.close()


def started(ends: Ends, loop: Loop, env: dict[str, str] | None = None) -> Kernel:
    """A kernel whose process is not there."""
    return Kernel(SimpleNamespace(loop=loop), 1 << 22, ends, 1, env or {})  # type: ignore[arg-type]


def end(kernel: Kernel, ends: Ends) -> None:
    for fd in (ends.out_theirs, ends.err_theirs):
        os.close(fd)
    kernel.discard()


@pytest.mark.parametrize("is_gone", [False, True])
def test_one_that_says_much_is_heard_in_order_and_takes_nobody_elses_turn(ends: Ends, *, is_gone: bool) -> None:
    loop, listener = Loop(), Listener()
    kernel = started(ends, loop)
    said = [values.encode_message({"event": "started", "cell": "c", "count": number}) for number in range(TOLD)]
    ends.theirs.sendall(b"".join(said))
    kernel.serve(listener)
    if is_gone:
        for fd in (ends.out_theirs, ends.err_theirs):
            os.close(fd)
        kernel.ended()
    for _ in range(TOLD):
        loop.call_soon(lambda: None)
        loop.turn()
        listener.turns.append([])
    assert [number for turn in listener.turns for number in turn] == list(range(TOLD))
    assert max(map(len, listener.turns)) <= 2 * AT_ONCE, "what was read, and what was put off"
    if is_gone:
        loop.call_soon(lambda: None)
        loop.turn()
        assert listener.is_over
    else:
        end(kernel, ends)


def test_what_was_said_before_is_answered_for_and_who_takes_no_answers_gets_no_more(ends: Ends) -> None:
    loop, listener = Loop(), Listener()
    kernel = started(ends, loop)
    kernel.serve(listener)

    def say(*messages: dict[str, Any]) -> None:
        ends.theirs.sendall(b"".join(map(values.encode_message, messages)))
        loop.call_soon(lambda: None)
        loop.turn()

    say({"event": "started", "cell": "c", "count": 7}, {"event": "sync", "number": 1})
    assert listener.turns == [[7]]
    assert values.decode(ends.theirs.recv(4096)[values.HEAD_BYTES :]) == {"op": "synced", "number": 1}
    for number in range(20_000 // AT_ONCE):
        say(*({"event": "sync", "number": number} for _ in range(AT_ONCE)))
    assert len(kernel._out) < 100, "no more than one answer is kept"  # noqa: SLF001
    say({"event": "started", "cell": "c", "count": 8})
    assert listener.turns == [[7, 8]]
    end(kernel, ends)


def test_a_wake_tells_what_is_new_and_what_is_gone_and_leaves_the_rest_to_cells(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "build_environment", lambda _who: {"PATH": "/bin"})
    loop, env = Loop(), {"KEPT": "1", "OTHER": "1", "GONE": "1", "PATH": "/opt"}
    kernel = started(ends, loop, env)

    def told() -> dict[str, Any]:
        message: dict[str, Any] = values.decode(ends.theirs.recv(4096)[values.HEAD_BYTES :])
        return message

    kernel.wake({"KEPT": "1", "OTHER": "2", "NEW": "3"}, b"entropy", "/here")
    assert told() == {"op": "wake", "entropy": b"entropy", "env": {"OTHER": "2", "NEW": "3", "PATH": "/bin"}, "gone": ["GONE"], "cwd": "/here"}
    kernel.wake({"NEW": "3"}, b"more", "")
    assert told() == {"op": "wake", "entropy": b"more", "env": {}, "gone": ["KEPT", "OTHER"], "cwd": ""}
    end(kernel, ends)


class Follower(Owner):
    """Notes how much of the pipes had been read when a message came."""

    def __init__(self) -> None:
        self.outputs = OutputLog((STDOUT, STDERR))
        self.heard: list[tuple[str, int]] = []

    def on_message(self, message: dict[str, Any], size: int) -> None:
        del size
        self.heard.append((message["event"], self.outputs.buffers[STDOUT].end))

    def on_piped(self) -> None:
        pass


@pytest.fixture
def piped(ends: Ends) -> Generator[Callable[[dict[str, Any]], Follower]]:
    """Let a kernel send a message, and what was piped be noticed by nobody before the message is handled."""
    loop, follower = Loop(), Follower()
    kernel = started(ends, loop)
    kernel.direct(SimpleNamespace(outputs=follower.outputs))  # type: ignore[arg-type]

    def send(message: dict[str, Any]) -> Follower:
        ends.theirs.sendall(values.encode_message(message))
        kernel.unread()
        loop.call_soon(lambda: os.write(ends.out_theirs, b"piped"))
        kernel.serve(follower)
        loop.turn()
        return follower

    yield send
    end(kernel, ends)


@pytest.mark.parametrize(
    "message",
    [
        {"event": "display", "cell": "c", "data": {"text/plain": "1"}, "main": True},
        {"event": "error", "cell": "c", "name": "ValueError", "value": "", "traceback": []},
        {"event": "done", "cell": "c", "ok": True, "count": 1},
    ],
    ids=lambda message: str(message["event"]),
)
def test_pipes_are_read_before_a_message(piped: Callable[[dict[str, Any]], Follower], message: dict[str, Any]) -> None:
    follower = piped(message)

    assert follower.heard == [(message["event"], len(b"piped"))]


def test_pipes_are_not_read_before_a_cell_has_started(piped: Callable[[dict[str, Any]], Follower]) -> None:
    follower = piped({"event": "started", "cell": "c", "count": 1})

    assert follower.heard == [("started", 0)]
