"""The scripts: every verb is there, is plain bash that parses, and is named in the README."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.tree import ROOT, SCRIPTS, name
from tests.support.parts import parts

VERBS = sorted(path for path in SCRIPTS.iterdir() if path.is_file() and not path.suffix)
LIBRARIES = sorted(SCRIPTS.glob("*.sh"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("script", [*VERBS, ROOT / ".ci" / "run"], ids=name)
def test_a_verb_is_executable_and_stops_at_the_first_error(script: Path) -> None:
    lines = script.read_text(encoding="utf-8").splitlines()
    assert os.access(script, os.X_OK)
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines


@pytest.mark.parametrize("script", [*VERBS, *LIBRARIES, ROOT / ".ci" / "run"], ids=name)
def test_bash_can_parse_it(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)


def test_the_readme_lists_the_verbs() -> None:
    assert set(re.findall(r"^\| `scripts/(\w+)` \|", README, re.MULTILINE)) == {verb.name for verb in VERBS}


def test_ci_runs_lint_and_the_readmes_test_command_and_nothing_else() -> None:
    ran = re.findall(r"^(scripts/\w+)( [^\n]*)?$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert ran == [("scripts/lint", " &"), ("scripts/test", " || failed=$?")]
    assert re.search(r"^scripts/demo\b.*\nscripts/test\b", README, re.MULTILINE), "the two commands"


def test_every_marked_option_of_setup_is_in_its_help() -> None:
    script = (SCRIPTS / "setup").read_text(encoding="utf-8")
    options = set(re.findall(r"^ +(--\w+)\)", script, re.MULTILINE))
    said = subprocess.run([SCRIPTS / "setup", "--help"], check=True, capture_output=True, text=True).stdout
    assert options
    assert {option for option in options if option not in said} == set()


def test_every_test_is_in_one_of_the_parts_that_run_side_by_side() -> None:
    most, *others = parts().values()
    named = [folder for folders in others for folder in folders]
    assert all((ROOT / folder).is_dir() for folder in named)
    assert not any(one != other and one.startswith(f"{other}/") for one in named for other in named)
    assert most == [f"--ignore={folder}" for folder in named]


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


@pytest.mark.parametrize("second, status", [("assert True", 0), ("assert False", 1)], ids=["both pass", "one fails"])
def test_parts_fail_with_either_of_them_and_all_are_told(tmp_path: Path, second: str, status: int) -> None:
    told = {}
    for part, statement in (("one", "assert True"), ("two", second)):
        (tmp_path / f"test_{part}.py").write_text(f"from __future__ import annotations\n\ndef test_it():\n    {statement}\n", encoding="utf-8")
        told[part] = ["--rootdir", str(tmp_path), "-c", os.devnull, str(tmp_path / f"test_{part}.py")]
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.support import parts; sys.exit(parts.run({told!r}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert {line.split(" | ")[0].strip() for line in lines if "%]" in line} == {"one", "two"}
    assert len([line for line in lines if " in " in line and line.startswith("=")]) == 2
    assert lines[-1] == ("failed: two (exit status 1)" if status else "all passed")
