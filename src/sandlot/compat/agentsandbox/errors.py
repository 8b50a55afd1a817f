"""Failures as AgentSandbox tells them: ``{"error": {"message": ..., "code": ...}}`` and a status.

Its client raises by the status alone (401, 403, 404, 422, 429, 500 and 503 have a class each, all others share one) and reads
``error.message``; where ``error`` is no object it would show the whole body as the message.
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
        ErrorCode.TEMPLATE_NOT_FOUND: _UNAVAILABLE,  # no request names one: the operator has to see to it
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """What its client reads, and what of it helps whoever asks the operator. Pure."""
    return {"error": {"message": details.message, "code": details.entry.code, "request_id": details.request_id, "retryable": details.retryable}}
