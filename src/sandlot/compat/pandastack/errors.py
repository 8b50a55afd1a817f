"""Failures as PandaStack tells them: ``{"error": "<sentence>"}`` and a status, by which its client chooses what to raise.

Laws (``client.py`` and ``sandbox.py`` of its client):
- 401 is a bad key, 404 what there is not, any other 4xx a bad request, 5xx a details of the server.
- A 5xx whose text has the word "timeout" or "deadline exceeded" is a command that took too long, so nothing else has them; and one of a few
  words of Go's network library is tried again for twenty seconds, so nothing has these.
- A 503 with ``Retry-After`` and a 507 to a request that makes sandboxes are sent again: both are told only where nothing was made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

SERVERS = 500

TABLE = error_table(
    invalid=ErrorTableEntry(400, "invalid_request"),
    unauthenticated=ErrorTableEntry(401, "unauthorized"),
    forbidden=ErrorTableEntry(403, "forbidden"),
    not_found=ErrorTableEntry(404, "not_found"),
    conflict=ErrorTableEntry(409, "conflict"),
    too_large=ErrorTableEntry(413, "too_large"),
    limit=ErrorTableEntry(429, "quota_exceeded"),
    disk_full=ErrorTableEntry(507, "disk_full"),
    timeout=ErrorTableEntry(500, "timeout"),
    unsupported=ErrorTableEntry(501, "not_supported"),
    unavailable=ErrorTableEntry(503, "unavailable"),
    internal=ErrorTableEntry(500, "internal_error"),
    others={},
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


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """What its client reads, and what helps whoever asks the operator. Pure."""
    return {"error": said(details.message, details.entry, details.code), "code": details.entry.code, "request_id": details.request_id}


def said(message: str, kind: ErrorTableEntry, code: ErrorCode) -> str:
    """A message in words that mean to the client what they mean."""
    if kind.status < SERVERS or code is ErrorCode.TIMEOUT:
        return message
    return _WORDS.sub(lambda found: _MEANT_OTHERWISE[found[0].lower()], message)
