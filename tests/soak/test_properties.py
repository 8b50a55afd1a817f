"""Property tests, with random examples. All other runs use the same examples each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.soak


@pytest.mark.timeout(1800)
def test_properties_hold_for_random_examples() -> None:
    selection = ("-m", "hypothesis and not soak", "--hypothesis-profile", "random", "-q", "tests/unit", "tests/fuzz")

    done = subprocess.run((sys.executable, "-m", "pytest", *selection), cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 0, done.stdout[-10_000:]
