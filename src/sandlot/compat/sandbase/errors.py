"""Errors of the Sandbase API: ``{"code": <status>, "message": ..., "error": ...}``.

Clients show the status and the message. The messages in the table are quoted from the vendor's documentation; ``error`` always states what failed and
what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

_INVALID = ErrorTableEntry(400, "")
_NOT_FOUND = ErrorTableEntry(404, "sandbox not found")

TABLE = error_table(
    invalid=_INVALID,
    unauthenticated=ErrorTableEntry(401, ""),
    forbidden=ErrorTableEntry(403, ""),
    not_found=ErrorTableEntry(404, ""),
    conflict=ErrorTableEntry(409, ""),
    too_large=ErrorTableEntry(413, ""),
    limit=ErrorTableEntry(429, ""),
    disk_full=ErrorTableEntry(507, ""),
    timeout=ErrorTableEntry(408, ""),
    unsupported=ErrorTableEntry(501, ""),
    unavailable=ErrorTableEntry(503, ""),
    internal=ErrorTableEntry(500, ""),
    others={
        ErrorCode.TEMPLATE_NOT_FOUND: _INVALID,
        ErrorCode.SANDBOX_NOT_FOUND: _NOT_FOUND,
        ErrorCode.SANDBOX_ENDED: _NOT_FOUND,
        ErrorCode.SANDBOX_PAUSED: ErrorTableEntry(409, "sandbox is not active"),
    },
)
"""Status, and as code the fixed message of the vendor, if there is one."""


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """Return the error body. Pure."""
    return {"code": details.entry.status, "message": details.entry.code or details.message, "error": details.message}
