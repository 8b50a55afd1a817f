"""Failures as SandboxAPI tells them: ``{"error": ..., "message": ...}`` and a status.

Its clients take every status but 200 and 201 for a details, 401 and 403 for a bad key and 429 for a used up quota, and show ``error``: so that is a
sentence, but for a session that there is not (any more), which callers tell by its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

NO_SESSION = "session not found"

_GONE = ErrorTableEntry(404, "session_not_found")  # a session is its sandbox: one that has ended is none
_UNAVAILABLE = ErrorTableEntry(503, "service_unavailable")

TABLE = error_table(
    invalid=ErrorTableEntry(400, "invalid_request"),
    unauthenticated=ErrorTableEntry(401, "unauthorized"),
    forbidden=ErrorTableEntry(403, "forbidden"),
    not_found=ErrorTableEntry(404, "not_found"),
    conflict=ErrorTableEntry(409, "conflict"),
    too_large=ErrorTableEntry(413, "too_large"),
    limit=ErrorTableEntry(429, "quota_exceeded"),
    disk_full=ErrorTableEntry(507, "disk_full"),
    timeout=ErrorTableEntry(408, "timeout"),
    unsupported=ErrorTableEntry(501, "not_supported"),
    unavailable=_UNAVAILABLE,
    internal=ErrorTableEntry(500, "internal_error"),
    others={
        ErrorCode.SANDBOX_NOT_FOUND: _GONE,
        ErrorCode.SANDBOX_ENDED: _GONE,
        ErrorCode.TEMPLATE_NOT_FOUND: _UNAVAILABLE,  # no request names one: the operator has to see to it
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """What callers read, and what of it helps whoever asks the operator. Pure."""
    shown = NO_SESSION if details.entry is _GONE else details.message
    return {"error": shown, "message": details.message, "code": details.entry.code, "request_id": details.request_id, "retryable": details.retryable}
