"""Checks of the machine: from files of the kernel to findings."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from sandlot.host.checks import machine
from sandlot.host.checks.machine import check_core_files, check_limits, check_program, check_system, check_user

BOOKWORM = {"ID": "debian", "VERSION_ID": "12", "PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)"}
ALL_IDS = "         0          0 4294967295\n"
ALL_CAPABILITIES = "CapEff:\t000001ffffffffff\n"
GIB = 1024**2  # in KiB


@pytest.mark.parametrize(
    "release, architecture, ok, required",
    [
        (BOOKWORM, "x86_64", True, False),
        ({**BOOKWORM, "VERSION_ID": "11"}, "x86_64", False, False),
        ({"ID": "arch"}, "x86_64", False, False),
        ({}, "x86_64", False, False),
        (BOOKWORM, "aarch64", False, True),
    ],
    ids=["bookworm", "bullseye", "arch", "unknown", "arm"],
)
def test_other_systems_are_best_effort_and_other_machines_are_not(release: dict[str, str], architecture: str, *, ok: bool, required: bool) -> None:
    found = check_system(release, architecture, "6.1")
    assert (found.ok, found.required) == (ok, required)
    assert bool(found.fix) is not ok


@pytest.mark.parametrize(
    "uid, status, uid_map, ok, words",
    [
        (0, ALL_CAPABILITIES, ALL_IDS, True, "root"),
        (1000, "CapEff:\t0000000000000000\n", ALL_IDS, False, "uid 1000"),
        (0, "CapEff:\t00000000a80425fb\n", ALL_IDS, False, "without CAP_SYS_ADMIN"),
        (0, ALL_CAPABILITIES, "         0     100000      65536\n", False, "user namespace"),
        (0, "", "", False, "without CAP_CHOWN"),
    ],
    ids=["root", "user", "container", "user-namespace", "nothing-to-read"],
)
def test_only_root_with_its_capabilities_passes(uid: int, status: str, uid_map: str, *, ok: bool, words: str) -> None:
    found = check_user(uid, status, uid_map)
    assert found.ok is ok
    assert found.required
    assert words in found.detail
    assert bool(found.fix) is not ok


def test_low_limits_are_reported_with_a_fix() -> None:
    assert check_limits((1024, 4096), 32768).ok
    assert check_limits((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 0).ok
    low = check_limits((256, 256), 4096)
    assert (low.ok, low.required) == (False, False)
    assert "ulimit -n" in low.fix
    assert "kernel.pid_max" in low.fix


def test_program_is_found_in_the_folders_of_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_program("mkfs.ext4", "install it").ok
    missing = check_program("no-such-program", "install it")
    assert (missing.ok, missing.fix, missing.required) == (False, "install it", True)


def test_this_machine_passes_all_required_checks() -> None:
    found = machine.check_machine()
    assert [finding.name for finding in found if finding.required and not finding.ok] == []
    assert next(finding for finding in found if finding.name == "user").facts == {"uid": os.geteuid()}


@pytest.mark.parametrize("pattern, ok", [("core", True), ("/var/cores/%p", True), ("", True), ("|/usr/lib/systemd/systemd-coredump %P", False)])
def test_core_files_go_to_no_program_of_the_host(pattern: str, *, ok: bool) -> None:
    found = check_core_files(pattern)
    assert (found.ok, found.required, bool(found.fix)) == (ok, False, not ok)
