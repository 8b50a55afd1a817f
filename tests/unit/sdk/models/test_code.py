"""What the SDK gives back: parsed, and what it derives."""

from __future__ import annotations

import base64

import pytest

from sandlot.sdk.models.code import ExceptionInfo, Execution, Result
from sandlot.sdk.models.processes import CommandResult


def test_fields_of_a_newer_service_are_ignored_and_missing_ones_have_defaults() -> None:
    execution = Execution.parse({"status": "ok", "from the future": 1})
    assert execution == Execution(status="ok")
    assert CommandResult.parse({"exit_code": 0, "new": []}) == CommandResult(0)


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
    result = Result.parse({"data": forms, "main": True, "metadata": {"w": 1}, "display_id": "d", "update": True})
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
