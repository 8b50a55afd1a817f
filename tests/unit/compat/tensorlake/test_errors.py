"""Failures in Tensorlake's words: the statuses by which its client chooses what to raise, and those that it takes for something else."""

from __future__ import annotations

from sandlot.compat.tensorlake import errors
from sandlot.model.errors import ErrorCode
from tests.support.cases import cases


@cases("code", ErrorCode)
def test_no_error_status_is_taken_for_a_created_sandbox(code: ErrorCode) -> None:
    assert errors.TABLE[code].status not in {422, 502, 504}
