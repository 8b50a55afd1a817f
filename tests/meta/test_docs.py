"""The documentation site builds without warnings, broken links included, and its search finds pages. Guides have one form; few blocks do not run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.meta.tree import ROOT
from tests.support.documented import Page


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


def test_every_extra_is_in_the_guide_to_the_installation() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    guide = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    first_cells = re.findall(r"^\| (`.+?) \|", guide, re.MULTILINE)
    assert {name for cell in first_cells for name in re.findall(r"`([a-z-]+)`", cell)} >= extras.keys()


def test_few_blocks_are_not_run_and_each_has_a_reason() -> None:
    marked = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        page = Page(path)
        reasons = [block.reason for block in page.blocks() if block.reason is not None]
        assert path.read_text(encoding="utf-8").count("<!-- no-run") == len(reasons), f"{page.name}: a mark has no reason or is not above a block"
        marked += [f"{page.name}: {reason}" for reason in reasons]
    assert len(marked) <= 10, marked
