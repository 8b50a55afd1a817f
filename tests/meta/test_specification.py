"""The specification and the page about security name tests that exist, and every promise names one or says that it is pending."""

from __future__ import annotations

import re

from sandlot.cli.bench.report import ROWS
from tests.meta.tree import ROOT

SPECIFICATION = (ROOT / "SPECIFICATION.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/.-]+\.py)::(\w+)`")


def test_tests_that_are_named_exist() -> None:
    missing = []
    for path, name in sorted(set(NAMED.findall(SPECIFICATION + SECURITY))):
        source = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""
        if not re.search(rf"^\s*(async )?def {name}\(", source, re.MULTILINE):
            missing.append(f"{path}::{name}")
    assert missing == []


def test_every_promise_is_held_by_something_or_pending() -> None:
    lines = SPECIFICATION.partition("## Measured")[0].splitlines()
    # A table's head is the line above its ruler.
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|") and set(line) <= set("|- ")}
    rows = [line for number, line in enumerate(lines) if line.startswith("|") and not {number, number - 1} & heads]
    assert len(rows) > 40
    assert [row for row in rows if not NAMED.search(row)] == []
    pending = [line for line in SPECIFICATION.splitlines() if line.startswith("- ")]
    assert all(line.startswith("- `[pending]`") for line in pending if "pending" in line.lower())


def test_every_figure_names_the_benchmark_that_gives_it() -> None:
    measured = SPECIFICATION.partition("## Measured")[2]
    for script in re.findall(r"`(scripts/bench|benchmarks/\w+\.py)[^`]*`", measured):
        assert (ROOT / script).is_file()
    figures = set(re.findall(r"^\| `([^`]+)`", measured, re.MULTILINE))
    assert figures == set(ROWS)
