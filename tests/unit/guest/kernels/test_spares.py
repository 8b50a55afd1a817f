"""When kernels are made ahead: not while a command runs, and for nobody longer than the zygote answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.kernels import languages, spares
from sandlot.guest.kernels.services import KernelChild
from sandlot.guest.kernels.spares import Spares
from sandlot.guest.loop import Loop
from sandlot.guest.process.children import ChildTable


class Zygote:
    """What is known of a zygote's process, without one."""

    made = 0

    def __init__(self, _guest: object, env: dict[str, str], seen: dict[str, int], *_more: object) -> None:
        type(self).made += 1
        self.env, self.seen, self.pid = env, seen, 1 << 22
        self.is_up = self.is_warm = self.is_still = self.is_closed = False
        self.python = None

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
        self.children = ChildTable()
        guest = SimpleNamespace(
            loop=self.loop,
            identity=SandboxIdentity(self.loop),
            processes=SimpleNamespace(running=lambda: self.commands),
            children=self.children,
        )
        kernels = SimpleNamespace(memory=SimpleNamespace(limit_bytes=0), is_busy=lambda: False)
        self.spares = Spares(guest, kernels)  # type: ignore[arg-type]

    @property
    def zygote(self) -> Any:  # noqa: ANN401 - the one above
        return self.spares._zygote  # noqa: SLF001 - what runs ahead is told to nobody

    def turn(self, until: Callable[[], bool]) -> None:
        """Let time pass, no more than it takes."""
        end_s = time.monotonic() + 30
        while not until():
            assert time.monotonic() < end_s
            self.loop.call_later(0, lambda: None)
            self.loop.turn()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    Zygote.made = 0
    monkeypatch.setattr(spares, "Zygote", Zygote)
    for name in ("AHEAD_S", "START_S", "ANSWER_S", "REFILL_S"):
        monkeypatch.setattr(spares, name, 0.001)
    monkeypatch.setattr(Spares, "_suits", lambda self, _env: self._failures < spares.FAILURES)
    monkeypatch.setattr(Spares, "_python", lambda _self, _env: "/usr/bin/python3")
    monkeypatch.setattr(Spares, "_environment", lambda _self: {})
    monkeypatch.setattr(Spares, "_look", lambda _self: {})
    monkeypatch.setattr(SandboxIdentity, "fresh_entropy", lambda _self: b"fresh")
    return Machine()


def test_none_is_begun_while_a_command_runs_however_long(machine: Machine) -> None:
    machine.commands.append("sleep")
    machine.spares.woken({}, None)
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + spares.TRIES * 0.004)
    assert machine.zygote is None
    machine.commands.clear()
    machine.spares.commands_ended()
    machine.turn(lambda: machine.zygote is not None)


def test_one_that_is_needed_is_begun_all_the_same(machine: Machine) -> None:
    machine.commands.append("server")
    machine.spares.woken({}, None)
    assert machine.spares.take({}, lambda _kernel: None)
    machine.spares.make_way()
    assert not machine.zygote.is_still


def test_one_that_imports_stands_still_until_the_command_ends(machine: Machine) -> None:
    machine.spares.woken({}, None)
    machine.turn(lambda: machine.zygote is not None)
    machine.commands.append("sleep")
    machine.spares.make_way()
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + 0.02)
    assert machine.zygote.is_still
    machine.spares.commands_ended()
    assert not machine.zygote.is_still


def test_where_none_ever_answers_no_more_are_begun(machine: Machine) -> None:
    given: list[object] = []
    for _ in range(spares.FAILURES):
        assert machine.spares.take({}, given.append)
        machine.turn(lambda: len(given) == Zygote.made)
    assert not machine.spares.take({}, given.append)
    assert Zygote.made == spares.FAILURES


class Spare:
    """A kernel that waits."""

    pid = 1 << 21

    def __init__(self) -> None:
        self.is_discarded = False
        self.asked: list[object] = []
        self.woken: list[tuple[object, bytes, str]] = []

    def wake(self, env: object, entropy: bytes, cwd: str) -> None:
        self.woken.append((env, entropy, cwd))

    def unread(self) -> int:
        return len(self.asked)  # it answers at once

    def send(self, message: object) -> None:
        self.asked.append(message)

    def when_heard(self, callback: Callable[[], object]) -> None:
        callback()

    def discard(self) -> None:
        self.is_discarded = True


