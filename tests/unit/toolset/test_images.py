"""Images from sandboxes: only what the APIs of models accept."""

from __future__ import annotations

import base64
import struct
import zlib

from sandlot.toolset.images import MAX_IMAGE_BYTES, check_image, decode_image, media_type
from tests.support.cases import cases


def png(width: int, height: int) -> bytes:
    """Return a PNG image of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(b"".join(b"\0" + b"\0\0\0" * width for _ in range(height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg(width: int, height: int) -> bytes:
    return b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + bytes(9) + b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height)


def webp(kind: bytes, rest: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + rest


@cases(
    "content, kind",
    [
        (png(2, 3), "image/png"),
        (jpeg(2, 3), "image/jpeg"),
        (gif(2, 3), "image/gif"),
        (webp(b"VP8X", b"\0\0\0\0" + b"\1\0\0" + b"\2\0\0"), "image/webp"),
        (webp(b"VP8L", b"\x2f" + struct.pack("<I", 1 | 2 << 14)), "image/webp"),
        (webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 2, 3)), "image/webp"),
    ],
)
def test_small_images_are_accepted(content: bytes, kind: str) -> None:
    assert (media_type(content), check_image(content)) == (kind, "")


@cases(
    "content, word",
    [
        (b"", "not a PNG"),
        (b"<svg/>", "not a PNG"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
        (png(2, 3)[:20], "damaged"),
        (b"\xff\xd8\xff", "damaged"),
        (b"\xff\xd8\xff\xe0\0\0", "0 x 0"),
        (jpeg(0, 3), "0 x 3"),
        (jpeg(9000, 3), "9000 x 3"),
        (gif(2, 65535), "65535"),
        (png(1, 1)[:16] + struct.pack(">II", 100_000, 1), "100000"),
        (webp(b"VP8L", b""), "damaged"),
        (png(1, 1) + bytes(MAX_IMAGE_BYTES), "bytes"),
    ],
)
def test_other_images_are_refused_with_a_reason(content: bytes, word: str) -> None:
    assert word in check_image(content)


@cases("text, content", [("aGk=", b"hi"), ("aG\nk=\n", b"hi"), ("aGk", b""), ("a*k=", b""), ("ä", b""), ("A" * (2 * MAX_IMAGE_BYTES + 4), b"")])
def test_base64_is_decoded_strictly(text: str, content: bytes) -> None:
    assert decode_image(text) == content


def test_jpeg_of_many_segments_is_read_in_linear_time() -> None:
    segments = b"\xff\xe0\0\2" * 500_000
    assert check_image(b"\xff\xd8" + segments) == "it is damaged"
    assert base64.b64encode(segments)
