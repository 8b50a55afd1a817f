"""Errors of E2B's control plane and code interpreter: ``{"code": 404, "message": ...}`` with the same status.

Clients choose the exception by the status. For a sandbox that does not exist, E2B's proxy responds with 502, and clients look for "was not found" in
the message. So calls to the inside of a sandbox that has ended, is paused or ends meanwhile are 502; the control plane responds with 404 instead
(:mod:`sandlot.compat.e2b.control`). Errors of Connect RPCs are in ``envd/errors.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

NOT_FOUND: Final = "was not found"
"""Phrase that clients look for in the message of a 502."""

RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})
"""Statuses after which clients of the control plane repeat a request up to three times, after ``Retry-After`` or a short time (``retry.py``)."""

_NOT_RUNNING = ErrorTableEntry(502, "unavailable")

TABLE = error_table(
    invalid=ErrorTableEntry(400, "invalid_argument"),
    unauthenticated=ErrorTableEntry(401, "unauthenticated"),
    forbidden=ErrorTableEntry(403, "permission_denied"),
    not_found=ErrorTableEntry(404, "not_found"),
    conflict=ErrorTableEntry(409, "already_exists"),
    too_large=ErrorTableEntry(413, "resource_exhausted"),
    limit=ErrorTableEntry(429, "resource_exhausted"),
    disk_full=ErrorTableEntry(507, "resource_exhausted"),
    timeout=ErrorTableEntry(408, "deadline_exceeded"),
    unsupported=ErrorTableEntry(501, "unimplemented"),
    unavailable=ErrorTableEntry(503, "unavailable"),
    internal=ErrorTableEntry(500, "internal"),
    others={
        ErrorCode.SANDBOX_ENDED: _NOT_RUNNING,
        ErrorCode.SANDBOX_PAUSED: _NOT_RUNNING,  # at E2B, too, a paused sandbox is not found by calls that do not resume it
        ErrorCode.SNAPSHOT_UNUSABLE: ErrorTableEntry(409, "failed_precondition"),
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """Return the error body. Pure."""
    return {"code": details.entry.status, "message": client_message(details)}


def headers(details: VendorErrorDetails) -> Mapping[str, str]:
    """Return ``Should-Retry: false`` if clients would repeat the request without a chance of success. Pure."""
    return {"Should-Retry": "false"} if details.entry.status in RETRIED_STATUSES and details.retry_after_s is None else {}


def client_message(details: VendorErrorDetails) -> str:
    """Return the message, with the phrase by which clients recognize that a sandbox does not run. Pure."""
    if details.entry is not _NOT_RUNNING or NOT_FOUND in details.message:
        return details.message
    return f"The sandbox {NOT_FOUND}: {details.message}"
