"""The clock of the loop, which counts only the run time of the sandbox."""

from __future__ import annotations

import pytest

from sandlot.guest import loop as module
from sandlot.guest.loop import Loop


class Clock:
    """A clock that the test and waits in epoll advance."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


class Epoll:
    """An epoll whose waits advance the clock, by an additional jump if the test sets one."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.leap_s = 0.0
        self.asked: list[float] = []

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        self.asked.append(timeout_s)
        assert timeout_s >= 0, "nobody would ever wake it"
        self.clock.now_s += timeout_s + self.leap_s
        self.leap_s = 0.0
        return []


class Machine:
    """A loop with a fake clock."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.loop = Loop()
        self.epoll = Epoll(self.clock)
        self.loop._epoll = self.epoll  # type: ignore[assignment]  # noqa: SLF001 - what the loop waits on
        self.fired_s: list[float] = []

    def after(self, delay_s: float) -> None:
        self.loop.call_later(delay_s, lambda: self.fired_s.append(self.clock.now_s))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(module, "time", made.clock)
    return made


def test_time_stands_still_while_the_clock_is_held(machine: Machine) -> None:
    machine.after(60)
    machine.clock.now_s += 10
    machine.loop.hold_clock()
    machine.clock.now_s += 3600  # a restore one hour after the checkpoint
    machine.loop.turn()
    assert machine.fired_s == []
    machine.loop.release_clock()
    assert machine.loop.time() == 1010.0
    machine.loop.turn()
    assert machine.fired_s == [machine.clock.now_s]
    assert machine.epoll.asked[-1] == 50.0


def test_held_clock_is_released_after_the_maximum_time(machine: Machine) -> None:
    machine.after(60)
    machine.loop.hold_clock()
    machine.epoll.leap_s = 7200.0  # the sandbox was frozen for two hours
    for _ in range(int(module.MAX_HOLD_S / module.HOLD_TICK_S)):
        assert machine.fired_s == []
        machine.loop.turn()
    machine.loop.turn()
    assert machine.fired_s == [machine.clock.now_s]
    assert machine.clock.now_s == 1000 + 7200 + module.MAX_HOLD_S + 60


def test_timer_does_not_count_the_time_of_a_freeze(machine: Machine) -> None:
    machine.after(60)
    machine.epoll.leap_s = 3600.0
    machine.loop.turn()
    assert machine.fired_s == []
    machine.loop.turn()
    assert machine.fired_s == [1000.0 + 3660 + 60]
