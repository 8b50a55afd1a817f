"""What is answered, and the decisions of HTTP that need no I/O: ranges, what has not changed, what kind is wanted (RFC 9110). Pure."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

Headers = tuple[tuple[str, str], ...]


async def _nothing() -> None:
    """There is nothing to give back."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose body is not sent yet. Whoever gets one calls :attr:`close`, sent or not.

    Args:
        status: HTTP's.
        headers: Without Content-Length.
        length: Of the body; None if nobody knows, which makes it chunked.
        body: Its pieces. Raises where the connection is to be cut, because what was sent so far must not pass for the whole.
        close: Gives back what the body holds. Idempotent.
    """

    status: int
    headers: Headers
    length: int | None
    body: Callable[[], AsyncGenerator[bytes, None]]
    close: Callable[[], Awaitable[None]] = field(default=_nothing)


@dataclass(frozen=True, slots=True)
class Taking:
    """How a file is taken, and by whom.

    Args:
        range_: The header ``Range``; None for the whole.
        head: Its head alone is wanted.
        sandbox: Who takes it.
    """

    range_: str | None = None
    head: bool = False
    sandbox: str = ""


class Refusal(Exception):  # noqa: N818 - it is an answer, and mostly no error of ours
    """A request that is answered by a status and a line of text for a person.

    Args:
        status: HTTP's, from 300 on.
        text: What happened, and what to do. The sandbox reads it.
        headers: More of them.
    """

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes that there is.

    Args:
        start: Of the first byte.
        length: At least 1.
    """

    start: int
    length: int


def of_bytes(status: int, data: bytes, media_type: str, headers: Headers = ()) -> Answer:
    """An answer that is there already."""

    async def body() -> AsyncGenerator[bytes, None]:
        if data:
            yield data

    return Answer(status, (("Content-Type", media_type), *headers), len(data), body)


def of_refusal(refusal: Refusal) -> Answer:
    """A refusal as an answer."""
    return of_bytes(refusal.status, f"{refusal.text}\n".encode(), TEXT, refusal.headers)


def span(header: str | None, size: int) -> Span | None:
    """The range that is asked for, RFC 9110 section 14.

    Args:
        header: ``Range``.
        size: Of the whole.

    Returns:
        None for the whole: no range is asked for, or several, or something else than bytes.

    Raises:
        Refusal: 416, because nothing of it is there.
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
        raise Refusal(416, "Nothing of that range is there.", (("Content-Range", f"bytes */{size}"),))
    return Span(start, last - start + 1)


def unchanged(header: str | None, etag: str) -> bool:
    """Whether what the client has is what there is.

    Args:
        header: ``If-None-Match``.
        etag: Of what there is, with its quotes.
    """
    return header is not None and (header.strip() == "*" or etag in {word.strip().removeprefix("W/") for word in header.split(",")})


def preferred(accept: str | None, offered: Sequence[str]) -> str:
    """The media type to answer with; the first one offered where the client does not mind, or wants none of them.

    Args:
        accept: ``Accept``.
        offered: What there is, the best first.
    """
    weights: dict[str, float] = {}
    for word in (accept or "*/*").lower().split(","):
        name, *parameters = (part.strip() for part in word.split(";"))
        weights[name] = next((_weight(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
    best = max(offered, key=lambda each: (_weight_of(each, weights), -offered.index(each)))
    return best if _weight_of(best, weights) > 0 else offered[0]


def _weight_of(name: str, weights: Mapping[str, float]) -> float:
    return next((weights[each] for each in (name, f"{name.partition('/')[0]}/*", "*/*") if each in weights), 0.0)


def _weight(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](\.\d{0,3})?", text) else 0.0
