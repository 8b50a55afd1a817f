"""Failures as Tensorlake tells them.

Law: No request for a sandbox is answered with 422 or 504, which its client reads as a sandbox that was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import Failure, Kind, table
from sandlot.model.errors import ErrorCode

_INVALID = Kind(400, "INVALID_REQUEST")

TABLE = table(
    invalid=_INVALID,
    unauthenticated=Kind(401, "UNAUTHORIZED"),
    forbidden=Kind(403, "FORBIDDEN"),
    absent=Kind(404, "NOT_FOUND"),
    conflict=Kind(409, "CONFLICT"),
    too_large=Kind(413, "TOO_LARGE"),
    over=Kind(429, "QUOTA_EXCEEDED"),
    full=Kind(507, "DISK_FULL"),
    late=Kind(408, "TIMEOUT"),
    unsupported=Kind(501, "NOT_SUPPORTED"),
    away=Kind(503, "SERVICE_UNAVAILABLE"),
    internal=Kind(500, "INTERNAL"),
    others={
        ErrorCode.TEMPLATE_NOT_FOUND: _INVALID,  # an image that is not there is no sandbox that is not there
    },
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What callers read. Pure."""
    return {"error": failure.message, "code": failure.kind.word, "request_id": failure.request_id}
