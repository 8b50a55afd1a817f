"""Every error as PandaStack's client reads it."""

from __future__ import annotations

import json

from sandlot.compat.pandastack import API
from sandlot.model.errors import ErrorCode, error_class
from sandlot.web.errors import problem_response
from tests.support.cases import cases


@cases("code", ErrorCode)
def test_error_is_a_sentence_and_only_retryable_errors_have_retry_after(code: ErrorCode) -> None:
    told = problem_response(error_class(code)("It happened.", code=code, hint="Do this."), "abc", error_format=API)
    body = json.loads(bytes(told.body))
    assert (body["error"], body["request_id"]) == ("It happened. Do this.", "abc")
    # 503 with Retry-After is sent again by its client, so nothing has that which may have been done.
    assert ("retry-after" in told.headers) == (code in {ErrorCode.BUSY, ErrorCode.SERVICE_UNAVAILABLE})


@cases("code", ErrorCode)
@cases("word", ["connect: connection refused", "no route to host", "i/o timeout", "Timeout", "context deadline exceeded"])
def test_server_errors_avoid_words_that_the_client_acts_on(code: ErrorCode, word: str) -> None:
    told = problem_response(error_class(code)(f"It said {word}.", code=code), "abc", error_format=API)
    error = json.loads(bytes(told.body))["error"].lower()
    if told.status_code >= 500 and code is not ErrorCode.TIMEOUT:
        assert all(other not in error for other in ("connection refused", "no route to host", "timeout", "deadline exceeded"))
    else:
        assert word.lower() in error
