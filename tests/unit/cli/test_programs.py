"""``sandlot grade``: what it sends, what it shows, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandlot.cli.main import dispatch
from tests.unit.sdk.scripted import Reply, Script

RESULT = {"status": "completed", "language": "python", "stdout": "42\n", "stderr": "oops\n", "exit_code": 0, "signal": None, "duration_s": 0.5}
RESULT |= {"cpu_s": 0.25, "peak_bytes": 4096, "detail": "", "execution": "0123"}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "double.py"
    path.write_text("print(int(input()) * 2)")
    return path


def done(**more: Any) -> Reply:  # noqa: ANN401 - JSON
    line = json.dumps({"index": 0, "result": {**RESULT, **more}, "error": None}).encode() + b"\n"
    return Reply(pieces=[line], headers={"Content-Type": "application/x-ndjson"})


def test_what_is_given_is_sent_and_what_it_wrote_is_shown(there: Script, program: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there.say(done())
    (program.parent / "in").write_text("21")
    (program.parent / "out").write_text("42")
    options = ["--stdin", str(program.parent / "in"), "--expect", str(program.parent / "out"), "--comparison", "numeric", "--tolerance", "0.5"]
    assert dispatch(["grade", str(program), *options, "--timeout", "5", "--memory", "64M", "--template", "base"]) == 0
    assert capfd.readouterr() == ("42\n", "oops\n")
    assert there.seen[0].json()["items"] == [
        {
            "language": "python",
            "code": "print(int(input()) * 2)",
            "stdin": "21",
            "timeout": 5,
            "expected_output": "42",
            "comparison": "numeric",
            "tolerance": 0.5,
            "limits": {"memory_bytes": 64 << 20},
            "template": "base",
        }
    ]


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """A directory with three cases."""
    folder = tmp_path / "cases"
    folder.mkdir()
    for name, stdin, suffix, expected in (("10", "5", ".out", "10"), ("9", "2", ".ans", "4"), ("sample", "1", ".out", "2")):
        (folder / f"{name}.in").write_text(stdin)
        (folder / f"{name}{suffix}").write_text(expected)
    (folder / "notes.txt").write_text("no case")
    return folder


def test_cases_of_a_directory_are_sent_in_the_order_of_their_numbers_and_their_verdicts_are_shown(
    there: Script, program: Path, cases: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    results = [RESULT, {**RESULT, "status": "timeout", "exit_code": 124, "peak_bytes": None, "detail": "It was killed."}, RESULT]
    there.say(done(status="timeout", exit_code=124, cases=results))
    assert dispatch(["grade", str(program), "--cases", str(cases)]) == 124
    assert there.seen[0].json()["items"][0]["cases"] == [
        {"stdin": "2", "expected_output": "4"},
        {"stdin": "5", "expected_output": "10"},
        {"stdin": "1", "expected_output": "2"},
    ]
    assert [line.split(maxsplit=5) for line in capfd.readouterr().out.splitlines()] == [
        ["CASE", "STATUS", "TIME", "CPU", "MEMORY", "DETAIL"],
        ["9", "completed", "0.50s", "0.25s", "4K", "-"],
        ["10", "timeout", "0.50s", "0.25s", "-", "It was killed."],
        ["sample", "completed", "0.50s", "0.25s", "4K", "-"],
    ]


def test_cases_without_inputs_or_without_an_expected_output_are_refused(program: Path, cases: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (cases / "sample.out").unlink()
    assert dispatch(["grade", str(program), "--cases", str(cases)]) == 125
    assert "sample.out" in capfd.readouterr().err
    for path in cases.glob("*.in"):
        path.unlink()
    assert dispatch(["grade", str(program), "--cases", str(cases)]) == 125
    assert "NAME.in" in capfd.readouterr().err
    assert dispatch(["grade", str(program), "--cases", str(cases), "--expect", str(program)]) == 125
    assert "--expect" in capfd.readouterr().err


def test_compile_error_of_a_program_with_cases_is_shown_as_that_of_others(
    there: Script, program: Path, cases: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    there.say(done(status="compile_error", exit_code=1, stdout="", cases=[]))
    assert dispatch(["grade", str(program), "--cases", str(cases)]) == 1
    assert capfd.readouterr() == ("", "oops\nsandlot: compile error\n")


def test_languages_are_listed_with_their_versions_and_templates(there: Script, capsys: pytest.CaptureFixture[str]) -> None:
    listed = [
        {"name": "python", "aliases": ["py"], "extensions": [".py"], "template": "code-interpreter", "version": "3.11.2"},
        {"name": "go", "aliases": ["golang"], "extensions": [".go"], "template": None, "version": None},
    ]
    there.say(lambda _: Reply(200, {"languages": listed}))
    assert dispatch(["languages"]) == 0
    assert there.seen[-1].path == "/v1/programs/languages"
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["LANGUAGE", "VERSION", "TEMPLATE", "FILES", "ALIASES"],
        ["python", "3.11.2", "code-interpreter", ".py", "py"],
        ["go", "-", "-", ".go", "golang"],
    ]
    assert dispatch(["languages", "--json"]) == 0
    assert [each["version"] for each in json.loads(capsys.readouterr().out)] == ["3.11.2", None]


def test_what_became_of_it_is_said_and_is_the_exit_status(
    there: Script, program: Path, capfd: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for told, status, said in (
        ({"status": "wrong_answer"}, 1, "sandlot: wrong answer\n"),
        ({"status": "runtime_error", "exit_code": 3}, 3, "sandlot: runtime error\n"),
        ({"status": "timeout", "exit_code": 124, "detail": "It was killed."}, 124, "sandlot: timeout: It was killed.\n"),
        ({"status": "memory_exceeded", "exit_code": 137}, 137, "sandlot: memory exceeded\n"),
    ):
        with subtests.test(told=told, status=status, said=said):
            there.say(done(**told))
            assert dispatch(["grade", str(program)]) == status
            assert capfd.readouterr() == ("42\n", f"oops\n{said}")


def test_a_language_is_told_by_the_ending_or_by_name(there: Script, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there.say(done())
    for name, options, language in (("a.sh", [], "bash"), ("a.JS", [], "javascript"), ("a.txt", ["--language", "bash"], "bash")):
        (tmp_path / name).write_text("")
        assert dispatch(["grade", str(tmp_path / name), *options]) == 0
        assert there.seen[-1].json()["items"][0]["language"] == language
    assert dispatch(["grade", str(tmp_path / "a.txt")]) == 125
    assert "--language" in capfd.readouterr().err


def test_json_has_the_fault_class(there: Script, program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there.say(done(status="memory_exceeded", fault="limit", exit_code=137))
    assert dispatch(["grade", str(program), "--json"]) == 137
    assert json.loads(capsys.readouterr().out)["fault"] == "limit"
