"""What a benchmark comes to: percentiles, rows, and what a person and a program read."""

from __future__ import annotations

import json
import re

import pytest

from sandlot.cli.bench.report import COLUMNS, ROWS, Samples, percentile, rows, table
from tests.meta.tree import ROOT

KEYS = [
    "noop",
    "stat",
    "create_cold",
    "claim_run_code",
    "claim_command",
    "tti_sequential",
    "tti_staggered",
    "tti_burst",
    "restore_base",
    "restore_code",
    "run_code",
    "command",
    "kernel_new",
    "pause_resume",
    "snapshot",
    "fork_1",
    "fork_10",
    "fork_parent_stop",
    "hibernate",
    "wake",
    "install_pandas",
    "upload_mb_s",
    "download_mb_s",
    "creates_per_s",
    "idle_mib_base",
    "idle_mib_code",
    "idle_cpu_pct",
]


def test_keys_of_the_report_are_stable() -> None:
    assert list(ROWS) == KEYS


def test_the_page_describes_every_row_and_its_yardstick() -> None:
    page = (ROOT / "docs" / "how-to" / "benchmark.md").read_text(encoding="utf-8")
    described = dict(re.findall(r"^\| `(\w+)` \| .+? \| (.+?) \|$", page, re.MULTILINE))
    assert list(described) == KEYS
    assert [key for key, kind in ROWS.items() if kind.yardstick is not None and described[key] in {"", "-"}] == []


def test_a_percentile_lies_between_the_two_nearest(subtests: pytest.Subtests) -> None:
    for percent, value in ((0, 10.0), (50, 25.0), (100, 40.0), (25, 17.5), (99, 39.7)):
        with subtests.test(percent=percent, value=value):
            assert percentile([40.0, 10.0, 30.0, 20.0], percent) == pytest.approx(value)


def test_a_row_has_its_figures_its_yardsticks_median_and_its_parts() -> None:
    samples = Samples(values=[1.0, 3.0, 2.0], native=[0.5, 0.1, 0.3], parts={"b": [1.0], "a": [2.0], "none": []}, failed=2)
    row = rows({"command": samples})["command"]
    assert {name: row[name] for name in ("p50_ms", "n", "yardstick_ms", "unit", "failed")} == {
        "p50_ms": 2.0,
        "n": 3,
        "yardstick_ms": 0.3,
        "unit": "ms",
        "failed": 2,
    }
    assert list(row["parts"]) == ["a", "b"]
    assert "why" not in row
    assert json.loads(json.dumps(row)) == row


def test_a_row_without_values_says_why_and_holds_no_figure() -> None:
    row = rows({"fork_1": Samples(why="A container has no snapshot.", native=[1.0])})["fork_1"]
    assert row["why"] == "A container has no snapshot."
    assert [row[f"p{percent}_ms"] for percent in (50, 95, 99)] == [None] * 3
    assert row["n"] == 0
    lines = list(table({"fork_1": row}))
    assert [(line[0], line[-1]) for line in lines] == [("fork_1", "A container has no snapshot.")]


def test_a_persons_table_compares_with_the_native_thing_so_that_above_one_is_worse() -> None:
    found = rows({"upload_mb_s": Samples(values=[50.0], native=[100.0]), "noop": Samples(values=[2.0], native=[1.0], parts={"part": [1.0]})})
    lines = {line[0].strip(): line for line in table(found)}
    assert list(lines) == ["noop", "part", "upload_mb_s"]
    assert {len(line) for line in lines.values()} == {len(COLUMNS)}
    assert lines["upload_mb_s"][COLUMNS.index("RATIO")] == lines["noop"][COLUMNS.index("RATIO")] == "2"
