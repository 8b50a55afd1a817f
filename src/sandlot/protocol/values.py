"""Structured values on the wire: a strict subset of MessagePack, so that binary travels as bytes.

MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) and not JSON, because PNGs and file contents are
bytes; written here, because the guest and the image's python have the standard library only. The tests hold it
against the reference implementation.

Laws:
- Carried: None, bool, int of 64 bits, float (64-bit), str, bytes, list, dict with str keys. Nothing else.
- Decoding is bounded: depth at most 16, at most 100,000 items, never more memory than a small factor of the input.
- ``decode(encode(x)) == x``; ``decode`` takes exactly one value and refuses trailing bytes, duplicate keys and
  invalid UTF-8. Text that has lone surrogates is encoded with ``?`` in their place.

This module stands alone and runs on python 3.8 and newer.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # typing's own name for it, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 16
MAX_ITEMS = 100000
"""Bounds the time of a decode too: about 100 ms on one slow core."""

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_F64 = struct.Struct(">d")


class BadValue(Exception):  # noqa: N818 - a value, not an error of this program
    """Bytes that are no value, or a value that cannot be carried."""


def encode(value: Any) -> bytes:
    """Encode one value.

    Raises:
        BadValue: A type, an integer or a depth that the wire does not carry.
    """
    parts: list[bytes] = []
    _encode(value, parts.append, 0)
    return b"".join(parts)


def _encode(value: Any, put: Callable[[bytes], object], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BadValue(f"nested deeper than {MAX_DEPTH}")
    kind = type(value)
    if kind is str:
        try:
            raw = value.encode("utf-8")
        except UnicodeEncodeError:
            raw = value.encode("utf-8", "replace")
        size = len(raw)
        if size < 32:
            put(bytes((0xA0 | size,)))
        else:
            _head(put, size, 0xD9, 0xDA, 0xDB)
        put(raw)
    elif kind is int:
        _encode_int(value, put)
    elif value is None:
        put(b"\xc0")
    elif kind is bool:
        put(b"\xc3" if value else b"\xc2")
    elif kind is dict:
        size = len(value)
        if size < 16:
            put(bytes((0x80 | size,)))
        else:
            _head(put, size, None, 0xDE, 0xDF)
        for key, item in value.items():
            if type(key) is not str:
                raise BadValue(f"map keys are text, not {type(key).__name__}")
            _encode(key, put, depth + 1)
            _encode(item, put, depth + 1)
    elif kind in (list, tuple):
        size = len(value)
        if size < 16:
            put(bytes((0x90 | size,)))
        else:
            _head(put, size, None, 0xDC, 0xDD)
        for item in value:
            _encode(item, put, depth + 1)
    elif kind in (bytes, bytearray, memoryview):
        raw = bytes(value)
        _head(put, len(raw), 0xC4, 0xC5, 0xC6)
        put(raw)
    elif kind is float:
        put(b"\xcb" + _F64.pack(value))
    else:
        raise BadValue(f"{kind.__name__} cannot be carried")


def _head(put: Callable[[bytes], object], size: int, code8: int | None, code16: int, code32: int) -> None:
    if code8 is not None and size <= 0xFF:
        put(bytes((code8, size)))
    elif size <= 0xFFFF:
        put(bytes((code16,)) + _U16.pack(size))
    elif size <= 0xFFFFFFFF:
        put(bytes((code32,)) + _U32.pack(size))
    else:
        raise BadValue("longer than 4 GiB")


def _encode_int(value: int, put: Callable[[bytes], object]) -> None:
    if 0 <= value <= 0x7F:
        put(bytes((value,)))
    elif -32 <= value < 0:
        put(bytes((value & 0xFF,)))
    elif 0 <= value <= 0xFFFFFFFFFFFFFFFF:
        for code, size in ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
            if value < 1 << (8 * size):
                put(bytes((code,)) + value.to_bytes(size, "big"))
                return
    elif -0x8000000000000000 <= value < 0:
        for code, size in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
            if value >= -(1 << (8 * size - 1)):
                put(bytes((code,)) + value.to_bytes(size, "big", signed=True))
                return
    else:
        raise BadValue("an integer that does not fit 64 bits")


def decode(raw: bytes) -> Any:
    """Decode exactly one value.

    Raises:
        BadValue: Truncated, trailing, too deep, too many items, or not of the subset.
    """
    reader = _Reader(bytes(raw))
    value = reader.value(0)
    if reader.at != len(reader.raw):
        raise BadValue(f"{len(reader.raw) - reader.at} bytes after the value")
    return value


class _Reader:
    __slots__ = ("at", "items", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.items = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.raw):
            raise BadValue(f"cut short: {size} bytes announced, {len(self.raw) - self.at} there")
        piece = self.raw[self.at : end]
        self.at = end
        return piece

    def size(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def value(self, depth: int) -> Any:
        self.items += 1
        if self.items > MAX_ITEMS:
            raise BadValue(f"more than {MAX_ITEMS} items")
        if depth > MAX_DEPTH:
            raise BadValue(f"nested deeper than {MAX_DEPTH}")
        code = self.take(1)[0]
        if code <= 0x7F:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code <= 0x8F:
            return self.map(code & 0x0F, depth)
        if code <= 0x9F:
            return self.array(code & 0x0F, depth)
        if code <= 0xBF:
            return self.text(code & 0x1F)
        return self.sized(code, depth)

    def sized(self, code: int, depth: int) -> Any:
        if code == 0xC0:
            return None
        if code == 0xC2:
            return False
        if code == 0xC3:
            return True
        if 0xC4 <= code <= 0xC6:
            return self.take(self.size(1 << (code - 0xC4)))
        if code == 0xCB:
            return _F64.unpack(self.take(8))[0]
        if 0xCC <= code <= 0xCF:
            return self.size(1 << (code - 0xCC))
        if 0xD0 <= code <= 0xD3:
            return int.from_bytes(self.take(1 << (code - 0xD0)), "big", signed=True)
        if 0xD9 <= code <= 0xDB:
            return self.text(self.size(1 << (code - 0xD9)))
        if code in (0xDC, 0xDD):
            return self.array(self.size(2 << (code - 0xDC)), depth)
        if code in (0xDE, 0xDF):
            return self.map(self.size(2 << (code - 0xDE)), depth)
        raise BadValue(f"code 0x{code:02x} is not carried")

    def text(self, size: int) -> str:
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise BadValue("text that is not UTF-8") from None

    def array(self, size: int, depth: int) -> list[Any]:
        if size > len(self.raw) - self.at:
            raise BadValue(f"cut short: {size} items announced")
        return [self.value(depth + 1) for _ in range(size)]

    def map(self, size: int, depth: int) -> dict[str, Any]:
        if 2 * size > len(self.raw) - self.at:
            raise BadValue(f"cut short: {size} entries announced")
        entries: dict[str, Any] = {}
        for _ in range(size):
            key = self.value(depth + 1)
            if type(key) is not str:
                raise BadValue("map keys are text")
            if key in entries:
                raise BadValue(f"the key {key[:50]!r} twice")
            entries[key] = self.value(depth + 1)
        return entries
