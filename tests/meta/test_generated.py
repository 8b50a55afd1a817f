"""What is made by a program is what that program makes now. Every ``scripts/*.py`` makes files, and with ``--check`` only compares them."""

from __future__ import annotations

import subprocess
import sys

from tests.meta.tree import ROOT, SCRIPTS


def test_generated_files_are_fresh() -> None:
    generators = sorted(path.name for path in SCRIPTS.glob("*.py"))
    assert "unasync.py" in generators, "the synchronous SDK is made from the asynchronous one"
    stale = {}
    for generator in generators:
        checked = subprocess.run([sys.executable, SCRIPTS / generator, "--check"], cwd=ROOT, check=False, capture_output=True, text=True)
        if checked.returncode != 0:
            stale[generator] = checked.stdout + checked.stderr
    assert stale == {}
