"""Validation of the messages that a kernel sends. Code in a cell can write any bytes to the kernel's socket, so no message is trusted."""

from __future__ import annotations

from sandlot.protocol.schema import LIMITS, STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.+_-")
"""Characters that the type and the subtype of a MIME type may contain."""
MAX_MIME_PART_CHARS = 100
MAX_LINE_CHARS = 8000
"""Maximum number of characters of an error's name, of its text, and of each traceback line. In UTF-8 at most 32,000 bytes (< ``LIMITS["text"]``)."""
MAX_KEY_CHARS = 255
MAX_METADATA_ENTRIES = 64
"""Maximum number of entries of the metadata of a display."""
MAX_METADATA_DEPTH = 16
MAX_COUNT = 0x7FFFFFFFFFFFFFFF


def is_mime_type(text: str) -> bool:
    """Return True if ``text`` has the form ``type/subtype`` of a MIME type (RFC 2045, section 5.1)."""
    kind, _, subtype = text.partition("/")
    return all(0 < len(part) <= MAX_MIME_PART_CHARS and MIME_CHARS.issuperset(part) for part in (kind, subtype))


def parse_event(message: Any) -> dict[str, Any]:
    """Validate a message of a kernel, and return the event in it. Strings and lists that exceed their limits are shortened.

    Args:
        message: Decoded message; may be a value of any type.

    Returns:
        Map with ``event`` (the kind), ``cell`` (id of the cell; None for the running cell), and exactly the fields of this kind of event.

    Raises:
        ValueError: The kind of event is unknown, or a field has an invalid value.
        TypeError: The message or a field has a wrong type.
        LookupError: The message lacks a field of its kind of event.
        AttributeError: ``data`` of a ``display`` event is not a map.
    """
    kind = message["event"]
    event: dict[str, Any] = {"event": kind, "cell": _maybe_text(message.get("cell"))}
    if kind == "ready":
        return event
    if kind == "sync":
        event["number"] = _count(message["number"])
    elif kind == "started":
        event["count"] = _count(message["count"])
    elif kind == "output":
        if message["channel"] not in {STDOUT, STDERR} or type(message["data"]) is not bytes:
            raise ValueError("output")
        event["channel"], event["data"] = message["channel"], message["data"]
    elif kind == "display":
        event.update(_display(message))
    elif kind == "clear":
        event["wait"] = bool(message["wait"])
    elif kind == "error":
        event["name"], event["value"] = _line(message["name"]), _line(message["value"])
        event["traceback"] = [_line(line) for line in message["traceback"][-LIMITS["traceback"] :]]
    elif kind == "done":
        event["ok"], event["count"] = bool(message["ok"]), _count(message["count"])
    else:
        raise ValueError(kind)
    return event


def _display(message: dict[str, Any]) -> dict[str, Any]:
    items = list(message["data"].items())[: LIMITS["mime_types"]]
    metadata = message.get("metadata")
    metadata = {} if metadata is None else metadata
    if type(metadata) is not dict or len(metadata) > MAX_METADATA_ENTRIES or not _is_plain(metadata, MAX_METADATA_DEPTH):
        raise ValueError("metadata")
    display_id = message.get("display_id")
    return {
        "data": {mime: item for mime, item in items if type(item) in {str, bytes} and is_mime_type(mime)},
        "main": bool(message["main"]),
        "metadata": metadata,
        "display_id": None if display_id is None else _line(display_id)[: LIMITS["name"]],
        "update": bool(message.get("update")),
    }


def _is_plain(value: Any, depth: int) -> bool:
    """Return True if a value of metadata can be sent to the host and written as JSON.

    Args:
        value: The value.
        depth: Maximum number of nested maps and lists, the value itself included.
    """
    if type(value) is dict:
        return depth > 0 and all(type(key) is str and len(key) <= MAX_KEY_CHARS and _is_plain(item, depth - 1) for key, item in value.items())
    if type(value) is list:
        return depth > 0 and all(_is_plain(item, depth - 1) for item in value)
    return value is None or type(value) in {str, int, float, bool}


def _line(text: Any) -> str:
    if type(text) is not str:
        raise TypeError(text)
    return text[:MAX_LINE_CHARS]


def _maybe_text(text: Any) -> str | None:
    if text is not None and type(text) is not str:
        raise TypeError(text)
    return text


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MAX_COUNT:
        raise ValueError(number)
    return number
