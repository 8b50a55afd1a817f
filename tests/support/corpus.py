"""Corpus of programs for tests of grading: problems with cases, a solution in each language, and a mutation that makes each solution wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sandlot.model.languages import Language
from sandlot.sdk.models.programs import Case, Program

CORPUS = Path(__file__).parents[1] / "soak" / "corpus"
ENDINGS = CORPUS / "endings"
"""Programs that read a command from standard input: ``ok``, ``crash``, ``spin``, ``eat`` (memory without end), or ``sh`` and a shell command."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the corpus.

    Args:
        name: Name of the problem and of its folder.
        options: ``comparison`` and ``tolerance`` of the problem, if it does not have the defaults.
        cases: Inputs and expected outputs.
        mutations: Language -> text that occurs once in the solution, and the text to replace it; ``default`` applies to all other languages.
    """

    name: str
    options: Mapping[str, Any]
    cases: Sequence[Case]
    mutations: Mapping[str, Sequence[str]]

    def solution(self, language: Language) -> str:
        """Return a program that solves the problem."""
        return (CORPUS / self.name / f"solution{suffix(language)}").read_text(encoding="utf-8")

    def mutant(self, language: Language) -> str:
        """Return a program that runs to its end, but gives a wrong answer in at least one case."""
        search, replacement = self.mutations.get(language.name) or self.mutations["default"]
        code = self.solution(language)
        assert code.count(search) == 1, (self.name, language.name, search)
        return code.replace(search, replacement)

    def program(self, language: Language, code: str, **options: Any) -> Program:  # noqa: ANN401 - ProgramOptions
        """Return the program of a batch that runs all cases."""
        return cast("Program", {"language": language.name, "code": code, "cases": self.cases, **self.options, **options})


def suffix(language: Language) -> str:
    """Return the ending of the files with programs of a language."""
    return Path(language.filename).suffix


def problems() -> list[Problem]:
    """Return all problems of the corpus."""
    return [_read(path) for path in sorted(CORPUS.glob("*/problem.toml"))]


def _read(path: Path) -> Problem:
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    options: dict[str, Any] = {name: found[name] for name in ("comparison", "tolerance") if name in found}
    cases = [cast("Case", {**case, "expected_output": _text(case["expected_output"])}) for case in found["cases"]]
    return Problem(path.parent.name, options, cases, found["mutations"])


def _text(expected: str | list[tuple[str, int]]) -> str:
    """Return an expected output. Long outputs are lists of texts and the number of their repetitions."""
    return expected if isinstance(expected, str) else "".join(text * count for text, count in expected)
