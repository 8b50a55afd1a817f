"""Positions in bytes of UTF-8 at which text can be cut without breaking a character."""

from __future__ import annotations

import codecs
from typing import Final

_LONGEST_START: Final = 3
"""Largest number of bytes of a character that is incomplete."""
_CONTINUATIONS: Final = bytes(range(0x80, 0xC0))


def incomplete_end(data: bytes | bytearray) -> int:
    """Return the number of bytes, at most three, at the end of ``data`` that are the beginning of a character."""
    end = data[-_LONGEST_START:]
    return len(end) - codecs.utf_8_decode(end, "replace", False)[1]


def incomplete_start(data: bytes | bytearray) -> int:
    """Return the number of bytes, at most three, at the start of ``data`` that can only be the end of a character."""
    start = data[:_LONGEST_START]
    return len(start) - len(start.lstrip(_CONTINUATIONS))
