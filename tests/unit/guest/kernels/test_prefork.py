"""Spare kernels: when they are created, and how long a request waits for the fork server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sandlot.guest.kernels import prefork, python_environment
from sandlot.guest.kernels.prefork import Prefork
from sandlot.guest.loop import Loop


class ForkServer:
    """A fork server without a process.

    Attributes:
        created: Number of servers in this test.
    """

    created = 0

    def __init__(self, _loop: object, _spawner: object, identity: Any, package_times: dict[str, int], *_callbacks: object) -> None:  # noqa: ANN401 - as below
        type(self).created += 1
        self.startup_variables = python_environment.startup_variables(identity.environment(None))
        self.env, self.package_times, self.pid = identity.env, package_times, 1 << 22
        self.user, self.account = identity.user, SimpleNamespace(uid=1000)
        self.is_ready = self.is_warm = self.is_stopped = self.is_closed = False
        self.python = None

    def stop(self) -> None:
        self.is_stopped = True

    def resume(self) -> None:
        self.is_stopped = False

    def send(self, _message: object, _fds: tuple[int, ...] = ()) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


class Machine:
    """The guest around a prefork."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.children: set[int] = set()
        self.identity = identity = SimpleNamespace(env={}, user="user", fresh_entropy=lambda: b"fresh", environment=lambda _account: {})
        oom = SimpleNamespace(allows_spare=True)
        self.prefork = Prefork(self.loop, None, self.children, identity, oom, None)  # type: ignore[arg-type]

    @property
    def server(self) -> Any:  # noqa: ANN401 - a ForkServer
        return self.prefork._server  # noqa: SLF001 - nothing public tells

    def turn(self, until: Callable[[], bool]) -> None:
        """Turn the loop until a condition holds."""
        end_s = time.monotonic() + 30
        while not until():
            assert time.monotonic() < end_s
            self.loop.call_later(0, lambda: None)
            self.loop.turn()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    ForkServer.created = 0
    monkeypatch.setattr(prefork, "KernelForkServer", ForkServer)
    for name in ("AHEAD_S", "START_TIMEOUT_S", "FORK_TIMEOUT_S", "REFILL_S"):
        monkeypatch.setattr(prefork, name, 0.001)
    monkeypatch.setattr(Prefork, "_is_worthwhile", lambda self, _env: self._failures < prefork.MAX_FAILURES)
    monkeypatch.setattr(Prefork, "_find_python", lambda _self, _env: "/usr/bin/python3")
    monkeypatch.setattr(Prefork, "_environment", lambda _self: {})
    monkeypatch.setattr(Prefork, "_look_at_packages", lambda _self: {})
    return Machine()


def test_no_fork_server_is_started_while_a_command_runs(machine: Machine) -> None:
    machine.prefork.yield_cpu()
    machine.prefork.on_wake({}, None)
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + prefork.MAX_POSTPONEMENTS * 0.004)
    assert machine.server is None
    machine.prefork.resume()
    machine.turn(lambda: machine.server is not None)


def test_fork_server_that_a_context_needs_is_started_while_a_command_runs(machine: Machine) -> None:
    machine.prefork.on_wake({}, None)
    assert machine.prefork.acquire({}, lambda _kernel: None)
    machine.prefork.yield_cpu()
    assert not machine.server.is_stopped


def test_fork_server_that_imports_is_stopped_until_the_command_ends(machine: Machine) -> None:
    machine.prefork.on_wake({}, None)
    machine.turn(lambda: machine.server is not None)
    machine.prefork.yield_cpu()
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + 0.02)
    assert machine.server.is_stopped
    machine.prefork.resume()
    assert not machine.server.is_stopped


def test_no_further_fork_server_is_started_after_three_that_did_not_answer(machine: Machine) -> None:
    kernels: list[object] = []
    for _ in range(prefork.MAX_FAILURES):
        assert machine.prefork.acquire({}, kernels.append)
        machine.turn(lambda: len(kernels) == ForkServer.created)
    assert not machine.prefork.acquire({}, kernels.append)
    assert ForkServer.created == prefork.MAX_FAILURES


class Spare:
    """A spare kernel without a process."""

    pid = 1 << 21

    def __init__(self) -> None:
        self.is_discarded = False
        self.asked: list[object] = []
        self.woken: list[tuple[object, bytes, str]] = []

    def wake(self, env: object, entropy: bytes, cwd: str) -> None:
        self.woken.append((env, entropy, cwd))

    def read_ahead(self) -> int:
        return len(self.asked)  # the fork server responds at once

    def send(self, message: object) -> None:
        self.asked.append(message)

    def when_heard(self, callback: Callable[[], object]) -> None:
        callback()

    def discard(self) -> None:
        self.is_discarded = True


