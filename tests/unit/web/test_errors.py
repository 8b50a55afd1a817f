"""Problem documents: every error has the same form, and contains nothing that a client must not see."""

from __future__ import annotations

import json

from sandlot.model.errors import CODES, ErrorCode, error_class
from sandlot.web.errors import MAX_FIELDS, MEDIA_TYPE, problem_response, validation_error


def test_every_code_has_its_response() -> None:
    for code, (status, is_retryable) in CODES.items():
        error = error_class(code)("What happened.", code=code, hint="What to do.", fields={"retry_after_s": 2, "path": "/x"})
        response = problem_response(error, "abc")
        body = json.loads(bytes(response.body))
        assert response.status_code == body["status"] == status, code
        assert response.media_type == MEDIA_TYPE
        assert (body["detail"], body["hint"], body["code"], body["request_id"]) == ("What happened.", "What to do.", code, "abc")
        assert body["retryable"] is is_retryable, code
        assert body["fields"] == {"retry_after_s": 2, "path": "/x"}
        assert response.headers["retry-after"] == "2"
        assert ("www-authenticate" in response.headers) == (status == 401), code
    assert CODES.keys() == set(ErrorCode)


def test_no_header_holds_text_that_a_client_chose() -> None:
    forged = error_class(ErrorCode.BUSY)("busy", code=ErrorCode.BUSY, fields={"retry_after_s": "1\r\nSet-Cookie: a=b"})
    assert "retry-after" not in problem_response(forged, "x").headers


def test_text_that_utf_8_cannot_encode_is_replaced() -> None:
    body = problem_response(error_class(ErrorCode.NOT_FOUND)("\ud800", code=ErrorCode.NOT_FOUND), "x").body
    assert json.loads(bytes(body))["detail"] == "?"


def test_validation_names_fields_and_repeats_no_value() -> None:
    error = validation_error(
        [
            {"type": "int_type", "loc": ("body", "limits", "pids"), "msg": "Input should be a valid integer", "input": "secret"},
            {"type": "extra_forbidden", "loc": ("body", "x"), "msg": "no", "input": "secret"},
            {"type": "value_error", "loc": ("body",), "msg": "Value error, Give exactly one.", "input": "secret"},
        ]
    )
    assert error.fields == {"limits.pids": "Input should be a valid integer", "x": "There is no such field.", "body": "Give exactly one."}
    assert "secret" not in str(error)


def test_many_errors_make_a_short_response() -> None:
    error = validation_error([{"type": "missing", "loc": ("body", str(n) + "f" * 1000), "msg": "x"} for n in range(100)])
    assert len(error.message) < 400
    assert len(error.hint) < 2000
    assert len(error.fields) == MAX_FIELDS


def test_retryable_errors_and_no_others_say_when_to_retry() -> None:
    waits = {code: int(problem_response(error_class(code)("Not now.", code=code), "x").headers.get("retry-after", 0)) for code in ErrorCode}
    assert {code for code, wait_s in waits.items() if wait_s > 0} == {code for code in ErrorCode if CODES[code][1]}