@pytest.fixture
def lean(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, Spare, dict[str, int]]:
    """One whose zygote has made a spare and ended, and when the folders that it looks at have changed."""
    looked: dict[str, int] = {"/packages": 1}
    monkeypatch.setattr(languages, "changed", lambda _places: dict(looked))
    monkeypatch.setattr(Spares, "_look", lambda _self: dict(looked))
    done: list[bool] = []
    spare = Spare()
    machine.spares.warm(done.append, lean=True)
    zygote = machine.zygote
    machine.spares._spare = spare  # type: ignore[assignment]  # noqa: SLF001 - what a zygote does
    assert done == []
    machine.spares._warmed(there=True)  # noqa: SLF001
    assert (done, zygote.is_closed, machine.zygote) == ([True], True, None)
    return machine, spare, looked


def test_a_lean_one_gives_its_spare_and_begins_another_zygote_only_for_the_next(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, _ = lean
    given: list[object] = []
    done: list[bool] = []
    machine.spares.warm(done.append, lean=True)
    assert (done, spare.asked) == ([True], [{"op": "rehearse"}]), "it may have been restored since"
    assert machine.spares.is_up
    machine.spares.woken({}, None)
    assert spare.woken == [({}, b"fresh", "")], "it comes to itself while nobody waits for it"
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + 0.02)
    assert machine.spares.take({}, given.append)
    assert given == [spare]
    machine.spares.settle()
    machine.turn(lambda: time.monotonic() > began_s + 0.04)
    assert (Zygote.made, machine.zygote) == (1, None)
    assert machine.spares.take({}, given.append)
    assert Zygote.made == 2
    assert len(given) == 1, "it waits for that"


def test_a_lean_spare_of_what_is_no_longer_on_the_disk_is_not_given(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, looked = lean
    given: list[object] = []
    looked["/packages"] = 2
    assert machine.spares.take({}, given.append)
    assert (given, spare.is_discarded, Zygote.made) == ([], True, 2)


def test_after_a_command_that_installed_something_the_next_is_made_ahead(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, looked = lean
    for changed, expected in ((1, False), (2, True)):
        looked["/packages"] = changed
        machine.spares.commands_ended()
        assert spare.is_discarded is expected
    machine.turn(lambda: machine.zygote is not None)


def test_a_lean_spare_is_not_for_another_environment(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, _ = lean
    machine.spares.woken({"OMP_NUM_THREADS": "1"}, None)
    assert spare.is_discarded
    machine.turn(lambda: machine.zygote is not None)


def test_spare_is_not_given_to_a_context_with_other_start_up_variables(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, _ = lean
    given: list[object] = []

    assert not machine.spares.take({"OMP_NUM_THREADS": "1"}, given.append)

    assert (given, spare.is_discarded) == ([], False)


def test_spare_is_not_given_before_changed_packages_were_checked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: dict[str, int] = {"/packages": 1}
    monkeypatch.setattr(languages, "changed", lambda _places: dict(looked))
    monkeypatch.setattr(Spares, "_look", lambda _self: dict(looked))
    given: list[object] = []
    machine.spares.warm(lambda _there: None)
    machine.zygote.is_up = machine.zygote.is_warm = True
    spare = Spare()
    machine.spares._spare = spare  # type: ignore[assignment]  # noqa: SLF001 - what a zygote does
    looked["/packages"] = 2

    assert machine.spares.take({}, given.append)
    assert given == []
    machine.spares._on_message({"event": "fresh", "fresh": True})  # noqa: SLF001 - what the zygote says of them

    assert given == [spare]


def test_process_that_is_known_already_is_not_taken_for_a_kernel(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "may_be_forked", lambda _pid: True)
    machine.children.add(Spare.pid, KernelChild(machine.spares._kernels, Spare.pid))  # noqa: SLF001 - the machine's
    given: list[object] = []
    machine.spares.take({}, given.append)
    machine.spares._on_message({"event": "warm"})  # noqa: SLF001 - what the zygote says; it is asked to fork then

    with pytest.raises(ValueError, match=str(Spare.pid)):
        machine.spares._on_message({"event": "forked", "pid": Spare.pid})  # noqa: SLF001

    assert given == []
