"""Graded programs in each language: right programs pass, wrong ones do not, and each way to fail has a status of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandlot.model.languages import LANGUAGES, Language, language_of
from sandlot.sdk.models.programs import ProgramResult
from tests.support.corpus import ENDINGS, problems, suffix
from tests.support.localservice import LocalService, local_service

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

TEMPLATE = "languages"
PROBLEMS = problems()
EACH_LANGUAGE = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)

NOT_COMPILED = {
    "python": "print('before')\nif True print('after')",
    "javascript": "console.log('before');\nconst const = 1;",
    "typescript": "const answer: number = ;",
    "bash": "if true; then echo before",
    "java": 'public class Main { public static void main(String[] args) { int answer = "42"; } }',
    "cpp": '#include <string>\nint main() { std::string answer = 42; return answer + "x"; }',
    "c": "int main(void) { return missing; }",
    "go": "package main\n\nfunc main() { answer := 42 }",
    "rust": "fn main() { let text = String::new(); drop(text); drop(text); }",
    "ruby": "puts 'before'\ndef missing_end",
    "php": "<?php\necho 'before'\necho 'after';",
    "r": "cat('before')\nif (TRUE {",
    "perl": "use strict;\nprint $undeclared;",
}
"""Language -> a program that its compiler, or the syntax check of its interpreter, refuses."""


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(isolation="gvisor") as started:
        yield started


@EACH_LANGUAGE
def test_right_programs_pass_and_mutants_do_not(service: LocalService, language: Language) -> None:
    checked = bool(language.type_check_argv)
    right = [each.program(language, each.solution(language), template=TEMPLATE, check_types=checked) for each in PROBLEMS]
    mutants = [each.program(language, each.mutant(language), template=TEMPLATE) for each in PROBLEMS]
    done = [item.unwrap() for item in service.client.programs.run_batch([*right, *mutants], concurrency=2)]
    for problem, result in zip(PROBLEMS, done[: len(PROBLEMS)], strict=True):
        assert [case.status for case in result.cases] == ["completed"] * len(problem.cases), (problem.name, result)
        assert result.status == "completed"
    for problem, result in zip(PROBLEMS, done[len(PROBLEMS) :], strict=True):
        assert result.status == "wrong_answer", (problem.name, result)
        assert {case.status for case in result.cases} <= {"completed", "wrong_answer"}


@EACH_LANGUAGE
def test_each_ending_has_its_status_and_the_next_case_passes(service: LocalService, language: Language) -> None:
    endings = [
        ("crash", "runtime_error"),
        ("spin", "timeout"),
        ("eat", "memory_exceeded"),
        # The shell leaves a process that holds a lock. The next command would not get the lock.
        ("sh setsid flock /tmp/lock sleep 1000 >/dev/null 2>&1 & while flock -n /tmp/lock true; do sleep 0.02; done", "completed"),
        ("sh flock -n /tmp/lock true", "completed"),
    ]
    expected = [status for _, ending in endings for status in (ending, "completed")]
    result = run_cases(service, language, [stdin for command, _ in endings for stdin in (command, "ok")])
    assert [case.status for case in result.cases] == expected, result.cases
    assert result.status == "runtime_error"


def test_a_heap_larger_than_the_sandbox_ends_one_case(service: LocalService) -> None:
    result = run_cases(service, language_of("java"), ["eat", "ok"], envs={"JAVA_TOOL_OPTIONS": "-Xmx4g"})
    assert [case.status for case in result.cases] == ["memory_exceeded", "completed"], result.cases
    assert "a process was killed" in result.cases[0].detail


def test_program_with_thousands_of_class_files_passes_all_cases(service: LocalService) -> None:
    classes = "\n".join(f"class {'Long' * 58}{number} {{}}" for number in range(5000))
    code = (
        f'public class Main {{ public static void main(String[] args) {{ System.out.println(new java.io.File("..").list().length); }} }}\n{classes}'
    )
    result = service.client.programs.run("java", code, cases=[{"stdin": ""}] * 3, template=TEMPLATE, memory="2G", timeout=20)
    assert [case.status for case in result.cases] == ["completed"] * 3, result
    assert all(int(case.stdout) > 5000 for case in result.cases)


@EACH_LANGUAGE
def test_compile_error_comes_before_all_cases(service: LocalService, language: Language) -> None:
    result = service.client.programs.run(language.name, NOT_COMPILED[language.name], cases=[{"stdin": ""}, {"stdin": "x"}], template=TEMPLATE)
    assert (result.status, result.fault, result.cases) == ("compile_error", "code", ()), result
    assert result.compile_output


def test_type_error_is_a_compile_error_on_request(service: LocalService) -> None:
    code = "const answer: number = 'text';\nconsole.log(answer);"
    results = [
        service.client.programs.run("typescript", code, expected_output="text", check_types=checked, template=TEMPLATE) for checked in (False, True)
    ]
    assert [each.status for each in results] == ["completed", "compile_error"]
    assert "TS2322" in results[1].compile_output


def run_cases(service: LocalService, language: Language, lines: list[str], **options: Any) -> ProgramResult:  # noqa: ANN401 - ProgramOptions
    code = (ENDINGS / f"program{suffix(language)}").read_text(encoding="utf-8")
    return service.client.programs.run(
        language.name,
        code,
        cases=[{"stdin": f"{line}\n", "expected_output": "done"} for line in lines],
        template=TEMPLATE,
        memory="512M",
        timeout=8,
        **options,
    )
