"""Order of a wake."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandlot.guest import waking as module
from sandlot.guest.calls import Call
from sandlot.guest.main import Guest
from sandlot.guest.waking import Waking
from tests.support.guest import ManualLoop, RecordingCall


class Machine:
    """The guest around a wake: every part records that it was called.

    Attributes:
        steps: Calls in order.
        at_kernels: State of the guest when its kernels were woken.
    """

    def __init__(self, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.at_kernels: dict[str, Any] = {}
        self._workspace = workspace
        loop = ManualLoop()
        parts = {
            "loop": SimpleNamespace(time=loop.time, after=loop.after, release=lambda: self.steps.append("clock"), hold=lambda: None),
            "calls": SimpleNamespace(handlers={}, forget_all=lambda: self.steps.append("forget calls")),
            "processes": SimpleNamespace(forget_past=lambda: self.steps.append("forget processes")),
            "kernels": SimpleNamespace(part=lambda: self.steps.append("forget cells"), woken=self._kernels_woken),
            "pids": SimpleNamespace(set=lambda _limit: self.steps.append("limits")),
            "hooks": SimpleNamespace(begin=lambda: self.steps.append("scripts")),
            "wire": SimpleNamespace(connection=SimpleNamespace(asleep=True, armed=True)),
            "env": {},
            "workspace": "/",
        }
        self.guest = SimpleNamespace(**parts)
        monkeypatch.setattr(module, "_set_hostname", lambda _name: None)
        monkeypatch.setattr(module, "_make_tmp", lambda: None)
        monkeypatch.setattr(module, "_stir", lambda _entropy: self.steps.append("entropy"))
        self.waking = Waking(cast("Guest", self.guest))

    def _kernels_woken(self, _memory_bytes: int | None, env: dict[str, str], _python: str | None) -> None:
        self.steps.append("kernels")
        connection, entropy = self.guest.wire.connection, self.waking._seed  # noqa: SLF001 - what it draws from
        self.at_kernels = {"life": env["LIFE"], "asleep": connection.asleep, "armed": connection.armed, "entropy": entropy}

    def wake(self, identity: str, life: str = "1") -> list[str]:
        """Wake the guest; the steps of this wake."""
        self.steps.clear()
        self.guest.wire.connection.asleep = self.guest.wire.connection.armed = True
        args = {
            "identity": identity,
            "hostname": "inside",
            "env": {"LIFE": life, "PATH": "/usr/bin:/bin"},
            "entropy": life.encode() * 64,
            "pids": 100,
            "memory_bytes": None,
            "deadline_s": None,
            "workspace": str(self._workspace),
        }
        self.waking.wake(cast("Call", RecordingCall(args)))
        return list(self.steps)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_wake_of_the_same_sandbox_keeps_what_it_remembers(machine: Machine) -> None:
    machine.wake("sb-one")

    assert machine.wake("sb-one") == ["clock", "entropy", "limits", "kernels", "scripts"]


def test_copy_is_reset_before_its_environment_is_set(machine: Machine) -> None:
    machine.wake("sb-one")

    steps = machine.wake("sb-copy")

    assert steps == ["clock", "forget calls", "forget processes", "forget cells", "entropy", "limits", "kernels", "scripts"]


def test_first_wake_runs_no_wake_scripts(machine: Machine) -> None:
    assert machine.wake("sb-one") == ["clock", "entropy", "limits", "kernels"]


def test_kernels_are_woken_after_everything_that_they_depend_on(machine: Machine) -> None:
    for life in ("1", "2"):
        steps = machine.wake("sb-one", life)

        assert steps.index("limits") < steps.index("kernels")
        assert machine.at_kernels == {"life": life, "asleep": False, "armed": False, "entropy": life.encode() * 64}
