"""Encodes and decodes values in a strict subset of MessagePack, and messages that consist of a length and one encoded value.

MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md) is used instead of JSON, because JSON cannot contain bytes, such as images
and the contents of files. MessagePack is implemented here, because the guest and the Python of an image may have only the standard library. The
tests compare this implementation with the reference implementation.

- Values have the types None, bool, int of 64 bits, float of 64 bits, str, bytes, list, and dict with str keys. ``encode`` also accepts a tuple as a
  list, and a bytearray or memoryview as bytes.
- A value can be decoded only if it has at most 16 nested levels and at most 100,000 items. No memory is reserved for an announced length.
- ``decode(encode(x)) == x`` for values of these types, with one exception: in a text, lone surrogates are encoded as ``?``.
- ``decode`` takes exactly one value and refuses trailing bytes, duplicate keys and invalid UTF-8.
- A message consists of a length (four bytes, big-endian) and one encoded value of this length. Messages are used on sockets and pipes inside a
  sandbox; the link between host and guest uses frames instead.

This module imports nothing of Sandlot, and runs on Python 3.8 and newer.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # as in typing, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

HEAD_BYTES = 4
"""Size in bytes of the head of a message. The head contains the length of the encoded value that follows. This length does not include the head."""
MAX_MESSAGE_BYTES = 0xFFFFFFFF
"""Largest size in bytes of an encoded value in a message: the largest number that fits into the head of a message."""
MAX_DEPTH = 16
"""Largest number of lists and maps that are nested in each other."""
MAX_ITEMS = 100000
"""Largest number of items in all lists and maps of one value. The keys of maps are items too. Decoding this many items takes about 50 ms."""

_BYTE = tuple(bytes((number,)) for number in range(256))
_U16 = struct.Struct(">BH")
_U32 = struct.Struct(">BI")
_F64 = struct.Struct(">Bd")
_LENGTH = struct.Struct(">I")


class EncodingError(Exception):
    """The bytes are not an encoded value, or the value cannot be encoded."""


class MessageTooLargeError(EncodingError):
    """A message is longer than its reader accepts."""


# -- encoding -----------------------------------------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """Encode one value.

    Raises:
        EncodingError: The value has a type, an integer or a depth that cannot be encoded.
    """
    parts: list[bytes] = []
    _put(value, parts.append, 0)
    return b"".join(parts)


def _put(value: Any, put: Callable[[bytes], object], depth: int) -> None:
    writer = _WRITERS.get(type(value))
    if writer is None:
        raise EncodingError(f"a value of type {type(value).__name__} cannot be encoded")
    writer(value, put, depth)


def _put_none(_value: None, put: Callable[[bytes], object], _depth: int) -> None:
    put(b"\xc0")


def _put_bool(value: bool, put: Callable[[bytes], object], _depth: int) -> None:  # noqa: FBT001 - the value to encode
    put(b"\xc3" if value else b"\xc2")


def _put_float(value: float, put: Callable[[bytes], object], _depth: int) -> None:
    put(_F64.pack(0xCB, value))


def _put_int(value: int, put: Callable[[bytes], object], _depth: int) -> None:
    if -32 <= value <= 0x7F:
        put(_BYTE[value & 0xFF])
        return
    for width in range(4):
        bits = 8 << width
        if 0 <= value < 1 << bits:
            put(_BYTE[0xCC + width] + value.to_bytes(1 << width, "big"))
            return
        if value < 0 <= value + (1 << (bits - 1)):
            put(_BYTE[0xD0 + width] + value.to_bytes(1 << width, "big", signed=True))
            return
    raise EncodingError("the integer does not fit into 64 bits")


def _put_text(value: str, put: Callable[[bytes], object], _depth: int) -> None:
    try:
        raw = value.encode("utf-8")
    except UnicodeEncodeError:
        raw = value.encode("utf-8", "replace")
    size = len(raw)
    if size < 32:
        put(_BYTE[0xA0 + size])
    elif size <= 0xFF:
        put(_BYTE[0xD9] + _BYTE[size])
    else:
        put(_size(size, 0xDA, 0xDB))
    put(raw)


def _put_bytes(value: bytes | bytearray | memoryview, put: Callable[[bytes], object], _depth: int) -> None:
    raw = bytes(value)
    size = len(raw)
    put(_BYTE[0xC4] + _BYTE[size] if size <= 0xFF else _size(size, 0xC5, 0xC6))
    put(raw)


def _put_list(value: list[Any] | tuple[Any, ...], put: Callable[[bytes], object], depth: int) -> None:
    size = len(value)
    put(_BYTE[0x90 + size] if size < 16 else _size(size, 0xDC, 0xDD))
    depth = _deeper(depth)
    for item in value:
        _put(item, put, depth)


def _put_map(value: dict[str, Any], put: Callable[[bytes], object], depth: int) -> None:
    size = len(value)
    put(_BYTE[0x80 + size] if size < 16 else _size(size, 0xDE, 0xDF))
    depth = _deeper(depth)
    for key, item in value.items():
        if type(key) is not str:
            raise EncodingError(f"a key of a map has the type {type(key).__name__}, not str")
        _put_text(key, put, depth)
        _put(item, put, depth)


def _size(size: int, code16: int, code32: int) -> bytes:
    if size <= 0xFFFF:
        return _U16.pack(code16, size)
    if size <= 0xFFFFFFFF:
        return _U32.pack(code32, size)
    raise EncodingError("a value is longer than 4 GiB; send it in several messages")


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise EncodingError(f"lists and maps are nested deeper than {MAX_DEPTH} levels")
    return depth + 1


_WRITERS: dict[type, Callable[[Any, Callable[[bytes], object], int], None]] = {
    type(None): _put_none,
    bool: _put_bool,
    int: _put_int,
    float: _put_float,
    str: _put_text,
    bytes: _put_bytes,
    bytearray: _put_bytes,
    memoryview: _put_bytes,
    list: _put_list,
    tuple: _put_list,
    dict: _put_map,
}


# -- decoding -----------------------------------------------------------------------------------------------------------


def decode(raw: bytes) -> Any:
    """Decode exactly one value.

    Raises:
        EncodingError: The bytes are truncated, have trailing bytes, are nested too deeply, have too many items, or use a part of MessagePack
            that is not allowed here.
    """
    reader = _Reader(bytes(raw))
    value = reader.value(0)
    if reader.at != len(reader.raw):
        raise EncodingError(f"the value is followed by {len(reader.raw) - reader.at} more bytes")
    return value


class _Reader:
    """Decoder of one value. ``at`` is the position of the next byte in ``raw``; ``items_left`` is the number of items that are still allowed."""

    __slots__ = ("at", "items_left", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0
        self.items_left = MAX_ITEMS

    def value(self, depth: int) -> Any:
        at = self.at
        if at >= len(self.raw):
            raise EncodingError("the value is incomplete")
        code = self.raw[at]
        self.at = at + 1
        if code <= 0x7F:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code >= 0xC0:
            width, read = _READERS[code - 0xC0]
            return read(self, width, depth)
        if code >= 0xA0:
            return self.text(code - 0xA0)
        return self.list(code - 0x90, depth) if code >= 0x90 else self.map(code - 0x80, depth)

    def take(self, size: int) -> bytes:
        end = self.at + size
        piece = self.raw[self.at : end]
        if len(piece) != size:
            raise EncodingError(f"the value is incomplete: {size} bytes are announced, {len(piece)} follow")
        self.at = end
        return piece

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def text(self, size: int) -> str:
        try:
            return str(self.take(size), "utf-8")
        except UnicodeDecodeError:
            raise EncodingError("a string is not valid UTF-8") from None

    def list(self, size: int, depth: int) -> list[Any]:
        self.expect(size, depth)
        return [self.value(depth + 1) for _ in range(size)]

    def map(self, size: int, depth: int) -> dict[str, Any]:
        self.expect(2 * size, depth)
        entries: dict[str, Any] = {}
        for _ in range(size):
            key = self.value(depth + 1)
            if type(key) is not str:
                raise EncodingError("a key of a map is not text")
            entries[key] = self.value(depth + 1)
        if len(entries) != size:
            raise EncodingError("a key occurs twice in a map")
        return entries

    def expect(self, items: int, depth: int) -> None:
        """Check a list or map against the limits before its items are decoded.

        Args:
            items: Number of announced items; the keys of a map are items too.
            depth: Number of lists and maps around the list or map.

        Raises:
            EncodingError: More items are announced than bytes are left, or the limit of items or of depth is exceeded.
        """
        self.items_left -= items
        if items > len(self.raw) - self.at or self.items_left < 0:
            raise EncodingError(f"the value is incomplete, or has more than {MAX_ITEMS} items")
        if depth >= MAX_DEPTH:
            raise EncodingError(f"lists and maps are nested deeper than {MAX_DEPTH} levels")


def _no_value(reader: _Reader, _width: int, _depth: int) -> Any:
    raise EncodingError(f"the value contains the MessagePack code 0x{reader.raw[reader.at - 1]:02x}, which is not supported")


def _signed(reader: _Reader, width: int, _depth: int) -> int:
    return int.from_bytes(reader.take(width), "big", signed=True)


def _float(reader: _Reader, width: int, _depth: int) -> float:
    return float(_F64.unpack(b"\xcb" + reader.take(width))[1])


_READERS: tuple[tuple[int, Callable[[_Reader, int, int], Any]], ...] = (
    (0, lambda _reader, _width, _depth: None),
    (0, _no_value),
    (0, lambda _reader, _width, _depth: False),
    (0, lambda _reader, _width, _depth: True),
    *((width, lambda reader, width, _depth: reader.take(reader.number(width))) for width in (1, 2, 4)),
    *((0, _no_value) for _ in range(4)),
    (8, _float),
    *((width, lambda reader, width, _depth: reader.number(width)) for width in (1, 2, 4, 8)),
    *((width, _signed) for width in (1, 2, 4, 8)),
    *((0, _no_value) for _ in range(5)),
    *((width, lambda reader, width, _depth: reader.text(reader.number(width))) for width in (1, 2, 4)),
    *((width, lambda reader, width, depth: reader.list(reader.number(width), depth)) for width in (2, 4)),
    *((width, lambda reader, width, depth: reader.map(reader.number(width), depth)) for width in (2, 4)),
)
"""For each of the codes 0xC0 to 0xDF: the width in bytes of the number after the code, and the function that reads the number and the value."""


# -- messages -----------------------------------------------------------------------------------------------------------


def encode_message(value: Any) -> bytes:
    """Encode one value as a message: the length of the encoded value, then the encoded value.

    Raises:
        EncodingError: ``encode`` refuses the value, or its encoding is longer than ``MAX_MESSAGE_BYTES``.
    """
    parts = [b""]  # placeholder for the length, which is known only at the end, so that the parts of a large value are joined only once
    _put(value, parts.append, 0)
    size = sum(map(len, parts))
    if size > MAX_MESSAGE_BYTES:
        raise EncodingError("a value is longer than 4 GiB; send it in several messages")
    parts[0] = _LENGTH.pack(size)
    return b"".join(parts)


def message_length(head: bytes | bytearray) -> int:
    """Return the length in bytes of the encoded value in a message.

    Only code that must not read beyond the end of a message needs this function. All other code uses :class:`MessageReader`.

    Args:
        head: The first ``HEAD_BYTES`` bytes of the message. Bytes after them are ignored.
    """
    length: int = _LENGTH.unpack_from(head)[0]
    return length


class MessageReader:
    """Incremental reader of messages, which takes bytes in pieces of any size and returns complete messages.

    A message stays encoded until the caller takes it. A message that is too large is refused as soon as its head has arrived. So a
    caller that takes all messages after each piece keeps at most ``max_bytes``, a head and one piece in memory.

    Args:
        max_bytes: Largest size in bytes of an encoded value to accept. Pass a lower number than the default unless the sender is trusted.
    """

    __slots__ = ("_buffer", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_MESSAGE_BYTES) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes that :meth:`feed` has added and :meth:`take` has not removed yet."""
        return len(self._buffer)

    @property
    def has_message(self) -> bool:
        """True if the next message is complete."""
        received = len(self._buffer) - HEAD_BYTES
        return received >= 0 and received >= message_length(self._buffer)

    def feed(self, data: bytes) -> None:
        """Append bytes to the buffer."""
        self._buffer += data

    def take(self) -> bytes | None:
        """Remove the next message and return its encoded value; return None if the message is incomplete.

        Raises:
            MessageTooLargeError: The message is longer than ``max_bytes``. The message stays in the buffer, so every later call raises too.
        """
        buffer = self._buffer
        if len(buffer) < HEAD_BYTES:
            return None
        size = message_length(buffer)
        if size > self._max_bytes:
            raise MessageTooLargeError(f"the message has {size} bytes; at most {self._max_bytes} are accepted")
        end = HEAD_BYTES + size
        if len(buffer) < end:
            return None
        raw = bytes(memoryview(buffer)[HEAD_BYTES:end])  # a slice of the bytearray would copy the value twice
        del buffer[:end]
        return raw

    def messages(self) -> Iterator[Any]:
        """Remove, decode and yield the complete messages, one after the other.

        Raises:
            EncodingError: A message is too large or not exactly one value. A message that cannot be decoded is removed.
        """
        while (raw := self.take()) is not None:
            yield decode(raw)

    def clear(self) -> None:
        """Drop all bytes in the buffer."""
        self._buffer.clear()
