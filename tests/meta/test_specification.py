"""The specification and the page about security name tests that exist, and every promise is short and names one to three."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandlot.cli.bench.report import ROWS
from tests.meta.tree import ROOT

SPECIFICATION = (ROOT / "SPECIFICATION.md").read_text(encoding="utf-8")
PROMISES, _, MEASURED = SPECIFICATION.partition("## Measured")
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
# `host_files::name` or `tests/security/test_host_files.py::test_name`, with a class of tests between the two where there is one.
NAMED = re.compile(r"`([\w/.-]+)::(?:\w+::)?(\w+)`")
# The folder of the short names from this sentence to the next one, or to the end of the section.
FOLDER = re.compile(r"\bTests are functions in `([\w/]+/)`")


def sections() -> Iterator[tuple[str, str]]:
    """Yield each line of the promises with the folder that its short names mean, or an empty string."""
    folder = ""
    for line in PROMISES.splitlines():
        if line.startswith("## "):
            folder = ""
        elif found := FOLDER.search(line):
            folder = found[1]
        yield folder, line


def exists(folder: str, path: str, name: str) -> bool:
    """Return whether a test exists. Short names stand for `test_*.py` files of `folder`, or for modules of a suite that is shipped."""
    if path.endswith(".py"):
        files, function = [path], name
    elif folder:
        module = folder + path
        files, function = [re.sub(r"(\w+)$", r"test_\1.py", module), f"{module}.py"], f"test_{name}"
    else:
        return False
    sources = [(ROOT / file).read_text(encoding="utf-8") for file in files if (ROOT / file).is_file()]
    return any(re.search(rf"^\s*(async )?def {function}\(", source, re.MULTILINE) for source in sources)


def test_tests_that_are_named_exist() -> None:
    named = {(folder, *match) for folder, line in sections() for match in NAMED.findall(line)}
    named |= {("", *match) for match in NAMED.findall(SECURITY)}
    assert sorted(test for test in named if not exists(*test)) == []


def test_promises_are_short_numbered_below_their_heading_and_held_by_tests() -> None:
    wrong, heading, count, last = [], "", 0, 0
    for line in PROMISES.splitlines():
        if line.startswith("#"):
            found = re.match(r"### (\d+\.\d+) ", line)
            heading, last = found[1] if found else "", 0
        elif line.startswith("|") and line != "| # | Promise | Test |" and not set(line) <= set("|- "):
            last, count = last + 1, count + 1
            row = re.fullmatch(rf"\| {re.escape(heading)}\.{last} \| (.*) \| (.*) \|", line)
            if row is None or len(row[1]) > 160 or not 1 <= len(NAMED.findall(row[2])) <= 3:
                wrong.append(line)
    assert wrong == []
    assert count > 500


def test_promises_without_a_test_are_pending() -> None:
    pending = [line for line in SPECIFICATION.splitlines() if line.startswith("- ")]
    assert all(line.startswith("- `[pending]`") for line in pending if "pending" in line.lower())


def test_every_figure_names_the_benchmark_that_gives_it() -> None:
    for script in re.findall(r"`(scripts/bench|benchmarks/\w+\.py)[^`]*`", MEASURED):
        assert (ROOT / script).is_file()
    figures = set(re.findall(r"^\| `([^`]+)`", MEASURED, re.MULTILINE))
    assert figures == set(ROWS)