@pytest.fixture
def lean(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> tuple[Machine, Spare, dict[str, int]]:
    """A prefork in lean mode with a spare, and the modification times of package folders that the prefork sees."""
    package_times: dict[str, int] = {"/packages": 1}
    monkeypatch.setattr(python_environment, "modified_times", lambda _places: dict(package_times))
    monkeypatch.setattr(Prefork, "_look_at_packages", lambda _self: dict(package_times))
    done: list[bool] = []
    spare = Spare()
    machine.prefork.warm(done.append, lean=True)
    server = machine.server
    machine.prefork._spare = spare  # type: ignore[assignment]  # noqa: SLF001 - what its fork server does
    assert done == []
    machine.prefork._report_warm(has_spare=True)  # noqa: SLF001
    assert (done, server.is_closed, machine.server) == ([True], True, None)
    return machine, spare, package_times


def test_lean_mode_starts_another_fork_server_only_when_there_is_no_spare(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, _ = lean
    kernels: list[object] = []
    done: list[bool] = []
    machine.prefork.warm(done.append, lean=True)
    assert (done, spare.asked) == ([True], [{"op": "rehearse"}]), "it may have been restored meanwhile"
    assert machine.prefork.is_up
    machine.prefork.on_wake({}, None)
    assert spare.woken == [({}, b"fresh", "")], "it is running again before a context needs it"
    began_s = time.monotonic()
    machine.turn(lambda: time.monotonic() > began_s + 0.02)
    assert machine.prefork.acquire({}, kernels.append)
    assert kernels == [spare]
    machine.prefork.on_cells(running=False)
    machine.turn(lambda: time.monotonic() > began_s + 0.04)
    assert (ForkServer.created, machine.server) == (1, None)
    assert machine.prefork.acquire({}, kernels.append)
    assert ForkServer.created == 2
    assert len(kernels) == 1, "the request waits for it"


def test_lean_spare_with_outdated_packages_is_not_used(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, package_times = lean
    kernels: list[object] = []
    package_times["/packages"] = 2
    assert machine.prefork.acquire({}, kernels.append)
    assert (kernels, spare.is_discarded, ForkServer.created) == ([], True, 2)


def test_lean_spare_is_replaced_after_a_command_that_installs_packages(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, package_times = lean
    for changed, expected in ((1, False), (2, True)):
        package_times["/packages"] = changed
        machine.prefork.resume()
        assert spare.is_discarded is expected
    machine.turn(lambda: machine.server is not None)


def test_lean_spare_is_dropped_at_a_wake_with_other_start_up_variables(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, _ = lean
    machine.prefork.on_wake({"OMP_NUM_THREADS": "1"}, None)
    assert spare.is_discarded
    machine.turn(lambda: machine.server is not None)


def test_lean_spare_is_dropped_at_a_wake_with_another_user(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, _ = lean
    for user, expected in (("user", False), ("root", True)):
        machine.identity.user = user
        machine.prefork.on_wake({}, None)
        assert spare.is_discarded is expected
    machine.turn(lambda: machine.server is not None)


def test_spare_is_not_given_to_a_context_with_other_start_up_variables(lean: tuple[Machine, Spare, dict[str, int]]) -> None:
    machine, spare, _ = lean
    kernels: list[object] = []

    assert not machine.prefork.acquire({"OMP_NUM_THREADS": "1"}, kernels.append)

    assert (kernels, spare.is_discarded) == ([], False)


def test_spare_is_not_given_before_changed_packages_were_checked(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    package_times: dict[str, int] = {"/packages": 1}
    monkeypatch.setattr(python_environment, "modified_times", lambda _places: dict(package_times))
    monkeypatch.setattr(Prefork, "_look_at_packages", lambda _self: dict(package_times))
    kernels: list[object] = []
    machine.prefork.warm(lambda _has_spare: None, lean=False)
    machine.server.is_ready = machine.server.is_warm = True
    spare = Spare()
    machine.prefork._spare = spare  # type: ignore[assignment]  # noqa: SLF001 - what its fork server does
    package_times["/packages"] = 2

    assert machine.prefork.acquire({}, kernels.append)
    assert kernels == []
    machine.prefork._on_message({"event": "fresh", "fresh": True})  # noqa: SLF001 - what the fork server responds

    assert kernels == [spare]


def test_known_process_is_not_accepted_as_a_kernel(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefork, "may_be_forked", lambda _pid, _uid: True)
    machine.children.add(Spare.pid)
    kernels: list[object] = []
    machine.prefork.acquire({}, kernels.append)
    machine.prefork._on_message({"event": "warm"})  # noqa: SLF001 - the fork server has imported everything; it is to fork then

    with pytest.raises(ValueError, match=str(Spare.pid)):
        machine.prefork._on_message({"event": "forked", "pid": Spare.pid})  # noqa: SLF001

    assert kernels == []


PROGRAM = """
import json, os, subprocess
from sandlot.guest.kernels.prefork import may_be_forked

def sleep(**how):
    return subprocess.Popen(["sleep", "600"], **how)

shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], user=1000, stdout=subprocess.PIPE)
dead = subprocess.Popen(["true"], user=1000)
os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
pids = {
    "a child of PID 1": sleep(user=1000).pid,
    "a child of another process": int(shell.stdout.readline()),
    "a process of root": sleep().pid,
    "a dead process": dead.pid,
    "no process": 4194304,
    "PID 1": os.getpid(),
    "a negative number": -1,
    "a text": str(shell.pid),
    "a truth value": True,
}
print(json.dumps({name: may_be_forked(pid, 1000) for name, pid in pids.items()}), flush=True)
os._exit(0)
"""
"""Runs as PID 1 of a pid namespace, as the guest does; everything that it starts ends with it."""


def test_only_a_living_child_of_pid_1_that_belongs_to_the_user_may_be_a_kernel() -> None:
    argv = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", sys.executable, "-c", PROGRAM]

    completed = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)

    assert [name for name, may_be in json.loads(completed.stdout).items() if may_be] == ["a child of PID 1"]
