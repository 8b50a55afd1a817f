"""The scripts: every verb is there, is plain bash that parses, and is named in CONTRIBUTING.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.meta.tree import ROOT, SCRIPTS, name

VERBS = sorted(path for path in SCRIPTS.iterdir() if path.is_file() and not path.suffix)
LIBRARIES = sorted(SCRIPTS.glob("*.sh"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_scripts_are_executable_bash_that_stops_at_the_first_error() -> None:
    offenders = []
    for script in [*VERBS, ROOT / ".ci" / "run"]:
        lines = script.read_text(encoding="utf-8").splitlines()
        if not os.access(script, os.X_OK) or lines[0] != "#!/usr/bin/env bash" or "set -euo pipefail" not in lines:
            offenders.append(name(script))
    assert offenders == []


def test_bash_can_parse_all_scripts() -> None:
    scripts = [*VERBS, *LIBRARIES, ROOT / ".ci" / "run"]
    assert [name(script) for script in scripts if subprocess.run(["bash", "-n", script], check=False).returncode] == []


def test_contributing_lists_the_verbs() -> None:
    assert set(re.findall(r"^\| `scripts/(\w+)` \|", CONTRIBUTING, re.MULTILINE)) == {verb.name for verb in VERBS}


def test_ci_runs_lint_and_the_readmes_test_command_and_nothing_else() -> None:
    ran = re.findall(r"^(scripts/\w+)( [^\n]*)?$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert ran == [("scripts/lint", " &"), ("scripts/test", " --all || failed=$?")]
    assert re.search(r"^scripts/demo\b.*\nscripts/test\b", README, re.MULTILINE), "the two commands"


def test_every_marked_option_of_setup_is_in_its_help() -> None:
    script = (SCRIPTS / "setup").read_text(encoding="utf-8")
    options = set(re.findall(r"^ +(--\w+)\)", script, re.MULTILINE))
    said = subprocess.run([SCRIPTS / "setup", "--help"], check=True, capture_output=True, text=True).stdout
    assert options
    assert {option for option in options if option not in said} == set()


@pytest.mark.parametrize("lint, tests, status", [(0, 0, 0), (3, 0, 3), (0, 4, 4)])
def test_ci_fails_with_either_of_them(tmp_path: Path, lint: int, tests: int, status: int) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for verb, ends in (("lint", lint), ("test", tests)):
        script = tmp_path / "scripts" / verb
        script.write_text(f"#!/bin/sh\nexit {ends}\n", encoding="utf-8")
        script.chmod(0o755)
    assert subprocess.run([tmp_path / ".ci" / "run"], check=False).returncode == status


def test_selections_of_scripts_test(tmp_path: Path) -> None:
    """A stub in place of pytest prints its arguments."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    for stub, program in (("scripts/setup", "exit 0"), (".venv/bin/python", 'echo "$*"')):
        (tmp_path / stub).write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
        (tmp_path / stub).chmod(0o755)

    def run(*arguments: str) -> str:
        return subprocess.run([tmp_path / "scripts" / "test", *arguments], check=True, capture_output=True, text=True).stdout

    assert "-m pytest -m not soak and not slow --durations=10 -n " in run()
    assert "-m pytest -m not soak --durations=10 -n " in run("--all")
    assert run("-k", "pools").endswith(" -k pools\n")
    (tmp_path / "tests" / "security").mkdir(parents=True)
    (tmp_path / "tests" / "test_x.py").touch()
    assert "not slow" not in run("-k", "pools") + run("tests/security")
    assert " -n " in run("tests/security") + run("tests/test_x.py", "tests/test_x.py")
    assert run("tests/test_x.py::test_y", "-x") == "-m pytest -m not soak --durations=10 tests/test_x.py::test_y -x\n"
    assert "--durations=10 --pdb" in run("--pdb")
    assert run("--all", "-n", "3").endswith("--durations=10 -n 3\n")
