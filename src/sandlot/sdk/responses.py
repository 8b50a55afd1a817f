"""Responses of the service: bodies to objects, problem documents to errors. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sandlot.model.errors import ErrorCode, InternalError, LimitError, SandboxEndedError, SandlotError, UnavailableError, from_code
from sandlot.model.faults import Fault, known_fault
from sandlot.sdk.models.files import FileEntry
from sandlot.sdk.models.sandboxes import SandboxInfo, SandboxState

ENDED = frozenset({SandboxState.STOPPED, SandboxState.FAILED})
SUSPENDED = frozenset({SandboxState.PAUSING, SandboxState.PAUSED, SandboxState.HIBERNATING, SandboxState.HIBERNATED, SandboxState.WAKING})

MAX_DIRECTORY_ENTRIES = 1_000_000
"""Largest number of entries of a directory that is listed; each takes half a KiB of memory in the client."""

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
"""Code for a status without a known code. None of these codes is retryable."""


class JsonLines:
    """Decoder of JSON objects, one per line. Empty lines keep the connection alive and are ignored."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Return the objects that the next bytes complete.

        Raises:
            InternalError: A line is not a JSON object.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            if line.strip():
                yield decode_object(line)


def next_cursor(page: Mapping[str, Any], cursor: str | None) -> str | None:
    """Return the cursor of the next page; None on the last page.

    Args:
        page: The page.
        cursor: Cursor of the page itself.

    Raises:
        InternalError: The next page is the page itself, so that reading the list would never end.
    """
    following = page.get("next_cursor") or None
    if following is not None and following == cursor:
        raise InternalError(
            f"The server returned the page cursor {following!r} twice.", hint="Disable response caching in the proxy between client and service."
        )
    return following


def error_from_response(status: int, content_type: str, body: bytes, request_id: str = "") -> SandlotError:
    """Return the error of a response with a status of 400 or above."""
    problem = _object(body)
    if problem is not None and isinstance(problem.get("code"), str):
        return error_from_problem(problem)
    start = body[:200].decode("utf-8", "replace").strip()
    error = UnavailableError if status in {502, 503, 504} else InternalError
    return error(
        f"The server returned status {status} without a problem document: {start!r} ({content_type or 'no content type'}).",
        code=ErrorCode.SERVICE_UNAVAILABLE if error is UnavailableError else ErrorCode.INTERNAL,
        hint="Check that SANDLOT_URL is the address of a Sandlot service.",
        fields={"status": status, **({"request_id": request_id} if request_id else {})},
    )


def error_from_problem(problem: Mapping[str, Any]) -> SandlotError:
    """Return the error that a problem document (RFC 9457) describes.

    A code that this version does not know is replaced by the code of its status, and kept in ``fields["code"]``.
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
        str(problem.get("detail") or problem.get("title") or "The request failed."),
        hint=str(problem.get("hint") or ""),
        fields=details,
        fault=known_fault(problem.get("fault")),
    )


def cut_by_hibernation(error: SandlotError) -> bool:
    """Return True if a hibernation of the sandbox cut the call. The work of the call continues after the wake, which a repeated request causes."""
    return error.code is ErrorCode.SANDBOX_PAUSED and error.fields.get("cut") is True


def _code_of(status: object) -> ErrorCode:
    if not isinstance(status, int):
        return ErrorCode.INTERNAL
    return _CODE_OF_STATUS.get(status, ErrorCode.INVALID_REQUEST if status in _CLIENT_ERRORS else ErrorCode.INTERNAL)


def is_retryable(body: bytes) -> bool:
    """Return True if a problem document says so. Other responses come from proxies, which do not know whether the request was carried out."""
    return (_object(body) or {}).get("retryable") is True


def check_alive(info: SandboxInfo) -> None:
    """Raise an error if a sandbox has ended.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    if info.state in ENDED:
        raise SandboxEndedError(
            f"The sandbox {info.id} has ended: {info.exit_detail or info.exit_reason or info.state}.",
            code=ErrorCode.SANDBOX_ENDED,
            hint="Create another sandbox.",
            fields={"sandbox": info.id, "reason": info.exit_reason, "detail": info.exit_detail},
            fault=known_fault(info.fault) or Fault.REQUEST,
        )


def check_page(before: Sequence[FileEntry], page: Sequence[FileEntry], *, more: bool) -> None:
    """Raise an error if a directory listing does not end. It comes from a sandbox, which is not trusted.

    Args:
        before: Entries of the previous pages.
        page: Entries of this page.
        more: True if another page follows.

    Raises:
        LimitError: The listing has too many entries or repeats itself.
    """
    repeats = bool(before) and bool(page) and page[0].name == before[0].name
    if repeats or (more and (not page or len(before) + len(page) > MAX_DIRECTORY_ENTRIES)):
        raise LimitError(
            f"The directory has more than {MAX_DIRECTORY_ENTRIES} entries, or its listing does not end.",
            code=ErrorCode.TOO_LARGE,
            hint="List it with a command in the sandbox, for example `find`.",
        )


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a response; an empty one for an empty body.

    Raises:
        InternalError: The body is not a JSON object.
    """
    if not body:
        return {}
    decoded = _object(body)
    if decoded is None:
        raise InternalError(
            "The server returned a body that is not a JSON object.", hint="Check that SANDLOT_URL is the address of a Sandlot service."
        )
    return decoded


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        decoded = json.loads(body)
    except ValueError:
        return None
    return decoded if isinstance(decoded, dict) else None
