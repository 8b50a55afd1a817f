"""What the doctor is told about this machine, which runs these tests and so can do it all, and about poorer ones."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest

from sandlot.host import cgroups, probe
from sandlot.host.hierarchies import read_layout


def test_this_machine_can_run_sandboxes(tmp_path: Path) -> None:
    checks = probe.check_host(tmp_path / "not" / "yet")
    assert {check.name: check.detail for check in checks if not check.ok} == {}
    assert len({check.name for check in checks}) == len(checks)
    assert all(not check.fix for check in checks)
    assert cgroups.group_names(cgroups.detect_layout(), PurePosixPath("/sandlot")) & {f"probe-{os.getpid()}"} == set()


def test_what_is_missing_comes_with_its_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probe, "LEAST_FREE_BYTES", 2**60)
    for check in (probe.check_root(1000), probe.check_program("no-such-program", "install it"), probe.check_space(tmp_path)):
        assert not check.ok
        assert check.detail
        assert check.fix


def test_controllers_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    poor = read_layout("29 25 0:27 / /m rw - cgroup cgroup rw,memory\n", {})
    monkeypatch.setattr(probe, "detect_layout", lambda: poor)
    check = probe.check_groups()
    assert not check.ok
    assert "cpu, pids, freezer" in check.detail
