"""Parts of an answer: the Range of a request (RFC 9110, 14). Pure.

Laws:
- One range of bytes is understood. Any other word (several ranges, another unit, nonsense) is passed over, as the RFC wants it: then the whole
  is answered.
- What begins beyond the end is refused with 416 and the size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.exceptions import HTTPException

_BYTES = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")
_UNSATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class ByteRange:
    """One part of something.

    Args:
        start: Its first byte.
        length: How many, at least one.
        size: Of the whole.
    """

    start: int
    length: int
    size: int

    @property
    def content_range(self) -> str:
        """As the answer says it (Content-Range)."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size}"


def parse_range(header: str, size: int) -> ByteRange | None:
    """The part that a request asks for; None is the whole.

    Args:
        header: Its Range.
        size: Of the whole.

    Raises:
        HTTPException: 416: none of it is there.
    """
    found = _BYTES.fullmatch(header.strip().replace(" ", ""))
    if found is None:
        return None
    first, last, suffix = found.groups()
    if suffix is not None:
        start, end = max(0, size - int(suffix)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < int(first):
            return None
    if start >= size or not end - start:
        raise HTTPException(_UNSATISFIABLE, f"There is nothing in {header[:100]} of {size} bytes.", headers={"Content-Range": f"bytes */{size}"})
    return ByteRange(start, end - start, size)
