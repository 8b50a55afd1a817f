"""Failures as AgentSandbox tells them: ``{"error": {"message": ..., "code": ...}}`` and a status.

Its client raises by the status alone (401, 403, 404, 422, 429, 500 and 503 have a class each, all others share one) and reads
``error.message``; where ``error`` is no object it would show the whole body as the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.doors.door import Failure, Kind
from sandlot.model.errors import ErrorCode

_INVALID = Kind(422, "validation_error")
_ABSENT = Kind(404, "not_found")
_OVER = Kind(429, "rate_limit_exceeded")
_AWAY = Kind(503, "service_unavailable")

TABLE: Mapping[ErrorCode, Kind] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: _INVALID,
        ErrorCode.PATH_INVALID: _INVALID,
        ErrorCode.UNAUTHENTICATED: Kind(401, "unauthorized"),
        ErrorCode.FORBIDDEN: Kind(403, "forbidden"),
        ErrorCode.PERMISSION_DENIED: Kind(403, "forbidden"),
        ErrorCode.NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_ENDED: _ABSENT,  # a session is its sandbox: one that has ended is none
        ErrorCode.FILE_NOT_FOUND: _ABSENT,
        ErrorCode.EXECUTION_NOT_FOUND: _ABSENT,
        ErrorCode.CONTEXT_NOT_FOUND: _ABSENT,
        ErrorCode.PROCESS_NOT_FOUND: _ABSENT,
        ErrorCode.PATH_NOT_FOUND: _ABSENT,
        ErrorCode.SNAPSHOT_NOT_FOUND: _ABSENT,
        ErrorCode.POOL_NOT_FOUND: _ABSENT,
        ErrorCode.VOLUME_NOT_FOUND: _ABSENT,
        ErrorCode.PATH_EXISTS: Kind(409, "conflict"),
        ErrorCode.CONFLICT: Kind(409, "conflict"),
        ErrorCode.SANDBOX_PAUSED: Kind(409, "conflict"),
        ErrorCode.SNAPSHOT_UNUSABLE: Kind(409, "conflict"),
        ErrorCode.TOO_LARGE: Kind(413, "too_large"),
        ErrorCode.LIMIT_EXCEEDED: _OVER,
        ErrorCode.QUOTA_EXCEEDED: _OVER,
        ErrorCode.DISK_FULL: Kind(507, "disk_full"),
        ErrorCode.TIMEOUT: Kind(408, "timeout"),
        ErrorCode.UNSUPPORTED: Kind(501, "not_supported"),
        ErrorCode.TEMPLATE_NOT_FOUND: _AWAY,  # no request names one: the operator has to see to it
        ErrorCode.HOST_NOT_READY: _AWAY,
        ErrorCode.BUSY: _AWAY,
        ErrorCode.SERVICE_UNAVAILABLE: _AWAY,
        ErrorCode.SERVICE_STOPPING: _AWAY,
        ErrorCode.INTERNAL: Kind(500, "internal_error"),
    }
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What its client reads, and what of it helps whoever asks the operator. Pure."""
    return {"error": {"message": failure.message, "code": failure.kind.word, "request_id": failure.request_id, "retryable": failure.retryable}}
