"""Failures as AgentSandbox tells them: ``{"error": {"message": ..., "code": ...}}`` and a status.

Its client raises by the status alone (401, 403, 404, 422, 429, 500 and 503 have a class each, all others share one) and reads
``error.message``; where ``error`` is no object it would show the whole body as the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import Failure, Kind, table
from sandlot.model.errors import ErrorCode

_AWAY = Kind(503, "service_unavailable")

TABLE = table(
    invalid=Kind(422, "validation_error"),
    unauthenticated=Kind(401, "unauthorized"),
    forbidden=Kind(403, "forbidden"),
    absent=Kind(404, "not_found"),
    conflict=Kind(409, "conflict"),
    too_large=Kind(413, "too_large"),
    over=Kind(429, "rate_limit_exceeded"),
    full=Kind(507, "disk_full"),
    late=Kind(408, "timeout"),
    unsupported=Kind(501, "not_supported"),
    away=_AWAY,
    internal=Kind(500, "internal_error"),
    others={
        ErrorCode.TEMPLATE_NOT_FOUND: _AWAY,  # no request names one: the operator has to see to it
    },
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What its client reads, and what of it helps whoever asks the operator. Pure."""
    return {"error": {"message": failure.message, "code": failure.kind.word, "request_id": failure.request_id, "retryable": failure.retryable}}
