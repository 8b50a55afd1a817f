"""``sandlot demo``: the file that gets the chart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.cli.demo.command import _target


def test_chart_goes_to_the_output_option_then_the_state_directory_then_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert _target(Path("new/chart.png"), tmp_path / "state") == tmp_path / "new" / "chart.png"
    assert (tmp_path / "new").is_dir()
    assert _target(None, tmp_path / "state") == tmp_path / "state" / "demo.png"
    assert _target(None, None) == tmp_path / "demo.png"
