"""When kernels are made ahead: not while a command runs, and for nobody longer than the zygote answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.flow.loop import Loop
from sandlot.guest.kernels import spares
from sandlot.guest.kernels.spares import Spares


class Zygote:
    """What is known of a zygote's process, without one."""

    made = 0

    def __init__(self, _guest: object, env: dict[str, str], seen: dict[str, int], *_more: object) -> None:
        type(self).made += 1
        self.env, self.seen, self.pid = env, seen, 1 << 22
        self.is_up = self.is_warm = self.is_still = self.is_closed = False

    def hold(self, *, still: bool) -> None:
        self.is_still = still

    def send(self, _message: object, _fds: tuple[int, ...] = ()) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


class Machine:
    """The guest around spares, as far as they look at it."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.commands: list[object] = []
        guest = SimpleNamespace(
            loop=self.loop, env={}, processes=SimpleNamespace(running=lambda: self.commands), pids=SimpleNamespace(watch=lambda: None)
        )
        kernels = SimpleNamespace(memory=SimpleNamespace(limit_bytes=0), is_busy=lambda: False, knows=lambda _pid: False)
        self.spares = Spares(guest, kernels)  # type: ignore[arg-type]

    @property
    def zygote(self) -> Any:  # noqa: ANN401 - the one above
        return self.spares._zygote  # noqa: SLF001 - what runs ahead is told to nobody

    def turn(self, until: Callable[[], bool]) -> None:
        """Let time pass, no more than it takes."""
        end_s = time.monotonic() + 30
        while not until():
            assert time.monotonic() < end_s
            self.loop.after(0, lambda: None)
            self.loop.turn()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    Zygote.made = 0
    monkeypatch.setattr(spares, "Zygote", Zygote)
    for name in ("AHEAD_S", "START_S", "ANSWER_S", "REFILL_S"):
        monkeypatch.setattr(spares, name, 0.001)
    monkeypatch.setattr(Spares, "_suits", lambda self, _env: self._failures < spares.FAILURES)
    monkeypatch.setattr(Spares, "_environment", lambda _self: {})
    monkeypatch.setattr(Spares, "_look", lambda _self: {})
    return Machine()


def test_none_is_begun_while_a_command_runs_however_long(machine: Machine) -> None:
    machine.commands.append("sleep")
    assert machine.spares.woken()
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + spares.TRIES * 0.004)
    assert machine.zygote is None
    machine.commands.clear()
    machine.spares.commands_ended()
    machine.turn(lambda: machine.zygote is not None)


def test_one_that_is_needed_is_begun_all_the_same(machine: Machine) -> None:
    machine.commands.append("server")
    assert machine.spares.woken()
    assert machine.spares.take({}, lambda _kernel: None)
    machine.spares.make_way()
    assert not machine.zygote.is_still


def test_one_that_imports_stands_still_until_the_command_ends(machine: Machine) -> None:
    assert machine.spares.woken()
    machine.turn(lambda: machine.zygote is not None)
    machine.commands.append("sleep")
    machine.spares.make_way()
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + 0.1)
    assert machine.zygote.is_still
    machine.spares.commands_ended()
    assert not machine.zygote.is_still


def test_one_that_does_not_answer_is_waited_for_once(machine: Machine) -> None:
    given: list[object] = []
    assert machine.spares.take({}, given.append)
    silent = machine.zygote
    silent.is_up = silent.is_warm = True
    machine.turn(lambda: given == [None])
    assert silent.is_closed
    assert machine.zygote is None
    assert machine.spares.take({}, given.append)
    assert machine.zygote not in {None, silent}


def test_where_none_ever_answers_no_more_are_begun(machine: Machine) -> None:
    given: list[object] = []
    for _ in range(spares.FAILURES):
        assert machine.spares.take({}, given.append)
        machine.turn(lambda: len(given) == Zygote.made)
    assert not machine.spares.take({}, given.append)
    assert Zygote.made == spares.FAILURES
