"""The programs of the README run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.environ import clean_environ
from tests.support.localservice import LocalService

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PROGRAMS = {
    heading: program
    for heading, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    for program in re.findall(r"^```python\n(.*?)^```", body, re.MULTILINE | re.DOTALL)
}
SAY = {
    "A first program": r"6\n.*Linux .*",
    "Pause, hibernate, snapshot, fork": r"45\n\n\['0\\n', '45\\n', '90\\n'\]\n45\n\n",
}
"""Output of each program, as a regular expression."""


def test_every_program_of_the_readme_is_run() -> None:
    assert set(PROGRAMS) == set(SAY)


@pytest.mark.parametrize("heading", ["A first program", pytest.param("Pause, hibernate, snapshot, fork", marks=pytest.mark.slow)])
def test_program_of_the_readme_prints_its_output_and_leaves_nothing(service: LocalService, heading: str) -> None:
    env = clean_environ() | {"SANDLOT_DATA_DIR": str(service.data_dir)}
    done = subprocess.run([sys.executable, "-c", PROGRAMS[heading]], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(SAY[heading], done.stdout, re.DOTALL), done.stdout
    assert service.client.sandboxes.list() == []
    assert service.client.snapshots.list() == []
