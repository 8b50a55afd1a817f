"""The Range header of a request (RFC 9110, 14). Pure.

Invariants:
- A header with one range of bytes selects a part. All other headers (several ranges, another unit, malformed text) are ignored, as the RFC demands:
  the response has the whole.
- A range that begins after the end is refused with 416 and the size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.exceptions import HTTPException

_BYTES = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")
_UNSATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class ByteRange:
    """One part of a file.

    Args:
        start: Offset of the first byte.
        length: Number of bytes, at least one.
        size: Size of the whole file.
    """

    start: int
    length: int
    size: int

    @property
    def content_range(self) -> str:
        """Value of the header Content-Range."""
        return f"bytes {self.start}-{self.start + self.length - 1}/{self.size}"


def parse_range(header: str, size: int) -> ByteRange | None:
    """Return the part that a Range header selects, or None for the whole.

    Args:
        header: Value of the header.
        size: Size of the whole file.

    Raises:
        HTTPException: 416: the range is outside of the file.
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
        raise HTTPException(
            _UNSATISFIABLE, f"The range {header[:64]!r} is outside of the file, which has {size} bytes.", headers={"Content-Range": f"bytes */{size}"}
        )
    return ByteRange(start, end - start, size)
