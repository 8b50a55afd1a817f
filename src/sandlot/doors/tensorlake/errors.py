"""Failures as Tensorlake tells them.

Law: No request for a sandbox is answered with 422 or 504, which its client reads as a sandbox that was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.doors.door import Failure, Kind
from sandlot.model.errors import ErrorCode

_INVALID = Kind(400, "INVALID_REQUEST")
_ABSENT = Kind(404, "NOT_FOUND")
_CONFLICT = Kind(409, "CONFLICT")
_OVER = Kind(429, "QUOTA_EXCEEDED")
_AWAY = Kind(503, "SERVICE_UNAVAILABLE")

TABLE: Mapping[ErrorCode, Kind] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: _INVALID,
        ErrorCode.PATH_INVALID: _INVALID,
        ErrorCode.UNAUTHENTICATED: Kind(401, "UNAUTHORIZED"),
        ErrorCode.FORBIDDEN: Kind(403, "FORBIDDEN"),
        ErrorCode.PERMISSION_DENIED: Kind(403, "FORBIDDEN"),
        ErrorCode.NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_ENDED: _ABSENT,
        ErrorCode.FILE_NOT_FOUND: _ABSENT,
        ErrorCode.EXECUTION_NOT_FOUND: _ABSENT,
        ErrorCode.CONTEXT_NOT_FOUND: _ABSENT,
        ErrorCode.PROCESS_NOT_FOUND: _ABSENT,
        ErrorCode.PATH_NOT_FOUND: _ABSENT,
        ErrorCode.SNAPSHOT_NOT_FOUND: _ABSENT,
        ErrorCode.POOL_NOT_FOUND: _ABSENT,
        ErrorCode.VOLUME_NOT_FOUND: _ABSENT,
        ErrorCode.PATH_EXISTS: _CONFLICT,
        ErrorCode.CONFLICT: _CONFLICT,
        ErrorCode.SANDBOX_PAUSED: _CONFLICT,
        ErrorCode.SNAPSHOT_UNUSABLE: _CONFLICT,
        ErrorCode.TOO_LARGE: Kind(413, "TOO_LARGE"),
        ErrorCode.LIMIT_EXCEEDED: _OVER,
        ErrorCode.QUOTA_EXCEEDED: _OVER,
        ErrorCode.DISK_FULL: Kind(507, "DISK_FULL"),
        ErrorCode.TIMEOUT: Kind(408, "TIMEOUT"),
        ErrorCode.UNSUPPORTED: Kind(501, "NOT_SUPPORTED"),
        ErrorCode.TEMPLATE_NOT_FOUND: _INVALID,  # an image that is not there is no sandbox that is not there
        ErrorCode.HOST_NOT_READY: _AWAY,
        ErrorCode.BUSY: _AWAY,
        ErrorCode.SERVICE_UNAVAILABLE: _AWAY,
        ErrorCode.SERVICE_STOPPING: _AWAY,
        ErrorCode.INTERNAL: Kind(500, "INTERNAL"),
    }
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What callers read. Pure."""
    return {"error": failure.message, "code": failure.kind.word, "request_id": failure.request_id}
