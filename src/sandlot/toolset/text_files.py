"""Lines of a text file that is read as a stream."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from dataclasses import dataclass

MAX_SCANNED_BYTES = 64 * 1024 * 1024
"""Largest number of bytes that are read to find a line."""
_SNIFFED_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a file.

    Args:
        text: The lines, without the last line break.
        count: Number of lines.
        more: True if the file has more lines.
        is_cut: True if the last line is longer than it may be, and its rest is left out.
        total_lines: Number of lines of the file, if the file ends before the first wanted line; otherwise None.
    """

    text: str
    count: int
    more: bool = False
    is_cut: bool = False
    total_lines: int | None = None


class NotTextError(Exception):
    """The file is not text."""


class TooFarError(Exception):
    """The wanted lines are too far behind the beginning of the file."""


async def read_lines(content: AsyncIterator[bytes], first: int, limit: int, max_chars: int) -> Lines:
    """Read lines of a file, and not much more of it.

    Args:
        content: Content of the file.
        first: Number of the first line, from 1.
        limit: Largest number of lines.
        max_chars: Largest number of characters. Whole lines are left out, except the first one.

    Raises:
        NotTextError: The file has a NUL character at its beginning.
        TooFarError: The first line is more than ``MAX_SCANNED_BYTES`` behind the beginning.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[str] = []
    to_skip, breaks, chars, scanned = first - 1, 0, 0, 0
    last, has_stopped = "\n", False
    async for chunk in content:
        if scanned < _SNIFFED_BYTES and b"\0" in chunk[: _SNIFFED_BYTES - scanned]:
            raise NotTextError
        scanned += len(chunk)
        text = decoder.decode(chunk)
        last = text[-1:] or last
        if to_skip:
            if scanned > MAX_SCANNED_BYTES:
                raise TooFarError
            text, to_skip = _skip_lines(text, to_skip)
        parts.append(text)
        chars += len(text)
        breaks += text.count("\n")
        if breaks > limit or chars > max_chars:
            has_stopped = True
            break
    if first > 1 and not chars:
        return Lines("", 0, total_lines=first - 1 - to_skip + (to_skip > 0 and last != "\n"))
    return _cut_lines("".join(parts), limit, max_chars, has_stopped=has_stopped)


def _skip_lines(text: str, to_skip: int) -> tuple[str, int]:
    found = text.count("\n")
    if found < to_skip:
        return "", to_skip - found
    return text.split("\n", to_skip)[to_skip], 0


def _cut_lines(text: str, limit: int, max_chars: int, *, has_stopped: bool) -> Lines:
    if not text:
        return Lines("", 0)
    lines = text.removesuffix("\n").split("\n")
    kept, chars = 0, 0
    for line in lines[:limit]:
        chars += len(line) + 1
        if chars > max_chars + 1 and kept:
            break
        kept += 1
    shown = "\n".join(lines[:kept])
    return Lines(shown[:max_chars], kept, more=has_stopped or kept < len(lines), is_cut=len(shown) > max_chars)
