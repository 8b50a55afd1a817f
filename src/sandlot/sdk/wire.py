"""Requests and answers as the native API has them: pure functions between the SDK's words and HTTP's.

Laws:
- What is not given is not sent, so that the service's defaults hold; what the SDK cannot express is refused here, before
  anything is sent.
- An error is rebuilt from its code, a code of a newer service from its status; an answer that is no problem document of ours becomes an error
  that shows it.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from sandlot.model.errors import (
    ErrorCode,
    InternalError,
    InvalidRequestError,
    LimitError,
    SandboxEndedError,
    SandlotError,
    UnavailableError,
    from_code,
)
from sandlot.model.specs import GIB, KIB, MAX_TIMEOUT_S, MIB
from sandlot.model.states import State
from sandlot.sdk.info import Entry, Network, SandboxInfo
from sandlot.sdk.saved.volumes import mounts_body

ENDED = frozenset({State.STOPPED, State.FAILED})
RESTING = frozenset({State.PAUSING, State.PAUSED, State.HIBERNATING, State.HIBERNATED, State.WAKING})
PAGE = 100
"""What the service puts on a page by default."""

MAX_LISTED = 1_000_000
"""Entries of one folder; each takes half a KiB of memory here."""

_CLIENTS_FAULT = range(400, 500)
_STATUSES: Mapping[int, ErrorCode] = {
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

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B?)\s*", re.IGNORECASE)
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": 1024 * GIB}


def once() -> dict[str, str]:
    """The header under which the service does a request once however often it is sent."""
    return {"Idempotency-Key": uuid.uuid4().hex}


def size_bytes(value: int | str) -> int:
    """A size in bytes: a number as it is, or text with a unit of 1024s: ``512M``, ``1.5GiB``.

    Raises:
        InvalidRequestError: The text is no size.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise InvalidRequestError(f"{value!r} is no size.", hint="Sizes are bytes, or a number with a unit: 512M, 1.5GiB.")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def utf8(text: str, what: str = "text") -> bytes:
    """Text as UTF-8.

    Raises:
        InvalidRequestError: It has lone surrogates, which are what Python makes of bytes that are no text.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"The {what} is not valid Unicode text.", hint="Pass binary content as bytes, in a file.") from None


def encode(body: Mapping[str, Any]) -> bytes:
    """A request's body as JSON.

    Raises:
        InvalidRequestError: It holds something that JSON cannot carry.
    """
    try:
        return utf8(json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False), "request")
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"The request cannot be sent as JSON: {error}.", hint="Numbers are finite, everything else is text.") from error


def given(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """The fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def segment(text: str) -> str:
    """Text as one segment of a URL's path, whatever is in it."""
    return quote(text, safe="") or "%20"


def reached(url: str, base_url: str | None) -> str:
    """A URL that the service gave, by the address that this client reaches it at: proxies between them have others. Pure.

    Args:
        url: Absolute, or a path.
        base_url: The client's; None leaves it as it is.
    """
    parts = urlsplit(url)
    return url if base_url is None else f"{base_url.rstrip('/')}{parts.path}?{parts.query}"


def limits_body(*, cpus: float | None, memory: int | str | None, disk: int | str | None, pids: int | None) -> dict[str, Any]:
    """The limits that are given, as requests carry them.

    Raises:
        InvalidRequestError: A size that is none.
    """
    return given(
        cpus=cpus,
        memory_bytes=None if memory is None else size_bytes(memory),
        disk_bytes=None if disk is None else size_bytes(disk),
        pids=pids,
    )


def sandbox_body(  # noqa: PLR0913 - what a sandbox is made of
    *,
    template: str | None,
    timeout: float | None,
    idle_timeout: float | None,
    persistent: bool,
    envs: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
    limits: Mapping[str, Any],
    isolation: str | None,
    network: Network | None,
    name: str | None,
    files: Iterable[str] | None,
    snapshot: str | None = None,
    on_timeout: str | None = None,
    auto_resume: bool | None = None,
    volumes: Mapping[str, str] | None = None,
    unique_name: bool = False,
) -> dict[str, Any]:
    """The body that creates a sandbox."""
    return given(
        template=template,
        timeout=timeout,
        idle_timeout=idle_timeout,
        persistent=persistent or None,
        env=None if envs is None else dict(envs),
        metadata=None if metadata is None else dict(metadata),
        limits=given(**limits) or None,
        isolation=isolation,
        network=None if network is None else {"mode": network.mode},
        name=name,
        files=None if files is None else list(files),
        snapshot=snapshot,
        on_timeout=on_timeout,
        auto_resume=auto_resume,
        volumes=None if volumes is None else mounts_body(volumes),
        unique_name=unique_name or None,
    )


