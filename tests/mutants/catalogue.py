"""The mutants: defects that a careless change could bring, each with the tests that detect it.

Every file ``*.toml`` in this folder holds the mutants of one package::

    [[mutant]]
    name = "hibernation-timeout-loses-a-finished-image"
    behaviour = "A hibernation that exceeded its timeout but finished counts as done."
    file = "src/sandlot/core/lifecycle/suspend.py"
    search = '''
    if finished:
    '''
    replacement = '''
    if False:
    '''
    tests = ["tests/unit/core/lifecycle/test_suspend.py::test_name"]
    slow_tests = []

``behaviour`` is what holds without the defect. ``search`` occurs exactly once in ``file``; a line break at its start and its end does not
count. ``tests`` are run by `scripts/test`, ``slow_tests`` by `scripts/test --all` only. Code that moves takes its mutants along: a test of
tests/meta fails where one no longer applies.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect.

    Attributes:
        name: Name, unique in the catalogue.
        behaviour: What holds without the defect.
        file: Path of the changed file from the root of the repository.
        search: Text that is replaced.
        replacement: Text in its place.
        tests: Tests of `scripts/test` that detect the defect.
        slow_tests: Tests that detect it and that only `scripts/test --all` runs.
    """

    name: str
    behaviour: str
    file: str
    search: str
    replacement: str
    tests: tuple[str, ...] = ()
    slow_tests: tuple[str, ...] = ()

    def occurrences(self) -> int:
        """Return how often the text to replace occurs; a mutant applies if that is once."""
        path = ROOT / self.file
        return path.read_text(encoding="utf-8").count(self.search) if path.is_file() else 0

    def apply(self) -> str:
        """Return the contents of the file with the defect.

        Raises:
            ValueError: The text to replace does not occur exactly once.
        """
        if self.occurrences() != 1:
            raise ValueError(f"{self.name}: its search text occurs {self.occurrences()} times in {self.file}")
        return (ROOT / self.file).read_text(encoding="utf-8").replace(self.search, self.replacement)


def load() -> list[Mutant]:
    """Return all mutants, by file and in the order of the files."""
    return [_mutant(table) for path in sorted(FOLDER.glob("*.toml")) for table in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]]


def _mutant(table: dict[str, Any]) -> Mutant:
    texts = {key: table[key].strip("\n") for key in ("name", "behaviour", "file", "search", "replacement")}
    return Mutant(**texts, tests=tuple(table.get("tests", ())), slow_tests=tuple(table.get("slow_tests", ())))
