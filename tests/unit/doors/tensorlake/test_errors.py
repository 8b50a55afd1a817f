"""Failures in Tensorlake's words: the statuses by which its client chooses what to raise, and those that it takes for something else."""

from __future__ import annotations

from sandlot.doors.door import Failure
from sandlot.doors.tensorlake import errors
from sandlot.model.errors import ErrorCode
from tests.support.cases import cases


@cases("code", ErrorCode)
def test_no_error_status_is_taken_for_a_created_sandbox(code: ErrorCode) -> None:
    assert errors.TABLE[code].status not in {422, 502, 504}


def test_error_statuses_distinguish_missing_conflict_and_invalid() -> None:
    assert {errors.TABLE[code].status for code in ErrorCode if code.endswith("not_found") and code is not ErrorCode.TEMPLATE_NOT_FOUND} == {404}
    assert errors.TABLE[ErrorCode.CONFLICT].status == errors.TABLE[ErrorCode.SANDBOX_PAUSED].status == 409
    assert errors.TABLE[ErrorCode.TEMPLATE_NOT_FOUND].status == errors.TABLE[ErrorCode.INVALID_REQUEST].status == 400
    assert errors.TABLE[ErrorCode.UNSUPPORTED].status == 501


def test_error_body_has_sentence_and_code() -> None:
    failure = Failure(errors.TABLE[ErrorCode.CONFLICT], "It is taken.", ErrorCode.CONFLICT, "abc", retryable=False)
    assert errors.body(failure) == {"error": "It is taken.", "code": "CONFLICT", "request_id": "abc"}
