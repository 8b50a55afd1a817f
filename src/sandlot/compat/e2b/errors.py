"""Failures as E2B's control plane and its code interpreter tell them: ``{"code": 404, "message": ...}`` and that status.

Clients choose by the status. 502 is what E2B's proxy answers in front of a sandbox that there is not, and its clients look for "was not found" in
the message: so is told whatever the inside of a sandbox is asked that has ended, or is paused, or ends while it is asked. The control plane tells 404
in its place (:mod:`sandlot.compat.e2b.control`). What Connect's RPCs answer is in ``envd/errors.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import ErrorTableEntry, VendorErrorDetails, error_table
from sandlot.model.errors import ErrorCode

NOT_FOUND = "was not found"
"""What clients look for in the message of a 502."""

ASKED_AGAIN = frozenset({429, 502, 503, 504})
"""Statuses after which the control plane's clients wait, as ``Retry-After`` says or a little, and ask again, three times (e2b, ``retry.py``)."""

_GONE = ErrorTableEntry(502, "unavailable")

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
        ErrorCode.SANDBOX_ENDED: _GONE,
        ErrorCode.SANDBOX_PAUSED: _GONE,  # at E2B too a paused one is not running, and what does not resume it does not find it
        ErrorCode.SNAPSHOT_UNUSABLE: ErrorTableEntry(409, "failed_precondition"),
    },
)


def body(details: VendorErrorDetails) -> Mapping[str, Any]:
    """What clients read. Pure."""
    return {"code": details.entry.status, "message": told(details)}


def headers(details: VendorErrorDetails) -> Mapping[str, str]:
    """``Should-Retry: false`` where clients would ask again by themselves, and would be refused again. Pure."""
    return {"Should-Retry": "false"} if details.entry.status in ASKED_AGAIN and details.retry_after_s is None else {}


def told(details: VendorErrorDetails) -> str:
    """The message, with the words by which clients know that a sandbox is no more. Pure."""
    if details.entry is not _GONE or NOT_FOUND in details.message:
        return details.message
    return f"The sandbox {NOT_FOUND}: {details.message}"
