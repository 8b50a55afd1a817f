"""Errors of the PandaStack API: ``{"error": "<sentence>"}`` and a status, by which the vendor's client chooses what to raise.

Invariants (``client.py`` and ``sandbox.py`` of the client):
- 401 is a bad key, 404 a missing object, any other 4xx a bad request, 5xx a failure of the server.
- The client takes a 5xx whose text contains "timeout" or "deadline exceeded" for a command that exceeded its timeout, and repeats a request for 20
  seconds if the text contains some phrases of Go's network library. No other error contains these phrases.
- The client repeats a request that creates sandboxes after 503 with ``Retry-After`` and after 507. Both are returned only if nothing was created.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

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

_SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "connection refused": "connection not accepted",
        "no route to host": "host not reached",
        "deadline exceeded": "time is up",
        "timeout": "time limit",
    }
)
"""Phrase on which the client acts -> phrase with the same meaning on which it does not."""
_PHRASES = re.compile("|".join(_SYNONYMS), re.IGNORECASE)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """Return the error body. The client reads only ``error``; the rest helps the operator. Pure."""
    return {"error": safe_message(details), "code": details.entry.code, "request_id": details.request_id}


def safe_message(details: VendorErrorDetails) -> str:
    """Return the message of an error, without phrases that would make the client act as for another error. Pure."""
    if details.entry.status < HTTPStatus.INTERNAL_SERVER_ERROR or details.code is ErrorCode.TIMEOUT:
        return details.message
    return _PHRASES.sub(lambda found: _SYNONYMS[found[0].lower()], details.message)
