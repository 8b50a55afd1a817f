"""Errors of the AgentSandbox API: ``{"error": {"message": ..., "code": ...}}`` and a status.

The vendor's client raises by the status: 401, 403, 404, 422, 429, 500 and 503 have a class each, all others share one. It shows ``error.message``, or
the whole body if ``error`` is not an object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

_UNAVAILABLE = ErrorTableEntry(503, "service_unavailable")

TABLE = error_table(
    invalid=ErrorTableEntry(422, "validation_error"),
    unauthenticated=ErrorTableEntry(401, "unauthorized"),
    forbidden=ErrorTableEntry(403, "forbidden"),
    not_found=ErrorTableEntry(404, "not_found"),
    conflict=ErrorTableEntry(409, "conflict"),
    too_large=ErrorTableEntry(413, "too_large"),
    limit=ErrorTableEntry(429, "rate_limit_exceeded"),
    disk_full=ErrorTableEntry(507, "disk_full"),
    timeout=ErrorTableEntry(408, "timeout"),
    unsupported=ErrorTableEntry(501, "not_supported"),
    unavailable=_UNAVAILABLE,
    internal=ErrorTableEntry(500, "internal_error"),
    others={
        ErrorCode.TEMPLATE_NOT_FOUND: _UNAVAILABLE,  # requests name no template, so only the operator can help
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """Return the error body. The client reads only the message; the rest helps the operator. Pure."""
    return {"error": {"message": details.message, "code": details.entry.code, "request_id": details.request_id, "retryable": details.retryable}}
