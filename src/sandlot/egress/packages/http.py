"""Requests and responses of the package cache as values, and the rules of HTTP that need no I/O (RFC 9110). Pure.

Invariant: each character of a request path is checked before any part of the path is used in a URL of upstream or in a file name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

MAX_TARGET_BYTES = 2048
"""Maximum size of the path of a request, in bytes."""
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_SEGMENT = re.compile(r"[\x21-\x7e]{1,255}")

Headers = tuple[tuple[str, str], ...]


class HttpError(Exception):
    """An error response to a request of a sandbox. Its body is one line of text.

    Args:
        status: HTTP status of the response, 300 or above.
        text: Description of the error and what to do about it, for people who read it in the sandbox.
        headers: Headers of the response, in addition to ``Content-Type``.
    """

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


@dataclass(frozen=True, slots=True)
class PackageFileRequest:
    """Options of a request for a package file.

    Args:
        range_: Value of the ``Range`` header. None requests the whole file.
        head: True for a HEAD request.
        reload: True if the stored copy of the file must be replaced (``Cache-Control: no-cache``).
        sandbox: Id of the sandbox that sent the request.
    """

    range_: str | None = None
    head: bool = False
    reload: bool = False
    sandbox: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """A parsed HTTP request of a sandbox.

    Args:
        segments: Decoded segments of the path. None of them is empty, ``.`` or ``..``, or contains a backslash.
        is_folder: True if the path ends with a slash.
        headers: Header values by lower-case name. Only the last value of a repeated header is kept.
        head: True for a HEAD request.
        sandbox: Id of the sandbox that sent the request.
        query: Query of the target, encoded. Only images use it.
    """

    segments: tuple[str, ...]
    is_folder: bool
    headers: Mapping[str, str]
    head: bool = False
    sandbox: str = ""
    query: str = ""

    def file_request(self, etag: str | None) -> PackageFileRequest:
        """Return the options of this request, which asks for a package file: its byte range, its method and whether to reload the file.

        Args:
            etag: ETag of the requested file with its quotes. None if the file has no ETag.
        """
        reload = "no-cache" in self.headers.get("cache-control", "").lower()
        return PackageFileRequest(self.range_for(etag), self.head, reload, self.sandbox)

    def range_for(self, etag: str | None) -> str | None:
        """Return the value of the ``Range`` header. Ignore the header if ``If-Range`` limits it to another version of the file.

        Args:
            etag: ETag of the requested file with its quotes. None if the file has no ETag.

        Returns:
            None if there is no ``Range`` header, or if the header is ignored.
        """
        condition = self.headers.get("if-range")
        return self.headers.get("range") if condition is None or condition == etag else None


async def _nothing() -> None:
    """Do nothing; for a response without resources to release."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response whose body has not been sent yet. The caller must call :attr:`close`, even if the body is never sent.

    Args:
        status: HTTP status of the response.
        headers: All headers except ``Content-Length``.
        length: Size of the body in bytes. None if the size is unknown; the body is then sent with chunked transfer coding.
        body: Returns a generator of the pieces of the body. The generator raises if the body cannot be completed. The caller must then cut the
            connection, so that the client does not treat an incomplete body as complete.
        close: Releases the resources of the body. Idempotent.
    """

    status: int
    headers: Headers
    length: int | None
    body: Callable[[], AsyncGenerator[bytes, None]]
    close: Callable[[], Awaitable[None]] = field(default=_nothing)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A range of consecutive bytes of a file.

    Args:
        start: Offset of the first byte.
        length: Number of bytes, at least 1.
    """

    start: int
    length: int


def bytes_response(status: int, data: bytes, media_type: str, headers: Headers = ()) -> Response:
    """Return a response whose whole body is in memory."""

    async def body() -> AsyncGenerator[bytes, None]:
        if data:
            yield data

    return Response(status, (("Content-Type", media_type), *headers), len(data), body)


def error_response(error: HttpError) -> Response:
    """Return the response that reports an error to the client."""
    return bytes_response(error.status, f"{error.text}\n".encode(), TEXT, error.headers)


def parse_target(target: bytes) -> tuple[tuple[str, ...], bool]:
    """Parse the target of a request. Return the decoded segments of its path, and True if the path ends with a slash.

    Args:
        target: The target as the client sent it. Its query is ignored.

    Raises:
        HttpError: Status 400: the target is not a path that a package can have.
    """
    raw = target.partition(b"?")[0]
    if len(raw) > MAX_TARGET_BYTES or not raw.startswith(b"/"):
        raise HttpError(400, f"{raw[:64].decode('ascii', 'replace')!r} is not the path of a package.")
    parts = raw[1:].split(b"/")
    is_folder = parts[-1] == b""
    found = []
    for part in parts[:-1] if is_folder else parts:
        try:
            text = unquote_to_bytes(part).decode("ascii")
        except UnicodeDecodeError:
            raise HttpError(400, f"{raw[:64].decode('ascii', 'replace')!r} is not the path of a package.") from None
        # npm encodes the slash of "@scope/name" as %2f; no other segment contains a slash.
        if not _SEGMENT.fullmatch(text) or "\\" in text or text in {".", ".."} or ("/" in text and not text.startswith("@")) or text.count("/") > 1:
            raise HttpError(400, f"{raw[:64].decode('ascii', 'replace')!r} is not the path of a package.")
        found.append(text)
    return tuple(found), is_folder


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Return the range of bytes that a request selects (RFC 9110 section 14).

    Args:
        header: Value of the ``Range`` header, or None if the request has no such header.
        size: Size of the whole file in bytes.

    Returns:
        The selected range. None if the whole file is to be sent: the header is missing, is malformed, names several ranges, or is not in bytes.

    Raises:
        HttpError: Status 416: the range is outside the file.
    """
    found = _RANGE.fullmatch(header.strip()) if header else None
    if found is None or not (found[1] or found[2]):
        return None
    if found[1]:
        start, last = int(found[1]), min(int(found[2]), size - 1) if found[2] else size - 1
        if found[2] and int(found[2]) < start:
            return None
    else:
        start, last = max(0, size - int(found[2])), size - 1
    if start > last:
        raise HttpError(416, f"The range {found[0]} is outside the file, which has {size} bytes.", (("Content-Range", f"bytes */{size}"),))
    return ByteRange(start, last - start + 1)


def is_not_modified(header: str | None, etag: str) -> bool:
    """Return whether the client already has the current version of a page. If so, the response is 304 Not Modified.

    Args:
        header: Value of the ``If-None-Match`` header, or None if the request has no such header.
        etag: ETag of the current version with its quotes.
    """
    return header is not None and (header.strip() == "*" or etag in {word.strip().removeprefix("W/") for word in header.split(",")})


def preferred_type(accept: str | None, offered: Sequence[str]) -> str:
    """Return the offered media type that a client prefers. Return the first offered type if the client has no preference or accepts none of them.

    Args:
        accept: Value of the ``Accept`` header, or None if the request has no such header.
        offered: Media types in which the page is available, the best first.
    """
    weights: dict[str, float] = {}
    for word in (accept or "*/*").lower().split(","):
        name, *parameters = (part.strip() for part in word.split(";"))
        weights[name] = next((_parse_weight(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
    best = max(offered, key=lambda each: (_weight_of(each, weights), -offered.index(each)))
    return best if _weight_of(best, weights) > 0 else offered[0]


def _weight_of(name: str, weights: Mapping[str, float]) -> float:
    return next((weights[each] for each in (name, f"{name.partition('/')[0]}/*", "*/*") if each in weights), 0.0)


def _parse_weight(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.\d{0,3})?", text) else 0.0
