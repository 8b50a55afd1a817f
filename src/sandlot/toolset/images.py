"""Images for models: check that an image from a sandbox is one that the APIs of models accept.

The APIs refuse the whole conversation if one of its images is damaged or too large, and a sandbox decides what its images contain. Only the headers
are read; nothing is decoded or rendered.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Mapping
from typing import Final

MAX_IMAGE_BYTES: Final = 3_750_000
"""Largest image in bytes. Anthropic's limit is 5 MB of base64."""
MAX_SIDE_PIXELS: Final = 8000
"""Largest width or height. Anthropic's limit."""

_JPEG_SIZES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers of the segments that have the size of a JPEG image (ITU-T T.81, B.1.1.3)."""


def media_type(content: bytes) -> str | None:
    """Return the media type of an image from its first bytes; None if it is not an image that models accept."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if content[:4] == b"RIFF" and content[8:12] == b"WEBP" else None


def check_image(content: bytes) -> str:
    """Return the reason why models do not accept an image; empty if they do."""
    kind = media_type(content)
    if kind is None:
        return "it is not a PNG, JPEG, GIF or WebP image"
    if len(content) > MAX_IMAGE_BYTES:
        return f"it has {len(content):,} bytes, and at most {MAX_IMAGE_BYTES:,} can be shown"
    try:
        width, height = _SIZES[kind](content)
    except (struct.error, IndexError):
        return "it is damaged"
    if not (0 < width <= MAX_SIDE_PIXELS and 0 < height <= MAX_SIDE_PIXELS):
        return f"it has {width} x {height} pixels, and at most {MAX_SIDE_PIXELS} x {MAX_SIDE_PIXELS} can be shown"
    return ""


def decode_image(data: str) -> bytes:
    """Return the bytes of an image in base64; empty if the text is not base64, or is too long for an image that can be shown."""
    if len(data) > 2 * MAX_IMAGE_BYTES:
        return b""
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _png_size(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from(">II", content, 16)
    return width, height


def _gif_size(content: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", content, 6)
    return width, height


def _jpeg_size(content: bytes) -> tuple[int, int]:
    position = 2
    while True:
        marker, length = struct.unpack_from(">HH", content, position)
        if marker >> 8 != 0xFF or length < 2:  # noqa: PLR2004 - a segment begins with FF, and its length counts itself
            return 0, 0
        if marker & 0xFF in _JPEG_SIZES:
            height, width = struct.unpack_from(">HH", content, position + 5)
            return width, height
        position += 2 + length


def _webp_size(content: bytes) -> tuple[int, int]:
    match content[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(content[24:27], "little"), 1 + int.from_bytes(content[27:30], "little")
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", content, 21)
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case _:
            width, height = struct.unpack_from("<HH", content, 26)
            return width & 0x3FFF, height & 0x3FFF


_SIZES: Final[Mapping[str, Callable[[bytes], tuple[int, int]]]] = {
    "image/png": _png_size,
    "image/jpeg": _jpeg_size,
    "image/gif": _gif_size,
    "image/webp": _webp_size,
}
