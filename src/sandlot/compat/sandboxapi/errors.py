"""Errors of SandboxAPI: ``{"error": ..., "message": ...}`` and a status.

Clients treat every status but 200 and 201 as an error, 401 and 403 as a bad key and 429 as an exhausted quota. They show ``error``, so ``error`` is a
sentence. Only for an unknown session, ``error`` is a fixed text that clients compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

SESSION_NOT_FOUND: Final = "session not found"

_NO_SESSION = ErrorTableEntry(404, "session_not_found")  # a session is a sandbox
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
        ErrorCode.SANDBOX_NOT_FOUND: _NO_SESSION,
        ErrorCode.SANDBOX_ENDED: _NO_SESSION,
        ErrorCode.TEMPLATE_NOT_FOUND: _UNAVAILABLE,  # requests name no template, so only the operator can help
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """Return the error body. Pure."""
    return {
        "error": SESSION_NOT_FOUND if details.entry is _NO_SESSION else details.message,
        "message": details.message,
        "code": details.entry.code,
        "request_id": details.request_id,
        "retryable": details.retryable,
    }
