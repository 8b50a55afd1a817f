"""The mutants of tests/mutants apply to the code as it is, and name tests that exist."""

from __future__ import annotations

import ast
from collections import Counter

from tests.meta.tree import ROOT
from tests.mutants.catalogue import load

MUTANTS = load()


def test_every_mutant_applies_and_changes_a_file_that_still_parses() -> None:
    offenders = []
    for mutant in MUTANTS:
        if mutant.occurrences() != 1:
            offenders.append(f"{mutant.name}: its search text occurs {mutant.occurrences()} times in {mutant.file}")
        elif mutant.search == mutant.replacement:
            offenders.append(f"{mutant.name}: changes nothing")
        elif mutant.file.endswith(".py"):
            try:
                ast.parse(mutant.apply())
            except SyntaxError as error:
                offenders.append(f"{mutant.name}: {error}")
    assert offenders == []


def test_mutants_have_different_names_and_name_tests_that_exist() -> None:
    assert [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1] == []
    offenders = []
    for mutant in MUTANTS:
        if not (mutant.tests or mutant.slow_tests):
            offenders.append(f"{mutant.name}: names no test")
        for test in (*mutant.tests, *mutant.slow_tests):
            path, _, inside = test.partition("::")
            name = inside.partition("[")[0].partition("::")[0]  # of a class that inherits a shipped suite, the class
            source = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else ""
            if not any(f"{keyword} {name}" in source for keyword in ("def", "class")):
                offenders.append(f"{mutant.name}: {test} does not exist")
    assert offenders == []


def test_mutants_are_spread_over_the_packages() -> None:
    packages = Counter(mutant.file.split("/")[2] for mutant in MUTANTS)
    assert len(MUTANTS) >= 40
    assert {"core", "guest", "link", "drivers", "sdk", "compat"} <= set(packages)
