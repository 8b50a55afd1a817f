"""Every error as PandaStack's client reads it."""

from __future__ import annotations

import json

from sandlot.doors.pandastack import DOOR
from sandlot.model.errors import ErrorCode, class_of
from sandlot.web.errors import answer
from tests.support.cases import cases


@cases("code", ErrorCode)
def test_error_is_a_sentence_and_only_retryable_errors_have_retry_after(code: ErrorCode) -> None:
    told = answer(class_of(code)("It happened.", code=code, hint="Do this."), "abc", teller=DOOR)
    body = json.loads(bytes(told.body))
    assert (body["error"], body["request_id"]) == ("It happened. Do this.", "abc")
    # 503 with Retry-After is sent again by its client, so nothing has that which may have been done.
    assert ("retry-after" in told.headers) == (code in {ErrorCode.BUSY, ErrorCode.SERVICE_UNAVAILABLE})


@cases("code", ErrorCode)
@cases("word", ["connect: connection refused", "no route to host", "i/o timeout", "Timeout", "context deadline exceeded"])
def test_server_errors_avoid_words_that_the_client_acts_on(code: ErrorCode, word: str) -> None:
    told = answer(class_of(code)(f"It said {word}.", code=code), "abc", teller=DOOR)
    error = json.loads(bytes(told.body))["error"].lower()
    if told.status_code >= 500 and code is not ErrorCode.TIMEOUT:
        assert all(other not in error for other in ("connection refused", "no route to host", "timeout", "deadline exceeded"))
    else:
        assert word.lower() in error


@cases(
    "code, status",
    [
        (ErrorCode.INVALID_REQUEST, 400),
        (ErrorCode.UNAUTHENTICATED, 401),
        (ErrorCode.SANDBOX_ENDED, 404),
        (ErrorCode.TEMPLATE_NOT_FOUND, 404),
        (ErrorCode.PATH_NOT_FOUND, 404),
        (ErrorCode.QUOTA_EXCEEDED, 429),
        (ErrorCode.TIMEOUT, 500),
        (ErrorCode.UNSUPPORTED, 501),
        (ErrorCode.BUSY, 503),
        (ErrorCode.DISK_FULL, 507),
    ],
)
def test_error_codes_have_the_statuses_that_the_client_expects(code: ErrorCode, status: int) -> None:
    assert DOOR.table[code].status == status
