"""What a context says to its kernel when a life begins, and when a cell takes its time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.flow.loop import Loop
from sandlot.guest.kernels import context as context_module
from sandlot.guest.kernels.cells import Cell
from sandlot.guest.kernels.context import Context

ARGS: dict[str, Any] = {"kernel": "default", "code": "1", "env": {}, "timeout_s": None, "silent": None, "store_history": None, "stop_on_error": None}


class Kernel:
    """One that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[dict[str, str], bytes, str]] = []
        self.pid = 1 << 22

    def wake(self, env: dict[str, str], entropy: bytes, cwd: str) -> None:
        self.told.append((env, entropy, cwd))

    def serve(self, _owner: object) -> None:
        pass


def test_a_folder_is_told_to_a_new_kernel_and_to_none_that_has_lived() -> None:
    drawn = iter([b"1", b"2"])
    guest = SimpleNamespace(loop=Loop(), env={"LIFE": "1"}, waking=SimpleNamespace(draw=lambda: next(drawn)))
    kernel = Kernel()
    context = Context(guest, SimpleNamespace(), "default", "python", "/workspace", {"OWN": "1"})  # type: ignore[arg-type]
    context.woken()
    context.adopt(kernel)  # type: ignore[arg-type]
    guest.env = {"LIFE": "2"}
    context.woken()
    assert kernel.told == [({"LIFE": "1", "OWN": "1"}, b"1", "/workspace"), ({"LIFE": "2", "OWN": "1"}, b"2", "")]


def test_a_copy_runs_no_cell_that_somebody_waits_for_elsewhere() -> None:
    loop = Loop()
    context = Context(SimpleNamespace(loop=loop), SimpleNamespace(), "default", "python", "/workspace", {})  # type: ignore[arg-type]
    cell = Cell(loop, "1", dict(ARGS))
    context.queue.append(cell)
    context.part()
    assert not context.queue
    assert cell.result is not None
    assert cell.result["status"] == "aborted"


class Listening(Kernel):
    """One that takes cells, and notes when it was rung for."""

    def __init__(self) -> None:
        super().__init__()
        self.rung = 0

    def ring(self) -> None:
        self.rung += 1

    def send(self, _message: dict[str, object]) -> None:
        pass

    def direct(self, _cell: Cell) -> None:
        pass

    def read_on(self) -> None:
        pass


@pytest.mark.parametrize("ends", [False, True])
def test_a_kernel_is_rung_for_a_cell_that_takes_its_time(monkeypatch: pytest.MonkeyPatch, *, ends: bool) -> None:
    monkeypatch.setattr(context_module, "BELL_S", 0.01)
    loop, kernel = Loop(), Listening()
    kernels = SimpleNamespace(memory=SimpleNamespace(watch=lambda: None), finished=lambda: None, cell_of=lambda _id, _kernel: None)
    guest = SimpleNamespace(loop=loop, env={}, waking=SimpleNamespace(draw=lambda: b""))
    context = Context(guest, kernels, "default", "python", "/workspace", {})  # type: ignore[arg-type]
    context.adopt(kernel)  # type: ignore[arg-type]
    context.on_message({"event": "ready", "cell": None}, 1)
    context.submit(Cell(loop, "1", dict(ARGS)))
    if ends:
        context.on_message({"event": "done", "cell": "1", "ok": True, "count": 1}, 1)
    over: list[bool] = []
    loop.after(0.1, lambda: over.append(True))
    while not over:
        loop.turn()
    assert kernel.rung == int(not ends)


def test_a_kernel_is_rung_before_it_is_interrupted_where_it_has_not_said_that_it_began() -> None:
    loop, kernel = Loop(), Listening()
    kernels = SimpleNamespace(memory=SimpleNamespace(watch=lambda: None))
    guest = SimpleNamespace(loop=loop, env={}, waking=SimpleNamespace(draw=lambda: b""))
    context = Context(guest, kernels, "default", "python", "/workspace", {})  # type: ignore[arg-type]
    context.adopt(kernel)  # type: ignore[arg-type]
    context.on_message({"event": "ready", "cell": None}, 1)
    context.submit(Cell(loop, "1", dict(ARGS)))
    assert context.interrupt()
    assert kernel.rung == 1
