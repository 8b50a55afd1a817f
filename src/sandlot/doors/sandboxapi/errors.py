"""Failures as SandboxAPI tells them: ``{"error": ..., "message": ...}`` and a status.

Its clients take every status but 200 and 201 for a failure, 401 and 403 for a bad key and 429 for a used up quota, and show ``error``: so that is a
sentence, but for a session that there is not (any more), which callers tell by its words.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.doors.door import Failure, Kind
from sandlot.model.errors import ErrorCode

NO_SESSION = "session not found"

_INVALID = Kind(400, "invalid_request")
_ABSENT = Kind(404, "not_found")
_GONE = Kind(404, "session_not_found")  # a session is its sandbox: one that has ended is none
_OVER = Kind(429, "quota_exceeded")
_AWAY = Kind(503, "service_unavailable")

TABLE: Mapping[ErrorCode, Kind] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: _INVALID,
        ErrorCode.PATH_INVALID: _INVALID,
        ErrorCode.UNAUTHENTICATED: Kind(401, "unauthorized"),
        ErrorCode.FORBIDDEN: Kind(403, "forbidden"),
        ErrorCode.PERMISSION_DENIED: Kind(403, "forbidden"),
        ErrorCode.NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_NOT_FOUND: _GONE,
        ErrorCode.SANDBOX_ENDED: _GONE,
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
    """What callers read, and what of it helps whoever asks the operator. Pure."""
    shown = NO_SESSION if failure.kind is _GONE else failure.message
    return {"error": shown, "message": failure.message, "code": failure.kind.word, "request_id": failure.request_id, "retryable": failure.retryable}
