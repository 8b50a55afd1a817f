"""Failures as Sandbase tells them: ``{"code": <the status>, "message": ...}``.

Callers see the status and the message. A few messages are words that its documentation quotes; where one of them stands, ``error`` says what
happened and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import Failure, Kind, table
from sandlot.model.errors import ErrorCode

_INVALID = Kind(400, "")
_GONE = Kind(404, "sandbox not found")

TABLE = table(
    invalid=_INVALID,
    unauthenticated=Kind(401, ""),
    forbidden=Kind(403, ""),
    absent=Kind(404, ""),
    conflict=Kind(409, ""),
    too_large=Kind(413, ""),
    over=Kind(429, ""),
    full=Kind(507, ""),
    late=Kind(408, ""),
    unsupported=Kind(501, ""),
    away=Kind(503, ""),
    internal=Kind(500, ""),
    others={
        ErrorCode.TEMPLATE_NOT_FOUND: _INVALID,
        ErrorCode.SANDBOX_NOT_FOUND: _GONE,
        ErrorCode.SANDBOX_ENDED: _GONE,
        ErrorCode.SANDBOX_PAUSED: Kind(409, "sandbox is not active"),
    },
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What callers read. Pure."""
    return {"code": failure.kind.status, "message": failure.kind.word or failure.message, "error": failure.message}
