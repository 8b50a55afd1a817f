"""The parts of scripts/setup that decide: which apt source and pin are written, which runsc is new enough, what a step says."""

from __future__ import annotations

import subprocess
import textwrap

from tests.meta.tree import SCRIPTS


def bash(line: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = f"set -euo pipefail\nsource {SCRIPTS}/lib.sh\nsource {SCRIPTS}/apt.sh\n{line}"
    return subprocess.run(["bash", "-c", program], input=textwrap.dedent(stdin), capture_output=True, text=True, check=False)


VERSIONS = [
    ("runsc version release-20260817.0\nspec: 1.1.0\n", "20260817"),
    ("runsc version 0.0~20240729.0\nspec: 1.0.2-dev", "20240729"),
    ("0.0~20221219.0-2+b3", "20221219"),
    ("(none)", "0"),
    ("", "0"),
]


def test_the_release_date_of_runsc() -> None:
    assert [(said, date) for said, date in VERSIONS if bash(f"first_date '{said}'").stdout != f"{date}\n"] == []


def test_which_runsc_is_new_enough() -> None:
    dates = {"20240729": True, "20260817": True, "20240728": False, "20221219": False, "0": False}
    assert {date: bash(f"runsc_is_new_enough {date}").returncode == 0 for date in dates} == dates


def test_a_source_of_our_own_is_closed_to_everything_but_runsc() -> None:
    own = bash("backports_pin runsc nothing-else").stdout
    assert "Package: runsc\nPin: release n=bookworm-backports\nPin-Priority: 995\n" in own
    assert "Package: *\nPin: release n=bookworm-backports\nPin-Priority: -1\n" in own


def test_an_operators_own_backports_are_not_closed() -> None:
    theirs = bash("backports_pin runsc").stdout
    assert "Package: runsc\n" in theirs
    assert "Package: *" not in theirs


def test_only_packages_that_are_missing_are_installed() -> None:
    assert bash("missing_packages dpkg no-such-package-1 bash no-such-package-2").stdout.split() == ["no-such-package-1", "no-such-package-2"]
    assert bash("missing_packages").stdout == ""


def test_a_step_that_fails_shows_its_output_and_ends_the_script() -> None:
    failed = bash("step title bash -c 'echo reason; exit 7'; echo not reached")
    assert failed.returncode == 7
    assert failed.stdout == ""
    assert "| reason\n" in failed.stderr
    assert "failed after " in failed.stderr
