"""Responses of the service: bodies to objects, problem documents to errors. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sandlot.model.errors import ErrorCode, InternalError, LimitError, SandboxEndedError, SandlotError, UnavailableError, from_code
from sandlot.model.states import State
from sandlot.sdk.models.files import FileEntry
from sandlot.sdk.models.sandboxes import SandboxInfo

ENDED = frozenset({State.STOPPED, State.FAILED})

SUSPENDED = frozenset({State.PAUSING, State.PAUSED, State.HIBERNATING, State.HIBERNATED, State.WAKING})

MAX_DIRECTORY_ENTRIES = 1_000_000
"""Entries of one folder; each takes half a KiB of memory here."""

_CLIENT_ERRORS = range(400, 500)

_CODE_OF_STATUS: Mapping[int, ErrorCode] = {
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.FORBIDDEN,
    404: ErrorCode.NOT_FOUND,
    408: ErrorCode.TIMEOUT,
    409: ErrorCode.CONFLICT,
    410: ErrorCode.SANDBOX_ENDED,
    413: ErrorCode.TOO_LARGE,
    429: ErrorCode.LIMIT_EXCEEDED,
    501: ErrorCode.UNSUPPORTED,
    503: ErrorCode.HOST_NOT_READY,
    507: ErrorCode.DISK_FULL,
}
"""The least that a status says; none of these codes says by itself that a call may be repeated."""


class JsonLines:
    """Lines of JSON out of pieces of bytes, wherever these are cut; empty lines are signs of life."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """The lines that a piece completes."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        for line in whole:
            if line.strip():
                yield json.loads(line)


def next_cursor(page: Mapping[str, Any], cursor: str | None) -> str | None:
    """The cursor of the page that follows; None where there is none.

    Args:
        page: The page.
        cursor: Its own.

    Raises:
        InternalError: It leads to itself, which would never end.
    """
    found = page.get("next_cursor") or None
    if found is not None and found == cursor:
        raise InternalError("A page of the service's list is followed by itself.", hint="Is there a proxy that keeps answers?")
    return found


def error_from_response(status: int, content_type: str, body: bytes, request_id: str = "") -> SandlotError:
    """The error that an answer of 400 and above stands for."""
    problem = _object(body)
    if problem is not None and isinstance(problem.get("code"), str):
        return error_from_problem(problem)
    start = body[:200].decode("utf-8", "replace").strip()
    error = UnavailableError if status in {502, 503, 504} else InternalError
    return error(
        f"The service answered {status} without saying why: {start!r} ({content_type or 'no content type'}).",
        code=ErrorCode.SERVICE_UNAVAILABLE if error is UnavailableError else ErrorCode.INTERNAL,
        hint="Check that SANDLOT_URL is the address of a Sandlot service.",
        fields={"status": status, **({"request_id": request_id} if request_id else {})},
    )


def error_from_problem(problem: Mapping[str, Any]) -> SandlotError:
    """The error that a problem document (RFC 9457) of the service describes.

    A code that this version does not know counts as the one that its status stands for, and is kept in ``fields["code"]``.
    """
    fields = problem.get("fields")
    details = dict(fields) if isinstance(fields, Mapping) else {}
    if problem.get("request_id"):
        details.setdefault("request_id", problem["request_id"])
    code = str(problem.get("code", ""))
    if code not in ErrorCode.__members__.values():
        details["code"] = code
        code = _code_of(problem.get("status"))
    return from_code(
        code,
        str(problem.get("detail") or problem.get("title") or "The service failed."),
        hint=str(problem.get("hint") or ""),
        fields=details,
    )


def cut_by_hibernation(error: SandlotError) -> bool:
    """Whether a call was cut because its sandbox was hibernated under it: what it began goes on, and asking for that resumes it."""
    return error.code is ErrorCode.SANDBOX_PAUSED and error.fields.get("cut") is True


def _code_of(status: object) -> ErrorCode:
    """What a status says where a code says nothing."""
    if not isinstance(status, int):
        return ErrorCode.INTERNAL
    return _CODE_OF_STATUS.get(status, ErrorCode.INVALID_REQUEST if status in _CLIENT_ERRORS else ErrorCode.INTERNAL)


def is_retryable(body: bytes) -> bool:
    """Whether the body of an answer says that the same call may be made again; what lies between us and the service does not know."""
    return (_object(body) or {}).get("retryable") is True


def check_alive(info: SandboxInfo) -> None:
    """Refuse a sandbox that has ended.

    Raises:
        SandboxEndedError: It has.
    """
    if info.state in ENDED:
        raise SandboxEndedError(
            f"The sandbox {info.id} has ended: {info.exit_detail or info.exit_reason or info.state}.",
            code=ErrorCode.SANDBOX_ENDED,
            hint="Create another one.",
            fields={"sandbox": info.id, "reason": info.exit_reason, "detail": info.exit_detail},
        )


def check_page(before: Sequence[FileEntry], page: Sequence[FileEntry], *, more: bool) -> None:
    """Refuse a listing that does not come to an end: it comes from a sandbox, which is not trusted.

    Args:
        before: The entries of the pages before.
        page: Those of this one.
        more: Whether another one is said to follow.

    Raises:
        LimitError: It goes on beyond what anybody can use, or stands still.
    """
    repeats = bool(before) and bool(page) and page[0].name == before[0].name
    if repeats or (more and (not page or len(before) + len(page) > MAX_DIRECTORY_ENTRIES)):
        raise LimitError(
            f"The folder's listing does not end within {MAX_DIRECTORY_ENTRIES} entries.",
            code=ErrorCode.TOO_LARGE,
            hint="Look at it by a command in the sandbox, for example `find`.",
        )


def decode_object(body: bytes) -> dict[str, Any]:
    """The object that a good answer carries; an empty one for an empty body.

    Raises:
        InternalError: It is no JSON object.
    """
    if not body:
        return {}
    decoded = _object(body)
    if decoded is None:
        raise InternalError(
            "The service answered with something that is no JSON object.", hint="Check that SANDLOT_URL is the address of a Sandlot service."
        )
    return decoded


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = json.loads(body)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
