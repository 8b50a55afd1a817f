"""Failures as SandboxAPI tells them: ``{"error": ..., "message": ...}`` and a status.

Its clients take every status but 200 and 201 for a failure, 401 and 403 for a bad key and 429 for a used up quota, and show ``error``: so that is a
sentence, but for a session that there is not (any more), which callers tell by its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import Failure, Kind, table
from sandlot.model.errors import ErrorCode

NO_SESSION = "session not found"

_GONE = Kind(404, "session_not_found")  # a session is its sandbox: one that has ended is none
_AWAY = Kind(503, "service_unavailable")

TABLE = table(
    invalid=Kind(400, "invalid_request"),
    unauthenticated=Kind(401, "unauthorized"),
    forbidden=Kind(403, "forbidden"),
    absent=Kind(404, "not_found"),
    conflict=Kind(409, "conflict"),
    too_large=Kind(413, "too_large"),
    over=Kind(429, "quota_exceeded"),
    full=Kind(507, "disk_full"),
    late=Kind(408, "timeout"),
    unsupported=Kind(501, "not_supported"),
    away=_AWAY,
    internal=Kind(500, "internal_error"),
    others={
        ErrorCode.SANDBOX_NOT_FOUND: _GONE,
        ErrorCode.SANDBOX_ENDED: _GONE,
        ErrorCode.TEMPLATE_NOT_FOUND: _AWAY,  # no request names one: the operator has to see to it
    },
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What callers read, and what of it helps whoever asks the operator. Pure."""
    shown = NO_SESSION if failure.kind is _GONE else failure.message
    return {"error": shown, "message": failure.message, "code": failure.kind.word, "request_id": failure.request_id, "retryable": failure.retryable}
