"""Failures as Sandbase tells them: ``{"code": <the status>, "message": ...}``.

Callers see the status and the message. A few messages are words that its documentation quotes; where one of them stands, ``error`` says what
happened and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.doors.door import Failure, Kind
from sandlot.model.errors import ErrorCode

_INVALID = Kind(400, "")
_ABSENT = Kind(404, "")
_GONE = Kind(404, "sandbox not found")
_RESTS = Kind(409, "sandbox is not active")
_CLASH = Kind(409, "")
_OVER = Kind(429, "")
_AWAY = Kind(503, "")

TABLE: Mapping[ErrorCode, Kind] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: _INVALID,
        ErrorCode.PATH_INVALID: _INVALID,
        ErrorCode.TEMPLATE_NOT_FOUND: _INVALID,
        ErrorCode.UNAUTHENTICATED: Kind(401, ""),
        ErrorCode.FORBIDDEN: Kind(403, ""),
        ErrorCode.PERMISSION_DENIED: Kind(403, ""),
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
        ErrorCode.PATH_EXISTS: _CLASH,
        ErrorCode.CONFLICT: _CLASH,
        ErrorCode.SANDBOX_PAUSED: _RESTS,
        ErrorCode.SNAPSHOT_UNUSABLE: _CLASH,
        ErrorCode.TOO_LARGE: Kind(413, ""),
        ErrorCode.LIMIT_EXCEEDED: _OVER,
        ErrorCode.QUOTA_EXCEEDED: _OVER,
        ErrorCode.DISK_FULL: Kind(507, ""),
        ErrorCode.TIMEOUT: Kind(408, ""),
        ErrorCode.UNSUPPORTED: Kind(501, ""),
        ErrorCode.HOST_NOT_READY: _AWAY,
        ErrorCode.BUSY: _AWAY,
        ErrorCode.SERVICE_UNAVAILABLE: _AWAY,
        ErrorCode.SERVICE_STOPPING: _AWAY,
        ErrorCode.INTERNAL: Kind(500, ""),
    }
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What callers read. Pure."""
    return {"code": failure.kind.status, "message": failure.kind.word or failure.message, "error": failure.message}
