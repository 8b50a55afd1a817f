"""Representations of displayed objects, limited in size so that they fit into a message to the guest.

Invariants:
- A text/plain representation of more than ``MAX_TEXT_CHARS`` characters is cut and ends with a note. Any other representation is sent whole or
  not at all, because a part of an image is useless. A representation that is larger than ``MAX_REPRESENTATION_BYTES``, or would make the message
  too large, is left out. A note in the metadata or in text/plain then gives its MIME type and size.
- Metadata and representations together take at most ``MAX_BUNDLE_BYTES``. Metadata is added first, because it is small.
- An entry of metadata that is too large is replaced by a note. Nesting of metadata is limited, because metadata may contain reference cycles.
- Representations with a MIME type in ``BINARY`` are sent as bytes, even if an object returns base64. JSON is sent as text.
"""

from __future__ import annotations

import base64
import binascii
import json
import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_TEXT_CHARS = 1024 * 1024
MAX_PART_CHARS = MAX_TEXT_CHARS - 1024
"""Number of characters that are kept of a str or bytes object that is longer than ``MAX_TEXT_CHARS``. The remaining 1,024 are for a note."""
MAX_REPRESENTATION_BYTES = 6 * 1024 * 1024
MAX_BUNDLE_BYTES = 7 * 1024 * 1024
MAX_MIME_TYPES = 64
"""Maximum number of representations of one object (``protocol.schema.LIMITS``)."""
MAX_MIME_CHARS = 201
MAX_METADATA_BYTES = 512 * 1024
MAX_METADATA_VALUES = 10000
"""Maximum number of values in the metadata of one object, including nested values. A message may have 100,000 values."""
MAX_METADATA_DEPTH = 8
MAX_METADATA_ITEMS = 64
MAX_METADATA_KEY_CHARS = 255
MAX_METADATA_TEXT_CHARS = 8000
NO_ROOM = "[left out: too large for metadata]"
BINARY = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"))


def is_json(mime: str) -> bool:
    """Return True if ``mime`` is a MIME type of JSON data, such as ``application/geo+json`` (RFC 6839, section 3.1)."""
    return mime == "application/json" or mime.endswith("+json")


def cut_text(text: str) -> str:
    """Return a text unchanged if it has at most ``MAX_TEXT_CHARS`` characters, otherwise its beginning and a note."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]}\n[... cut after {MAX_TEXT_CHARS:,} of {len(text):,} characters]"


def display_bundle(data: Any, metadata: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the representations and the metadata of an object, limited so that they fit into one message.

    Args:
        data: Representations of the object: MIME type -> text or bytes; for JSON types, any JSON value.
        metadata: Metadata of the object: MIME type or any other name -> any JSON value. None for no metadata.
    """
    kept: dict[str, Any] = {}
    left_out: dict[str, int] = {}
    about, taken = _bounded_metadata(metadata)
    room = MAX_BUNDLE_BYTES - taken
    for mime, item in sorted(dict(data).items(), key=lambda entry: str(entry[0]) != "text/plain"):
        if len(kept) + len(left_out) >= MAX_MIME_TYPES:
            break
        encoded = _encode_representation(str(mime), item) if "/" in str(mime) and len(str(mime)) <= MAX_MIME_CHARS else None
        if encoded is None:
            continue
        size = len(encoded) if isinstance(encoded, bytes) else len(encoded.encode("utf-8", "replace"))
        if size > min(MAX_REPRESENTATION_BYTES, room):
            left_out[str(mime)] = size
            continue
        kept[str(mime)] = encoded
        room -= size
    for mime, size in left_out.items():
        if len(about) < MAX_METADATA_ITEMS:
            about[mime] = {"left_out_bytes": size}
    if left_out and not kept:
        kept["text/plain"] = "\n".join(f"[{mime} of {size:,} bytes was left out, because it is too large]" for mime, size in left_out.items())
    return kept, about


def _encode_representation(mime: str, item: Any) -> str | bytes | None:
    """Return a representation as the text or bytes to send; None if the representation is invalid, such as base64 with wrong characters.

    Args:
        mime: MIME type of the representation.
        item: Representation as an object has returned it.
    """
    if mime == "text/plain":
        return cut_text(str(item))
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    try:
        if isinstance(item, (list, tuple)) and not is_json(mime):
            item = "".join(item)  # a list of lines, as in notebooks
        if not isinstance(item, str):
            item = _json(item)
        return base64.b64decode("".join(item.split()), validate=True) if mime in BINARY else str.__str__(item)
    except (TypeError, ValueError, RecursionError, binascii.Error):
        return None


