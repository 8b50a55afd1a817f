"""Failures as E2B's control plane and its code interpreter tell them: ``{"code": 404, "message": ...}`` and that status.

Clients choose by the status. 502 is what E2B's proxy answers in front of a sandbox that there is not, and its clients look for "was not found" in
the message: so is told whatever the inside of a sandbox is asked that has ended, or is paused, or ends while it is asked. The control plane tells 404
in its place (:mod:`sandlot.doors.e2b.control`). What Connect's RPCs answer is in ``envd/errors.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.doors.door import Failure, Kind
from sandlot.model.errors import ErrorCode

NOT_FOUND = "was not found"
"""What clients look for in the message of a 502."""

_INVALID = Kind(400, "invalid_argument")
_ABSENT = Kind(404, "not_found")
_GONE = Kind(502, "unavailable")
_CLASH = Kind(409, "already_exists")
_OVER = Kind(429, "resource_exhausted")
_AWAY = Kind(503, "unavailable")

TABLE: Mapping[ErrorCode, Kind] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: _INVALID,
        ErrorCode.PATH_INVALID: _INVALID,
        ErrorCode.UNAUTHENTICATED: Kind(401, "unauthenticated"),
        ErrorCode.FORBIDDEN: Kind(403, "permission_denied"),
        ErrorCode.PERMISSION_DENIED: Kind(403, "permission_denied"),
        ErrorCode.NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_ENDED: _GONE,
        ErrorCode.FILE_NOT_FOUND: _ABSENT,
        ErrorCode.EXECUTION_NOT_FOUND: _ABSENT,
        ErrorCode.CONTEXT_NOT_FOUND: _ABSENT,
        ErrorCode.PROCESS_NOT_FOUND: _ABSENT,
        ErrorCode.PATH_NOT_FOUND: _ABSENT,
        ErrorCode.SNAPSHOT_NOT_FOUND: _ABSENT,
        ErrorCode.TEMPLATE_NOT_FOUND: _ABSENT,
        ErrorCode.POOL_NOT_FOUND: _ABSENT,
        ErrorCode.VOLUME_NOT_FOUND: _ABSENT,
        ErrorCode.PATH_EXISTS: _CLASH,
        ErrorCode.CONFLICT: _CLASH,
        ErrorCode.SANDBOX_PAUSED: _GONE,  # at E2B too a paused one is not running, and what does not resume it does not find it
        ErrorCode.SNAPSHOT_UNUSABLE: Kind(409, "failed_precondition"),
        ErrorCode.TOO_LARGE: Kind(413, "resource_exhausted"),
        ErrorCode.LIMIT_EXCEEDED: _OVER,
        ErrorCode.QUOTA_EXCEEDED: _OVER,
        ErrorCode.DISK_FULL: Kind(507, "resource_exhausted"),
        ErrorCode.TIMEOUT: Kind(408, "deadline_exceeded"),
        ErrorCode.UNSUPPORTED: Kind(501, "unimplemented"),
        ErrorCode.HOST_NOT_READY: _AWAY,
        ErrorCode.BUSY: _AWAY,
        ErrorCode.SERVICE_UNAVAILABLE: _AWAY,
        ErrorCode.SERVICE_STOPPING: _AWAY,
        ErrorCode.INTERNAL: Kind(500, "internal"),
    }
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What clients read. Pure."""
    return {"code": failure.kind.status, "message": told(failure)}


def told(failure: Failure) -> str:
    """The message, with the words by which clients know that a sandbox is no more. Pure."""
    if failure.kind is not _GONE or NOT_FOUND in failure.message:
        return failure.message
    return f"The sandbox {NOT_FOUND}: {failure.message}"
