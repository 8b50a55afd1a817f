"""The specification names tests that exist, and every promise names one or says that it is pending."""

from __future__ import annotations

import re

import pytest

from tests.meta.tree import ROOT

SPECIFICATION = (ROOT / "SPECIFICATION.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/.-]+\.py)::(\w+)`")


@pytest.mark.parametrize("path,name", sorted(set(NAMED.findall(SPECIFICATION))))
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^\s*(async )?def {name}\(", source, re.MULTILINE), f"{path} has no {name}"


def test_every_promise_is_held_by_something_or_pending() -> None:
    rows = [line for line in SPECIFICATION.splitlines() if line.startswith("|") and not set(line) <= set("|- ")]
    promises = [row for row in rows if not row.endswith("| held by |")]
    assert len(promises) > 30
    figures = [row for row in promises if re.search(r"\| *[\d.,]+ *\|", row)]
    assert not [row for row in promises if not NAMED.search(row) and row not in figures]
    pending = [line for line in SPECIFICATION.splitlines() if line.startswith("- ")]
    assert all(line.startswith("- `[pending]`") for line in pending if "pending" in line.lower())