def _json(item: Any) -> str:
    try:
        return json.dumps(item, default=str, allow_nan=False)
    except ValueError:  # the value contains infinity or NaN, which JSON does not allow: replace them by null
        return json.dumps(_finite(item), default=str)


def _finite(item: Any) -> Any:
    if isinstance(item, float) and not math.isfinite(item):
        return None
    if isinstance(item, dict):
        return {key: _finite(value) for key, value in item.items()}
    return [_finite(value) for value in item] if isinstance(item, (list, tuple)) else item


def _bounded_metadata(metadata: Any) -> tuple[dict[str, Any], int]:
    """Return the metadata to send, and its approximate size in bytes.

    Args:
        metadata: Metadata as an object has returned it; None if there is none.
    """
    about: dict[str, Any] = {}
    room = _Room()
    for name, item in list(dict(metadata or {}).items())[:MAX_METADATA_ITEMS]:
        before = room.bytes, room.values
        try:
            key = room.text(str(name)[:MAX_METADATA_KEY_CHARS])
            about[key] = _plain(item, MAX_METADATA_DEPTH, room)
        except _NoRoomError:
            room.bytes, room.values = before
            about[str(name)[:MAX_METADATA_KEY_CHARS]] = NO_ROOM
    return about, MAX_METADATA_BYTES - room.bytes


class _NoRoomError(Exception):
    """The metadata of an object exceeds ``MAX_METADATA_BYTES`` or ``MAX_METADATA_VALUES``."""


class _Room:
    """Number of bytes and values that may still be added to the metadata of one object."""

    def __init__(self) -> None:
        self.bytes = MAX_METADATA_BYTES
        self.values = MAX_METADATA_VALUES

    def take(self, size: int) -> None:
        """Subtract the size of a value from the remaining bytes, and 1 from the remaining number of values.

        Args:
            size: Size of the value in bytes, without its header of up to 9 bytes.

        Raises:
            _NoRoomError: The remaining bytes or the remaining number of values are not enough for this value.
        """
        self.bytes -= size + 9
        self.values -= 1
        if self.bytes < 0 or self.values < 0:
            raise _NoRoomError

    def text(self, text: str) -> str:
        """Subtract the size of a string from the remaining bytes, and 1 from the remaining number of values. Return the string.

        Raises:
            _NoRoomError: The remaining bytes or the remaining number of values are not enough for the string.
        """
        self.take(len(text.encode("utf-8", "replace")))
        return text


def _plain(item: Any, depth: int, room: _Room) -> Any:
    """Return a value of metadata as plain dicts, lists, strings and numbers, and subtract its size from the remaining room.

    Args:
        item: The value; may be of any type.
        depth: Maximum number of nested dicts and lists, ``item`` included. A dict or list at a deeper level is converted to text.
        room: Remaining bytes and values.

    Raises:
        _NoRoomError: The value is too large for the remaining room.
    """
    if depth and isinstance(item, dict):
        room.take(0)
        items = list(item.items())[:MAX_METADATA_ITEMS]
        return {room.text(str(key)[:MAX_METADATA_KEY_CHARS]): _plain(value, depth - 1, room) for key, value in items}
    if depth and isinstance(item, (list, tuple)):
        room.take(0)
        return [_plain(value, depth - 1, room) for value in item[:MAX_METADATA_ITEMS]]
    made = _scalar(item)
    if isinstance(made, str):
        return room.text(made)
    room.take(0)
    return made


def _scalar(item: Any) -> Any:
    if item is None or isinstance(item, (bool, str)):
        return item if type(item) in {bool, type(None)} else str(item)[:MAX_METADATA_TEXT_CHARS]
    if isinstance(item, int):
        return int(item) if -(1 << 63) <= item < 1 << 63 else str(item)[:MAX_METADATA_TEXT_CHARS]
    if isinstance(item, float):
        return float(item) if math.isfinite(item) else None
    return str(item)[:MAX_METADATA_TEXT_CHARS]
