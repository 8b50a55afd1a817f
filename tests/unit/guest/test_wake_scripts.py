"""Wake scripts: order, users, timeout, log, and calls that wait for them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.guest import wake_scripts as module
from sandlot.guest.identity import SandboxIdentity
from sandlot.guest.loop import Loop
from sandlot.guest.process.children import ChildTable
from sandlot.guest.process.pid_limit import PidLimit
from sandlot.guest.process.spawn import Spawner
from sandlot.guest.wake_scripts import MAX_LOG_BYTES, WakeScripts, find_scripts
from tests.support.guest import JoinedLink


class Machine:
    """The guest around the scripts.

    Attributes:
        folder: Folder of the scripts.
        held: True for each time that starts were held, False for each release.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.loop, self.children = Loop(), ChildTable()
        self.held: list[bool] = []
        link = JoinedLink()
        monkeypatch.setattr(link.rpc.__class__, "hold_starts", lambda _self: self.held.append(True))
        monkeypatch.setattr(link.rpc.__class__, "release_starts", lambda _self: self.held.append(False))
        entropy = (bytes([number]) * 64 for number in range(100))
        monkeypatch.setattr(SandboxIdentity, "fresh_entropy", lambda _self: next(entropy))
        identity = SandboxIdentity(self.loop)
        identity.sandbox_id, identity.env = "sb-me", {"OWN": "1"}
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        spawner = Spawner(identity, self.children, PidLimit(self.loop, self.children), null)
        self.scripts = WakeScripts(self.loop, spawner, identity, link.rpc)

    def put(self, name: str, script: str, *, mode: int = 0o755, owner: int = 0) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(mode)
        os.chown(path, owner, owner)

    def turn(self, until: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 60
        while not until():
            assert time.monotonic() < end_s
            self.loop.call_later(0.01, lambda: None)
            self.loop.turn()
            self.children.reap()

    def live(self) -> str:
        """Run the scripts, and return their log."""
        self.held.clear()
        self.scripts.start()
        self.turn(lambda: self.held == [] or not self.held[-1])
        log = Path(module.LOG)
        return log.read_text() if log.exists() else ""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    folder = tmp_path / "wake.d"
    folder.mkdir()
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o055 != 0o055:
            parent.chmod(0o755)  # so that uid 1000 reaches its scripts in pytest's folders
    monkeypatch.setattr(module, "LOG", str(tmp_path / "log/wake.log"))
    monkeypatch.setattr(module, "find_scripts", lambda: find_scripts(str(folder)))
    return Machine(folder, monkeypatch)


def test_folder_and_log_have_the_names_that_images_use() -> None:
    assert (module.FOLDER, module.LOG) == ("/etc/sandlot/wake.d", "/var/log/sandlot-wake.log")


def test_nothing_waits_without_wake_scripts(machine: Machine) -> None:
    machine.put("text", "exit", mode=0o644)
    (machine.folder / "folder").mkdir()
    (machine.folder / "dangling").symlink_to("nowhere")
    assert machine.live() == ""
    assert machine.held == []
    assert find_scripts(str(machine.folder / "none")) == []


def test_scripts_run_in_the_order_of_their_names_as_their_owners(machine: Machine) -> None:
    machine.put("20-user", "id -u; echo $SANDLOT_ENTROPY", owner=1000)
    machine.put("10-root", "id -u; echo $SANDLOT_ENTROPY $SANDLOT_SANDBOX_ID $OWN >&2")
    machine.put("30-anybodys", "id -u; exit 3", mode=0o777)
    lines = machine.live().splitlines()
    own = f"{'00' * 64} sb-me 1", "01" * 64
    assert lines[:3] == [f"{machine.folder}/10-root as root:", "0", own[0]]
    assert lines[3:6] == [f"{machine.folder}/20-user as user:", "1000", own[1]]
    assert lines[6:] == [f"{machine.folder}/30-anybodys as user:", "1000", "[exit status 3]"]
    assert machine.held == [True, False]


def test_script_that_does_not_end_is_killed_and_the_next_one_runs(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
    mark = f"30{os.getpid()}"
    machine.put("1", f"sleep {mark} & sleep {mark}")
    machine.put("2", "echo next")
    log = machine.live()
    assert "[killed after 0.5 s]\n[ended by signal 9]\n" in log
    assert log.endswith("next\n")
    assert not [each for each in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in _read(each)]


def test_script_that_cannot_be_started_is_logged_and_skipped(machine: Machine) -> None:
    (machine.folder / "1").write_text("#!/no/such/interpreter\n")
    (machine.folder / "1").chmod(0o755)
    machine.put("2", "echo next")
    log = machine.live()
    assert "[The sandbox has no program" in log
    assert log.endswith("next\n")


def test_size_of_the_log_is_limited(machine: Machine) -> None:
    machine.put("1", "head -c 10000000 /dev/zero | tr '\\0' x")
    machine.put("2", "true")
    assert len(machine.live()) == MAX_LOG_BYTES
    machine.put("1", "echo short")
    assert len(machine.live()) < 1000, "of the last life alone"


def test_link_at_the_path_of_the_log_is_not_followed(machine: Machine, tmp_path: Path) -> None:
    log = Path(module.LOG)
    log.parent.mkdir()
    (tmp_path / "target").write_text("kept")
    log.symlink_to(tmp_path / "target")
    machine.put("1", "echo said")
    assert "said" in machine.live()
    assert (tmp_path / "target").read_text() == "kept"


def test_second_wake_starts_the_scripts_again(machine: Machine) -> None:
    machine.put("1", "echo begun; sleep 0.2")
    machine.scripts.start()
    first = machine.scripts._running  # noqa: SLF001 - the script that is replaced
    machine.scripts.start()
    assert machine.scripts._running is not first  # noqa: SLF001 - likewise
    machine.turn(lambda: machine.held[-1] is False)
    assert machine.held == [True, True, False]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
