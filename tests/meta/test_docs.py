"""The documentation site builds without warnings, which include broken links, and its search finds pages. Guides have one form."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.meta.tree import ROOT


@pytest.mark.slow
def test_site_builds_without_warnings_and_with_search(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "sphinx", "--quiet", "--nitpicky", "--fail-on-warning", "--keep-going", "-c", "docs", "-b", "html"]
    built = subprocess.run([*argv, "-d", str(tmp_path / "cache"), ".", str(tmp_path / "site")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (built.returncode, built.stderr) == (0, "")
    index = (tmp_path / "site" / "searchindex.js").read_text(encoding="utf-8")
    assert "docs/how-to/warm-pools" in index
    assert '"hibern"' in index or "hibern:" in index  # words are indexed by their stem


GUIDES = sorted(page for page in (ROOT / "docs" / "how-to").glob("*.md") if not page.stem.startswith(("move-from-", "write-a-")))
"""Guides to a task of a user or an operator."""


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guide_ends_with_problems_and_their_solutions(page: Path) -> None:
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[-1] == "Solve problems"
    assert len(headings) > 1
