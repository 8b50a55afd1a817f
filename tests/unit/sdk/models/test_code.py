"""Results of code and commands."""

from __future__ import annotations

import base64

import pytest

from sandlot.model.errors import ExecutionFailedError
from sandlot.sdk.converter import structure
from sandlot.sdk.models.code import ExceptionInfo, Execution, Result
from sandlot.sdk.models.processes import CommandResult
from sandlot.sdk.models.programs import ProgramResult


def test_text_is_the_main_result() -> None:
    shown, main = Result({"text/plain": "shown"}), Result({"text/plain": "42", "text/html": "<b>42</b>"}, main=True)
    assert Execution(status="ok", results=(shown, main)).text == "42"
    assert Execution(status="ok", results=(shown,)).text is None
    assert main.formats() == ("text/plain", "text/html")
    assert main.html == "<b>42</b>"
    assert main.png is None


def test_binary_content_is_decoded_and_text_is_not() -> None:
    raw = b"\x89PNG\r\n"
    result = Result({"image/png": base64.b64encode(raw).decode(), "image/svg+xml": "<svg/>", "application/json": "[1]"})
    assert result.content() == raw
    assert result.content("image/svg+xml") == b"<svg/>"
    assert result.content("application/json") == b"[1]"
    with pytest.raises(KeyError):
        result.content("image/jpeg")


def test_the_exit_code_of_a_cell_is_that_of_a_program(subtests: pytest.Subtests) -> None:
    for status, error, code in (
        ("ok", None, 0),
        ("error", ExceptionInfo("ValueError", "x"), 1),
        ("error", ExceptionInfo("SystemExit", "3"), 3),
        ("error", ExceptionInfo("SystemExit", "-1"), 255),
        ("error", ExceptionInfo("SystemExit", "256"), 0),
        ("error", ExceptionInfo("SystemExit", ""), 0),
        ("error", ExceptionInfo("SystemExit", "None"), 0),
        ("error", ExceptionInfo("SystemExit", "a message"), 1),
        ("timeout", None, 124),
        ("killed", None, 137),
        ("error", ExceptionInfo("ExitStatus", "3"), 3),
        ("died", None, 137),
        ("oom", None, 137),
        ("aborted", None, 130),
        ("of a later version", None, 137),
    ):
        with subtests.test(status=status, error=error, code=code):
            assert Execution(status=status, error=error).exit_code == code


def test_each_form_has_its_name() -> None:
    forms = {"application/javascript": "1", "application/json": '{"a": 1}', "text/markdown": "# a", "text/latex": "$a$", "application/pdf": "JQ=="}
    result = structure(Result, {"data": forms, "main": True, "metadata": {"w": 1}, "display_id": "d", "update": True})
    assert (result.javascript, result.json, result.markdown, result.latex, result.pdf) == ("1", {"a": 1}, "# a", "$a$", "JQ==")
    assert (result.is_main, result.metadata, result.display_id, result.update) == (True, {"w": 1}, "d", True)
    assert Result({"application/json": "{"}).json == "{", "what is no JSON is shown"
    assert Result({}).json is None


def test_a_notebook_shows_a_result_as_it_is() -> None:
    result = Result({"text/plain": "a", "application/json": "[1]", "image/png": "iVBORw=="}, metadata={"image/png": {"width": 3}})
    data, metadata = result._repr_mimebundle_()
    assert data == {"text/plain": "a", "application/json": [1], "image/png": "iVBORw=="}
    assert metadata == {"image/png": {"width": 3}}
    assert result._repr_mimebundle_(include=["text/plain"])[0] == {"text/plain": "a"}
    assert set(result._repr_mimebundle_(exclude=["text/plain"])[0]) == {"application/json", "image/png"}


@pytest.mark.parametrize(
    "result, why",
    [
        (CommandResult(3), "3"),
        (Execution("error", error=ExceptionInfo("KeyError", "'x'")), "KeyError"),
        (Execution("timeout"), "timeout"),
        (ProgramResult("wrong_answer"), "wrong_answer"),
    ],
)
def test_check_raises_the_failed_result(result: CommandResult | Execution | ProgramResult, why: str) -> None:
    with pytest.raises(ExecutionFailedError, match=why) as caught:
        result.check()
    assert caught.value.result is result
    assert caught.value.code == "execution_failed"


def test_check_returns_a_result_that_is_ok() -> None:
    for result in (CommandResult(0), Execution("ok"), ProgramResult("completed")):
        assert result.check() is result


def test_timed_out_runs_have_exit_code_124() -> None:
    assert (Execution("timeout").exit_code, Execution("timeout").timed_out, Execution("error").timed_out) == (124, True, False)


def test_repr_is_short() -> None:
    assert repr(CommandResult(0, "hello\n")) == "CommandResult(exit_code=0, stdout='hello\\n', stderr='')"
    assert len(repr(Execution("ok", "x" * 2_000_000, "y" * 2_000_000))) < 300
