"""Checks of control groups: this machine passes them; findings for other machines."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sandlot.host.cgroup_layout import Hierarchy, Layout, parse_layout
from sandlot.host.cgroups import detect_layout
from sandlot.host.checks import cgroups
from sandlot.host.checks.runner import Task, run


def test_group_of_a_killed_check_is_removed() -> None:
    layout = detect_layout()
    stray = [hierarchy.mount / "sandlot" / "doctor-999999999" for hierarchy in layout.hierarchies]
    for folder in stray:
        folder.mkdir(parents=True)
    run([Task("groups", "sandlot.host.checks.cgroups:sweep_groups", deadline_s=60.0)])
    assert not [folder for folder in stray if folder.exists()]


def test_missing_controllers_are_named_with_a_fix(tmp_path: Path) -> None:
    poor = cgroups.check_layout(parse_layout(f"29 25 0:27 / {tmp_path} rw - cgroup cgroup rw,memory\n", {}), "")
    assert poor.ok is False
    assert "without cpu, pids, freezer" in poor.detail
    assert "mount -t cgroup -o cpu" in poor.fix
    unified = cgroups.check_layout(Layout(2, (Hierarchy(tmp_path, frozenset({"memory", "cpu"})),)), "")
    assert unified.ok is False
    assert "+pids" in unified.fix


def test_hidden_hierarchy_is_reported(tmp_path: Path) -> None:
    every = frozenset({"memory", "cpu", "pids", "freezer"})
    found = cgroups.check_layout(Layout(1, (Hierarchy(tmp_path / "not-there", every),)), "1 1 0:1 / /x rw - cgroup2 none rw\n")
    assert found.ok is False
    assert str(tmp_path / "not-there") in found.detail
    assert "mounted over this path" in found.fix
    assert found.facts["hybrid"]


@pytest.mark.parametrize(
    "number, version, word",
    [
        (errno.EROFS, 1, "read-only"),
        (errno.EACCES, 2, "Delegate=yes"),
        (errno.EBUSY, 2, "no process is in it"),
        (errno.EBUSY, 1, "dmesg"),
        (None, 2, "dmesg"),
    ],
)
def test_each_refusal_has_its_own_fix(number: int | None, version: int, word: str) -> None:
    assert word in cgroups.delegation_fix(number, version)


def test_uncounted_swap_is_reported_on_a_host_with_swap(tmp_path: Path) -> None:
    none, some = "Filename Type Size Used Priority\n", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n"
    assert cgroups.check_swap([tmp_path], none).ok
    assert not cgroups.check_swap([tmp_path], some).ok
    (tmp_path / "memory.swap.max").write_text("", encoding="ascii")
    assert cgroups.check_swap([tmp_path], some).ok
