"""Failures as Sandbase tells them: ``{"code": <the status>, "message": ...}``.

Callers see the status and the message. A few messages are words that its documentation quotes; where one of them stands, ``error`` says what
happened and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

_INVALID = ErrorTableEntry(400, "")
_GONE = ErrorTableEntry(404, "sandbox not found")

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
        ErrorCode.SANDBOX_NOT_FOUND: _GONE,
        ErrorCode.SANDBOX_ENDED: _GONE,
        ErrorCode.SANDBOX_PAUSED: ErrorTableEntry(409, "sandbox is not active"),
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """What callers read. Pure."""
    return {"code": details.entry.status, "message": details.entry.code or details.message, "error": details.message}
