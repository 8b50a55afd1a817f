"""Errors of the Tensorlake API: ``{"error": ..., "code": ...}`` and a status.

Invariant: No error of a create request has status 422 or 504, which the client takes for a created sandbox.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

_INVALID = ErrorTableEntry(400, "INVALID_REQUEST")

TABLE = error_table(
    invalid=_INVALID,
    unauthenticated=ErrorTableEntry(401, "UNAUTHORIZED"),
    forbidden=ErrorTableEntry(403, "FORBIDDEN"),
    not_found=ErrorTableEntry(404, "NOT_FOUND"),
    conflict=ErrorTableEntry(409, "CONFLICT"),
    too_large=ErrorTableEntry(413, "TOO_LARGE"),
    limit=ErrorTableEntry(429, "QUOTA_EXCEEDED"),
    disk_full=ErrorTableEntry(507, "DISK_FULL"),
    timeout=ErrorTableEntry(408, "TIMEOUT"),
    unsupported=ErrorTableEntry(501, "NOT_SUPPORTED"),
    unavailable=ErrorTableEntry(503, "SERVICE_UNAVAILABLE"),
    internal=ErrorTableEntry(500, "INTERNAL"),
    others={
        ErrorCode.TEMPLATE_NOT_FOUND: _INVALID,  # the client takes 404 for a missing sandbox
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """Return the error body. Pure."""
    return {"error": details.message, "code": details.entry.code, "request_id": details.request_id}
