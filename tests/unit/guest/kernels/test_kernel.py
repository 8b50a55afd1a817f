"""Messages and output of a kernel: complete, in order, and without delaying other work."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.kernels import kernel as module
from sandlot.guest.kernels.kernel import MESSAGES_PER_TURN, KernelEventHandler, KernelPipes, KernelProcess
from sandlot.guest.loop import Loop
from sandlot.guest.output import OutputLog
from sandlot.guest.process.accounts import lookup_account
from sandlot.protocol import values
from sandlot.protocol.schema import STDERR, STDOUT

SENT = 5 * MESSAGES_PER_TURN + 3


class Listener(KernelEventHandler):
    """Records messages by the turn of the loop in which they were handled."""

    def __init__(self) -> None:
        self.turns: list[list[int]] = [[]]
        self.is_gone = False

    def on_message(self, message: dict[str, Any], size: int) -> None:
        assert size > 0
        assert not self.is_gone
        self.turns[-1].append(message["count"])

    def on_output(self) -> None:
        pass

    def on_gone(self) -> None:
        self.is_gone = True


class NoGroup:
    """The group of a kernel that has no process."""

    account = lookup_account("user")

    def kill(self) -> None:
        pass

    def interrupt(self) -> None:
        pass


@pytest.fixture
def pipes() -> Generator[KernelPipes]:
    pipes = KernelPipes()
    yield pipes
    socket_of(pipes).close()


def socket_of(pipes: KernelPipes) -> socket.socket:
    """Return the kernel's end of the socket."""
    return pipes._kernel_socket  # noqa: SLF001 - the test is the kernel


def new_kernel(pipes: KernelPipes, loop: Loop, env: dict[str, str] | None = None) -> KernelProcess:
    """Return a kernel that has no process."""
    return KernelProcess(loop, 1 << 22, pipes, NoGroup(), env or {})  # type: ignore[arg-type]


def end(kernel: KernelProcess, pipes: KernelPipes) -> None:
    for fd in pipes.kernel_output:
        os.close(fd)
    kernel.discard()


@pytest.mark.parametrize("is_gone", [False, True])
def test_many_messages_are_handled_in_order_and_in_several_turns(pipes: KernelPipes, *, is_gone: bool) -> None:
    loop, listener = Loop(), Listener()
    kernel = new_kernel(pipes, loop)
    messages = [values.encode_message({"event": "started", "cell": "c", "count": number}) for number in range(SENT)]
    socket_of(pipes).sendall(b"".join(messages))
    kernel.serve(listener)
    if is_gone:
        for fd in pipes.kernel_output:
            os.close(fd)
        kernel.end("died")
    for _ in range(SENT):
        loop.call_soon(lambda: None)
        loop.turn()
        listener.turns.append([])
    assert [number for turn in listener.turns for number in turn] == list(range(SENT))
    assert max(map(len, listener.turns)) <= 2 * MESSAGES_PER_TURN, "those that were read, and those that were postponed"
    if is_gone:
        loop.call_soon(lambda: None)
        loop.turn()
        assert listener.is_gone
    else:
        end(kernel, pipes)


def test_kernel_that_does_not_read_confirmations_gets_no_more(pipes: KernelPipes) -> None:
    loop, listener = Loop(), Listener()
    kernel = new_kernel(pipes, loop)
    kernel.serve(listener)

    def send_messages(*messages: dict[str, Any]) -> None:
        socket_of(pipes).sendall(b"".join(map(values.encode_message, messages)))
        loop.call_soon(lambda: None)
        loop.turn()

    send_messages({"event": "started", "cell": "c", "count": 7}, {"event": "sync", "number": 1})
    assert listener.turns == [[7]]
    assert values.decode(socket_of(pipes).recv(4096)[values.HEAD_BYTES :]) == {"op": "synced", "number": 1}
    for number in range(20_000 // MESSAGES_PER_TURN):
        send_messages(*({"event": "sync", "number": number} for _ in range(MESSAGES_PER_TURN)))
    assert kernel._channel.unsent_bytes < 100, "at most one confirmation is kept"  # noqa: SLF001
    send_messages({"event": "started", "cell": "c", "count": 8})
    assert listener.turns == [[7, 8]]
    end(kernel, pipes)


def test_wake_sends_only_variables_that_changed(pipes: KernelPipes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "build_environment", lambda _account: {"PATH": "/bin"})
    loop, env = Loop(), {"KEPT": "1", "OTHER": "1", "GONE": "1", "PATH": "/opt"}
    kernel = new_kernel(pipes, loop, env)

    def received() -> dict[str, Any]:
        message: dict[str, Any] = values.decode(socket_of(pipes).recv(4096)[values.HEAD_BYTES :])
        return message

    kernel.wake({"KEPT": "1", "OTHER": "2", "NEW": "3"}, b"entropy", "/here")
    assert received() == {"op": "wake", "entropy": b"entropy", "env": {"OTHER": "2", "NEW": "3", "PATH": "/bin"}, "gone": ["GONE"], "cwd": "/here"}
    kernel.wake({"NEW": "3"}, b"more", "")
    assert received() == {"op": "wake", "entropy": b"more", "env": {}, "gone": ["KEPT", "OTHER"], "cwd": ""}
    end(kernel, pipes)


class OrderRecorder(KernelEventHandler):
    """Records how many bytes of the pipes had been read when a message was handled."""

    def __init__(self) -> None:
        self.outputs = OutputLog((STDOUT, STDERR))
        self.messages: list[tuple[str, int]] = []

    def on_message(self, message: dict[str, Any], size: int) -> None:
        del size
        self.messages.append((message["event"], self.outputs.buffers[STDOUT].end))

    def on_output(self) -> None:
        pass


@pytest.fixture
def piped(pipes: KernelPipes) -> Generator[Callable[[dict[str, Any]], OrderRecorder]]:
    """Return a function that sends a message, and writes to a pipe so late that only the message handling can read it."""
    loop, recorder = Loop(), OrderRecorder()
    kernel = new_kernel(pipes, loop)
    kernel.execute(SimpleNamespace(outputs=recorder.outputs, id="c", code="", env={}, silent=False, store_history=True))  # type: ignore[arg-type]

    def send(message: dict[str, Any]) -> OrderRecorder:
        socket_of(pipes).sendall(values.encode_message(message))
        kernel.read_ahead()
        loop.call_soon(lambda: os.write(pipes.kernel_output[0], b"piped"))
        kernel.serve(recorder)
        loop.turn()
        return recorder

    yield send
    end(kernel, pipes)


@pytest.mark.parametrize(
    "message",
    [
        {"event": "display", "cell": "c", "data": {"text/plain": "1"}, "main": True},
        {"event": "error", "cell": "c", "name": "ValueError", "value": "", "traceback": []},
        {"event": "done", "cell": "c", "ok": True, "count": 1},
    ],
    ids=lambda message: str(message["event"]),
)
def test_pipes_are_read_before_a_message(piped: Callable[[dict[str, Any]], OrderRecorder], message: dict[str, Any]) -> None:
    recorder = piped(message)

    assert recorder.messages == [(message["event"], len(b"piped"))]


def test_pipes_are_not_read_before_a_cell_has_started(piped: Callable[[dict[str, Any]], OrderRecorder]) -> None:
    recorder = piped({"event": "started", "cell": "c", "count": 1})

    assert recorder.messages == [("started", 0)]
