"""Generated files are what their generators write now. Each generator writes files, and with ``--check`` only compares them."""

from __future__ import annotations

import pytest

from tests.meta.tree import SCRIPTS, script

GENERATORS = sorted({path.stem for path in SCRIPTS.glob("*.py")} - {"runsc"})  # runsc.py is a part of scripts/setup


def test_the_synchronous_sdk_has_a_generator() -> None:
    assert "unasync" in GENERATORS


@pytest.mark.parametrize("generator", GENERATORS)
def test_generated_files_are_fresh(generator: str, capfd: pytest.CaptureFixture[str]) -> None:
    """In this process, which has imported most of the project already."""
    status = script(generator).main(["--check"])
    assert (status, capfd.readouterr().out) == (0, "")
