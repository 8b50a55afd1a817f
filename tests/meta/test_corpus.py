"""The corpus of programs (``tests/soak/corpus``) is complete."""

from __future__ import annotations

import pytest

from sandlot.model.languages import LANGUAGES, Language
from tests.support.corpus import CORPUS, ENDINGS, Problem, problems, suffix

PROBLEMS = problems()


def test_there_are_ten_problems_with_several_cases() -> None:
    assert len(PROBLEMS) == 10
    assert all(len(problem.cases) >= 3 for problem in PROBLEMS)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_each_language_has_a_solution_and_a_mutation(problem: Problem) -> None:
    for language in LANGUAGES:
        assert problem.mutant(language) != problem.solution(language)
    names = {"problem.toml", *(f"solution{suffix(language)}" for language in LANGUAGES)}
    assert {path.name for path in (CORPUS / problem.name).iterdir()} == names


@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
def test_each_language_has_a_program_with_several_endings(language: Language) -> None:
    assert (ENDINGS / f"program{suffix(language)}").is_file()
