"""Failures as E2B's control plane and its code interpreter tell them: ``{"code": 404, "message": ...}`` and that status.

Clients choose by the status. 502 is what E2B's proxy answers in front of a sandbox that there is not, and its clients look for "was not found" in
the message: so is told whatever the inside of a sandbox is asked that has ended, or is paused, or ends while it is asked. The control plane tells 404
in its place (:mod:`sandlot.compat.e2b.control`). What Connect's RPCs answer is in ``envd/errors.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandlot.compat.vendor import Failure, Kind, table
from sandlot.model.errors import ErrorCode

NOT_FOUND = "was not found"
"""What clients look for in the message of a 502."""

ASKED_AGAIN = frozenset({429, 502, 503, 504})
"""Statuses after which the control plane's clients wait, as ``Retry-After`` says or a little, and ask again, three times (e2b, ``retry.py``)."""

_GONE = Kind(502, "unavailable")

TABLE = table(
    invalid=Kind(400, "invalid_argument"),
    unauthenticated=Kind(401, "unauthenticated"),
    forbidden=Kind(403, "permission_denied"),
    absent=Kind(404, "not_found"),
    conflict=Kind(409, "already_exists"),
    too_large=Kind(413, "resource_exhausted"),
    over=Kind(429, "resource_exhausted"),
    full=Kind(507, "resource_exhausted"),
    late=Kind(408, "deadline_exceeded"),
    unsupported=Kind(501, "unimplemented"),
    away=Kind(503, "unavailable"),
    internal=Kind(500, "internal"),
    others={
        ErrorCode.SANDBOX_ENDED: _GONE,
        ErrorCode.SANDBOX_PAUSED: _GONE,  # at E2B too a paused one is not running, and what does not resume it does not find it
        ErrorCode.SNAPSHOT_UNUSABLE: Kind(409, "failed_precondition"),
    },
)


def body(failure: Failure) -> Mapping[str, Any]:
    """What clients read. Pure."""
    return {"code": failure.kind.status, "message": told(failure)}


def headers(failure: Failure) -> Mapping[str, str]:
    """``Should-Retry: false`` where clients would ask again by themselves, and would be refused again. Pure."""
    return {"Should-Retry": "false"} if failure.kind.status in ASKED_AGAIN and failure.retry_after_s is None else {}


def told(failure: Failure) -> str:
    """The message, with the words by which clients know that a sandbox is no more. Pure."""
    if failure.kind is not _GONE or NOT_FOUND in failure.message:
        return failure.message
    return f"The sandbox {NOT_FOUND}: {failure.message}"
