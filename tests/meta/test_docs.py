"""The documentation site builds without warnings, which include broken links, and its search finds pages."""

from __future__ import annotations

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
