"""Failures as one shape, whatever failed, and nothing in it that is not the client's business."""

from __future__ import annotations

import json

import pytest

from sandlot.model.errors import CODES, ErrorCode, class_of
from sandlot.web.errors import MEDIA_TYPE, MOST_FIELDS, answer, defect, validation


@pytest.mark.parametrize("code", ErrorCode)
def test_every_code_has_its_answer(code: ErrorCode) -> None:
    error = class_of(code)("What happened.", code=code, hint="What to do.", fields={"retry_after_s": 2, "path": "/x"})
    response = answer(error, "abc")
    body = json.loads(bytes(response.body))
    assert response.status_code == body["status"] == CODES[code][0]
    assert response.media_type == MEDIA_TYPE
    assert (body["detail"], body["hint"], body["code"], body["request_id"]) == ("What happened.", "What to do.", code, "abc")
    assert body["retryable"] is CODES[code][1]
    assert body["fields"] == {"retry_after_s": 2, "path": "/x"}
    assert response.headers["retry-after"] == "2"
    assert ("www-authenticate" in response.headers) == (response.status_code == 401)


def test_a_header_is_never_a_text_that_somebody_else_chose() -> None:
    forged = class_of(ErrorCode.BUSY)("busy", code=ErrorCode.BUSY, fields={"retry_after_s": "1\r\nSet-Cookie: a=b"})
    assert "retry-after" not in answer(forged, "x").headers


def test_text_that_utf_8_cannot_carry_is_still_an_answer() -> None:
    body = answer(class_of(ErrorCode.NOT_FOUND)("\ud800", code=ErrorCode.NOT_FOUND), "x").body
    assert json.loads(bytes(body))["detail"] == "?"


def test_validation_names_fields_and_repeats_no_value() -> None:
    error = validation(
        [
            {"type": "int_type", "loc": ("body", "limits", "pids"), "msg": "Input should be a valid integer", "input": "secret"},
            {"type": "extra_forbidden", "loc": ("body", "x"), "msg": "no", "input": "secret"},
            {"type": "value_error", "loc": ("body",), "msg": "Value error, Give exactly one.", "input": "secret"},
        ]
    )
    assert error.fields == {"limits.pids": "Input should be a valid integer", "x": "There is no such field.", "body": "Give exactly one."}
    assert "secret" not in str(error)


def test_validation_of_what_is_no_json() -> None:
    error = validation([{"type": "json_invalid", "loc": ("body", 7), "msg": "x", "ctx": {"error": "Expecting value"}}])
    assert error.message == "The body is not JSON."
    assert error.fields == {"body": "Expecting value at character 7"}


def test_a_great_many_errors_make_no_great_answer() -> None:
    error = validation([{"type": "missing", "loc": ("body", str(n) + "f" * 1000), "msg": "x"} for n in range(100)])
    assert len(error.message) < 400
    assert len(error.hint) < 2000
    assert len(error.fields) == MOST_FIELDS


def test_a_defect_tells_nothing() -> None:
    assert defect().code is ErrorCode.INTERNAL


@pytest.mark.parametrize("code", [code for code in ErrorCode if CODES[code][1]])
def test_whoever_may_ask_again_is_told_when(code: ErrorCode) -> None:
    assert int(answer(class_of(code)("Not now.", code=code), "x").headers["retry-after"]) > 0


@pytest.mark.parametrize("code", [code for code in ErrorCode if not CODES[code][1]])
def test_whoever_need_not_ask_again_is_not(code: ErrorCode) -> None:
    assert "retry-after" not in answer(class_of(code)("No.", code=code), "x").headers
