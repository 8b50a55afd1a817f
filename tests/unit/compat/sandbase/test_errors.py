"""Failures in Sandbase's shape."""

from __future__ import annotations

from sandlot.compat.sandbase import API
from sandlot.model.errors import ErrorCode, error_class
from tests.support.cases import cases


@cases(
    "code, status, message",
    [
        (ErrorCode.SANDBOX_NOT_FOUND, 404, "sandbox not found"),
        (ErrorCode.SANDBOX_ENDED, 404, "sandbox not found"),
        (ErrorCode.SANDBOX_PAUSED, 409, "sandbox is not active"),
        (ErrorCode.TEMPLATE_NOT_FOUND, 400, "It happened. Do this."),
        (ErrorCode.PATH_NOT_FOUND, 404, "It happened. Do this."),
        (ErrorCode.QUOTA_EXCEEDED, 429, "It happened. Do this."),
        (ErrorCode.INTERNAL, 500, "It happened. Do this."),
    ],
)
def test_error_body_has_status_and_message(code: ErrorCode, status: int, message: str) -> None:
    told = API.render_error(error_class(code)("It happened.", code=code, hint="Do this."), "abc", None)
    assert told.status == status
    assert told.body == {"code": status, "message": message, "error": "It happened. Do this."}
