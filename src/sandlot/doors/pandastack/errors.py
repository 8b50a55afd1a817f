"""Failures as PandaStack tells them: ``{"error": "<sentence>"}`` and a status, by which its client chooses what to raise.

Laws (``client.py`` and ``sandbox.py`` of its client):
- 401 is a bad key, 404 what there is not, any other 4xx a bad request, 5xx a failure of the server.
- A 5xx whose text has the word "timeout" or "deadline exceeded" is a command that took too long, so nothing else has them; and one of a few
  words of Go's network library is tried again for twenty seconds, so nothing has these.
- A 503 with ``Retry-After`` and a 507 to a request that makes sandboxes are sent again: both are told only where nothing was made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.doors.door import Failure, Kind
from sandlot.model.errors import ErrorCode

SERVERS = 500

_INVALID = Kind(400, "invalid_request")
_ABSENT = Kind(404, "not_found")
_CONFLICT = Kind(409, "conflict")
_OVER = Kind(429, "quota_exceeded")
_AWAY = Kind(503, "unavailable")

TABLE: Mapping[ErrorCode, Kind] = MappingProxyType(
    {
        ErrorCode.INVALID_REQUEST: _INVALID,
        ErrorCode.PATH_INVALID: _INVALID,
        ErrorCode.UNAUTHENTICATED: Kind(401, "unauthorized"),
        ErrorCode.FORBIDDEN: Kind(403, "forbidden"),
        ErrorCode.PERMISSION_DENIED: Kind(403, "forbidden"),
        ErrorCode.NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_NOT_FOUND: _ABSENT,
        ErrorCode.SANDBOX_ENDED: _ABSENT,
        ErrorCode.TEMPLATE_NOT_FOUND: _ABSENT,
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
        ErrorCode.TOO_LARGE: Kind(413, "too_large"),
        ErrorCode.LIMIT_EXCEEDED: _OVER,
        ErrorCode.QUOTA_EXCEEDED: _OVER,
        ErrorCode.DISK_FULL: Kind(507, "disk_full"),
        ErrorCode.TIMEOUT: Kind(500, "timeout"),
        ErrorCode.UNSUPPORTED: Kind(501, "not_supported"),
        ErrorCode.HOST_NOT_READY: _AWAY,
        ErrorCode.BUSY: _AWAY,
        ErrorCode.SERVICE_UNAVAILABLE: _AWAY,
        ErrorCode.SERVICE_STOPPING: _AWAY,
        ErrorCode.INTERNAL: Kind(500, "internal_error"),
    }
)

_MEANT_OTHERWISE: Mapping[str, str] = MappingProxyType(
    {
        "connection refused": "connection not accepted",
        "no route to host": "host not reached",
        "deadline exceeded": "time is up",
        "timeout": "time limit",
    }
)
"""Words of its client's -> the same for everybody else."""
_WORDS = re.compile("|".join(_MEANT_OTHERWISE), re.IGNORECASE)


def body(failure: Failure) -> Mapping[str, Any]:
    """What its client reads, and what helps whoever asks the operator. Pure."""
    return {"error": said(failure.message, failure.kind, failure.code), "code": failure.kind.word, "request_id": failure.request_id}


def said(message: str, kind: Kind, code: ErrorCode) -> str:
    """A message in words that mean to the client what they mean."""
    if kind.status < SERVERS or code is ErrorCode.TIMEOUT:
        return message
    return _WORDS.sub(lambda found: _MEANT_OTHERWISE[found[0].lower()], message)
