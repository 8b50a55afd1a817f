"""Findings into a verdict and a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.cli import doctor
from sandlot.cli.doctor import Check, check_disk, check_driver, check_images, check_system, check_user, healthy, report
from sandlot.model.ports import Ability, Capabilities, Verdict

BOOKWORM = {"ID": "debian", "VERSION_ID": "12", "PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)"}


def test_what_is_required_decides() -> None:
    fine, comfort, missing = Check("a", ok=True, detail=""), Check("b", ok=False, detail="", required=False), Check("c", ok=False, detail="")
    assert healthy([fine, comfort])
    assert not healthy([fine, missing])


def test_the_report_names_what_is_missing_and_what_to_do() -> None:
    lines = report([Check("user", ok=False, detail="uid 5", hint="use sudo", parts=(("boot", False, "no runtime"),))])
    assert lines == [
        "NO  user  uid 5",
        "          use sudo",
        "          -- boot: no runtime",
        "Sandboxes cannot run: see the lines that begin with NO.",
    ]


@pytest.mark.parametrize(
    "release, machine, ok, required",
    [
        (BOOKWORM, "x86_64", True, False),
        ({**BOOKWORM, "VERSION_ID": "11"}, "x86_64", False, False),
        ({"ID": "arch"}, "x86_64", False, False),
        ({}, "x86_64", False, False),
        (BOOKWORM, "aarch64", False, True),
    ],
    ids=["bookworm", "bullseye", "arch", "unknown", "arm"],
)
def test_other_systems_are_best_effort_and_other_machines_are_not(release: dict[str, str], machine: str, *, ok: bool, required: bool) -> None:
    check = check_system(release, machine, "6.1")
    assert (check.ok, check.required) == (ok, required)


def test_only_root_can() -> None:
    assert check_user(0).ok
    assert not check_user(1000).ok
    assert "SANDLOT_URL" in check_user(1000).hint


def test_a_driver_is_judged_by_what_it_did() -> None:
    able = check_driver(Capabilities("gvisor", "runsc 1", {Ability.BOOT: Verdict(ok=True), Ability.PAUSE: Verdict(ok=False, reason="no freezer")}))
    assert able.ok
    assert ("pause", False, "no freezer") in able.parts
    unable = check_driver(Capabilities("gvisor", "", {Ability.BOOT: Verdict(ok=False, reason="runsc is not installed")}))
    assert not unable.ok
    assert unable.hint == "runsc is not installed"


@pytest.mark.parametrize(
    "built, builder, ok, required",
    [(["a", "b"], False, True, True), ([], True, True, True), (["a"], True, True, False), ([], False, False, True), (["a"], False, False, False)],
    ids=["all", "none yet", "some", "none and no way", "some and no way"],
)
def test_images_are_there_or_can_be_made(built: list[str], *, builder: bool, ok: bool, required: bool) -> None:
    check = check_images(built, ["a", "b"], builder=builder)
    assert (check.ok, check.required or not check.ok) == (ok, required or not ok)
    assert healthy([check]) == (ok or not required)


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_BYTES", 0)
    assert check_disk(tmp_path / "not" / "yet").ok
    monkeypatch.setattr(doctor, "DISK_BYTES", 2**80)
    assert not check_disk(tmp_path).ok
