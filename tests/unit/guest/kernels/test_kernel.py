"""How a kernel is heard: in order, all of it, and in turn with everything else."""

from __future__ import annotations

import os
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.flow.loop import Loop
from sandlot.guest.kernels import family
from sandlot.guest.kernels import kernel as module
from sandlot.guest.kernels.ends import Ends
from sandlot.guest.kernels.kernel import AT_ONCE, HEAD, Kernel, Owner
from sandlot.protocol import values

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


@pytest.mark.parametrize("is_gone", [False, True])
def test_one_that_says_much_is_heard_in_order_and_takes_nobody_elses_turn(ends: Ends, *, is_gone: bool) -> None:
    loop, listener = Loop(), Listener()
    kernel = Kernel(SimpleNamespace(loop=loop, pids=SimpleNamespace(watch=lambda: None)), 1 << 22, ends, 1, {})  # type: ignore[arg-type]
    said = [values.encode({"event": "started", "cell": "c", "count": number}) for number in range(TOLD)]
    ends.theirs.sendall(b"".join(HEAD.pack(len(raw)) + raw for raw in said))
    kernel.serve(listener)
    if is_gone:
        for fd in (ends.out_theirs, ends.err_theirs):
            os.close(fd)
        kernel.ended()
    for _ in range(TOLD):
        loop.soon(lambda: None)
        loop.turn()
        listener.turns.append([])
    assert [number for turn in listener.turns for number in turn] == list(range(TOLD))
    assert max(map(len, listener.turns)) <= 2 * AT_ONCE, "what was read, and what was put off"
    if is_gone:
        loop.soon(lambda: None)
        loop.turn()
        assert listener.is_over
    else:
        for fd in (ends.out_theirs, ends.err_theirs):
            os.close(fd)
        kernel.discard()


def test_what_was_said_before_is_answered_for_and_who_takes_no_answers_gets_no_more(ends: Ends) -> None:
    loop, listener = Loop(), Listener()
    kernel = Kernel(SimpleNamespace(loop=loop, pids=SimpleNamespace(watch=lambda: None)), 1 << 22, ends, 1, {})  # type: ignore[arg-type]
    kernel.serve(listener)

    def say(*messages: dict[str, Any]) -> None:
        raws = [values.encode(message) for message in messages]
        ends.theirs.sendall(b"".join(HEAD.pack(len(raw)) + raw for raw in raws))
        loop.soon(lambda: None)
        loop.turn()

    say({"event": "started", "cell": "c", "count": 7}, {"event": "sync", "number": 1})
    assert listener.turns == [[7]]
    assert values.decode(ends.theirs.recv(4096)[HEAD.size :]) == {"op": "synced", "number": 1}
    for number in range(100_000 // AT_ONCE):
        say(*({"event": "sync", "number": number} for _ in range(AT_ONCE)))
    assert len(kernel._out) < 100, "no more than one answer is kept"  # noqa: SLF001
    say({"event": "started", "cell": "c", "count": 8})
    assert listener.turns == [[7, 8]]
    for fd in (ends.out_theirs, ends.err_theirs):
        os.close(fd)
    kernel.discard()


def test_a_wake_tells_what_is_new_and_what_is_gone_and_leaves_the_rest_to_cells(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "environment", lambda _who: {"PATH": "/bin"})
    loop, env = Loop(), {"KEPT": "1", "OTHER": "1", "GONE": "1", "PATH": "/opt"}
    kernel = Kernel(SimpleNamespace(loop=loop, pids=SimpleNamespace(watch=lambda: None)), 1 << 22, ends, 1, env)  # type: ignore[arg-type]

    def told() -> dict[str, Any]:
        message: dict[str, Any] = values.decode(ends.theirs.recv(4096)[HEAD.size :])
        return message

    kernel.wake({"KEPT": "1", "OTHER": "2", "NEW": "3"}, b"entropy", "/here")
    assert told() == {"op": "wake", "entropy": b"entropy", "env": {"OTHER": "2", "NEW": "3", "PATH": "/bin"}, "gone": ["GONE"], "cwd": "/here"}
    kernel.wake({"NEW": "3"}, b"more", "")
    assert told() == {"op": "wake", "entropy": b"more", "env": {}, "gone": ["KEPT", "OTHER"], "cwd": ""}
    for fd in (ends.out_theirs, ends.err_theirs):
        os.close(fd)
    kernel.discard()


def test_its_first_word_is_waited_for_and_left_to_whom_it_serves(ends: Ends) -> None:
    loop, heard, listener = Loop(), [], Listener()
    kernel = Kernel(SimpleNamespace(loop=loop, pids=SimpleNamespace(watch=lambda: None)), 1 << 22, ends, 1, {})  # type: ignore[arg-type]
    kernel.when_heard(lambda: heard.append(1))
    raw = values.encode({"event": "started", "cell": "c", "count": 7})
    ends.theirs.sendall(HEAD.pack(len(raw)) + raw)
    loop.turn()
    assert heard == [1]
    kernel.serve(listener)
    loop.turn()
    assert listener.turns[-1] == [7]
    for fd in (ends.out_theirs, ends.err_theirs):
        os.close(fd)
    kernel.discard()
