"""Failures in Tensorlake's words: the statuses by which its client chooses what to raise, and those that it takes for something else."""

from __future__ import annotations

from sandlot.doors.door import Failure
from sandlot.doors.tensorlake import errors
from sandlot.model.errors import ErrorCode
from tests.support.cases import cases


@cases("code", ErrorCode)
def test_no_failure_looks_like_a_sandbox_that_was_made(code: ErrorCode) -> None:
    assert errors.TABLE[code].status not in {422, 502, 504}


def test_the_client_tells_what_is_not_there_from_what_is_taken_and_from_a_wrong_request() -> None:
    assert {errors.TABLE[code].status for code in ErrorCode if code.endswith("not_found") and code is not ErrorCode.TEMPLATE_NOT_FOUND} == {404}
    assert errors.TABLE[ErrorCode.CONFLICT].status == errors.TABLE[ErrorCode.SANDBOX_PAUSED].status == 409
    assert errors.TABLE[ErrorCode.TEMPLATE_NOT_FOUND].status == errors.TABLE[ErrorCode.INVALID_REQUEST].status == 400
    assert errors.TABLE[ErrorCode.UNSUPPORTED].status == 501


def test_the_body_has_a_sentence_and_a_word() -> None:
    failure = Failure(errors.TABLE[ErrorCode.CONFLICT], "It is taken.", ErrorCode.CONFLICT, "abc", retryable=False)
    assert errors.body(failure) == {"error": "It is taken.", "code": "CONFLICT", "request_id": "abc"}
