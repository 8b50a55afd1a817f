"""Errors of SandboxAPI."""

from __future__ import annotations

import json

from sandlot.compat.sandboxapi import API
from sandlot.compat.sandboxapi.errors import SESSION_NOT_FOUND
from sandlot.model.errors import ErrorCode, error_class
from sandlot.web.errors import problem_response
from tests.support.cases import cases


@cases("code", ErrorCode)
def test_error_and_message_are_sentences_for_every_code(code: ErrorCode) -> None:
    response = json.loads(bytes(problem_response(error_class(code)("It happened.", code=code, hint="Do this."), "abc", error_format=API).body))
    gone = code in {ErrorCode.SANDBOX_NOT_FOUND, ErrorCode.SANDBOX_ENDED}
    assert response["message"] == "It happened. Do this."
    assert response["error"] == (SESSION_NOT_FOUND if gone else "It happened. Do this.")
    assert response["request_id"] == "abc"