def listing(*, state: str | Iterable[str] | None, metadata: Mapping[str, str] | None, ended: bool, name: str | None = None) -> dict[str, Any]:
    """The query that lists sandboxes."""
    states = state if isinstance(state, str) or state is None else ",".join(state)
    entries = [f"{word}={value}" for word, value in (metadata or {}).items()]
    return given(state=states, metadata=entries or None, all="true" if ended else None, name=name)


def page_size(left: int | None) -> int | None:
    """How many items to ask for, of so many that are wanted; None where the service may choose."""
    return None if left is None or left >= PAGE else left


def following(page: Mapping[str, Any], cursor: str | None) -> str | None:
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


def process_body(
    command: str | Sequence[str],
    *,
    envs: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    timeout: float | None,
    background: bool,
    stdin: str | None,
    stdin_open: bool,
    tag: str | None = None,
) -> dict[str, Any]:
    """The body that starts a process; ``timeout`` None is sent, because it means "no limit"."""
    start: dict[str, Any] = {"command": command} if isinstance(command, str) else {"argv": [str(part) for part in command]}
    options = given(env=None if envs is None else dict(envs), cwd=cwd, user=user, stdin=stdin, tag=tag)
    if stdin_open:
        options["stdin_open"] = True
    if background:
        options["background"] = True
    return {**start, **options, "timeout": timeout}


def answer_wait_s(timeout_s: float | None, beyond_s: float) -> float | None:
    """How long the answer of a run may take to begin; None where the run may take for ever.

    Args:
        timeout_s: The run's own limit; one that is none is the service's to refuse, and is not waited for.
        beyond_s: How much later the answer may come.
    """
    return None if timeout_s is None else min(max(0.0, timeout_s), MAX_TIMEOUT_S) + beyond_s


def split_stdin(data: str | bytes, inline_bytes: int = 64 * KIB) -> tuple[str | None, bytes]:
    """How standard input travels: small text inside of the request, everything else beside it.

    Returns:
        The text to put into the request, or None and the bytes to send by themselves.
    """
    raw = utf8(data, "standard input") if isinstance(data, str) else data
    if len(raw) <= inline_bytes:
        try:
            return raw.decode(), b""
        except UnicodeDecodeError:
            pass
    return None, raw


def failure(status: int, content_type: str, body: bytes, request_id: str = "") -> SandlotError:
    """The error that an answer of 400 and above stands for."""
    problem = _object(body)
    if problem is not None and isinstance(problem.get("code"), str):
        return from_problem(problem)
    start = body[:200].decode("utf-8", "replace").strip()
    error = UnavailableError if status in {502, 503, 504} else InternalError
    return error(
        f"The service answered {status} without saying why: {start!r} ({content_type or 'no content type'}).",
        code=ErrorCode.SERVICE_UNAVAILABLE if error is UnavailableError else ErrorCode.INTERNAL,
        hint="Check that SANDLOT_URL is the address of a Sandlot service.",
        fields=given(status=status, request_id=request_id or None),
    )


def from_problem(problem: Mapping[str, Any]) -> SandlotError:
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


def came_to_rest(error: SandlotError) -> bool:
    """Whether a call was cut because its sandbox was hibernated under it: what it began goes on, and asking for that resumes it."""
    return error.code is ErrorCode.SANDBOX_PAUSED and error.fields.get("cut") is True


def _code_of(status: object) -> ErrorCode:
    """What a status says where a code says nothing."""
    if not isinstance(status, int):
        return ErrorCode.INTERNAL
    return _STATUSES.get(status, ErrorCode.INVALID_REQUEST if status in _CLIENTS_FAULT else ErrorCode.INTERNAL)


def retryable(body: bytes) -> bool:
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


def check_page(before: Sequence[Entry], page: Sequence[Entry], *, more: bool) -> None:
    """Refuse a listing that does not come to an end: it comes from a sandbox, which is not trusted.

    Args:
        before: The entries of the pages before.
        page: Those of this one.
        more: Whether another one is said to follow.

    Raises:
        LimitError: It goes on beyond what anybody can use, or stands still.
    """
    repeats = bool(before) and bool(page) and page[0].name == before[0].name
    if repeats or (more and (not page or len(before) + len(page) > MAX_LISTED)):
        raise LimitError(
            f"The folder's listing does not end within {MAX_LISTED} entries.",
            code=ErrorCode.TOO_LARGE,
            hint="Look at it by a command in the sandbox, for example `find`.",
        )


def parse(body: bytes) -> dict[str, Any]:
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
