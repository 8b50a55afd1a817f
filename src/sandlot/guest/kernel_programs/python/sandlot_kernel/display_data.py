"""Representations of objects, limited in size so that they fit into messages.

Invariants:
- text/plain is cut at ``MAX_TEXT_CHARS`` and ends with a note. Any other representation that is longer than ``MAX_REPRESENTATION_BYTES``, or
  that would make the message too long, is left out with a note in the metadata or in text/plain, because a part of an image is useless.
- Metadata and representations share ``MAX_BUNDLE_BYTES``. Metadata comes first, because it is small. An entry of metadata that is too
  large is replaced as a whole, even if its parts refer to each other.
- Binary MIME types are sent as bytes, even if an object returns base64. JSON is sent as text.
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
"""Number of characters of a longer text that are kept, so that the note still fits."""
MAX_REPRESENTATION_BYTES = 6 * 1024 * 1024
MAX_BUNDLE_BYTES = 7 * 1024 * 1024
MAX_MIME_TYPES = 64
"""Maximum number of representations of one object (``protocol.schema.LIMITS``)."""
MAX_MIME_CHARS = 201
MAX_METADATA_BYTES = 512 * 1024
MAX_METADATA_VALUES = 10000
"""Maximum number of values in metadata, nested values included. A message may have 100,000."""
MAX_METADATA_DEPTH = 8
MAX_METADATA_ITEMS = 64
MAX_METADATA_KEY_CHARS = 255
MAX_METADATA_TEXT_CHARS = 8000
NO_ROOM = "[left out: too large for metadata]"
BINARY = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"))


def is_json(mime: str) -> bool:
    """Return True if a MIME type is JSON (RFC 6839, section 3.1)."""
    return mime == "application/json" or mime.endswith("+json")


def cut_text(text: str) -> str:
    """Return a text, cut at the limit of text/plain."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    return f"{text[:MAX_TEXT_CHARS]}\n[... cut after {MAX_TEXT_CHARS:,} of {len(text):,} characters]"


def display_bundle(data: Any, metadata: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the representations and the metadata of an object that fit into a message.

    Args:
        data: MIME type -> text or bytes; for JSON types, any JSON value.
        metadata: MIME type or any other name -> any JSON value.
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
    """Return a representation in the form of messages; None if it is invalid."""
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
    except ValueError:  # infinite numbers or NaN, which JSON does not allow
        return json.dumps(_finite(item), default=str)


def _finite(item: Any) -> Any:
    if isinstance(item, float) and not math.isfinite(item):
        return None
    if isinstance(item, dict):
        return {key: _finite(value) for key, value in item.items()}
    return [_finite(value) for value in item] if isinstance(item, (list, tuple)) else item


def _bounded_metadata(metadata: Any) -> tuple[dict[str, Any], int]:
    """Return metadata in the form of messages, and its size in bytes."""
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
    """An entry of metadata is too large."""


class _Room:
    """Remaining bytes and values of metadata."""

    def __init__(self) -> None:
        self.bytes = MAX_METADATA_BYTES
        self.values = MAX_METADATA_VALUES

    def take(self, size: int) -> None:
        """Subtract a value of ``size`` bytes and its header.

        Raises:
            _NoRoomError: The limit is exceeded.
        """
        self.bytes -= size + 9
        self.values -= 1
        if self.bytes < 0 or self.values < 0:
            raise _NoRoomError

    def text(self, text: str) -> str:
        """Subtract a text, and return it."""
        self.take(len(text.encode("utf-8", "replace")))
        return text


def _plain(item: Any, depth: int, room: _Room) -> Any:
    """Return a value of metadata in the form of messages.

    Raises:
        _NoRoomError: The value is too large.
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
