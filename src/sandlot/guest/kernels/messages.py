"""What kernels say, checked: a kernel's socket is as hostile as everything else that users reach.

Pure: a message in, a message that may be passed on out.
"""

from __future__ import annotations

from sandlot.protocol.schema import LIMITS, STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.+_-")
MIME_PART = 100
LINE_CHARS = 8000
"""Of an error's text and a traceback's line; schema.LIMITS allows 64 KiB, and a character has up to 4 bytes."""
KEY_CHARS = 255
METADATA = 64
"""Entries of a display's metadata."""
DEEP = 16
MOST = 0x7FFFFFFFFFFFFFFF


def is_mime_type(text: str) -> bool:
    """Whether a text is type/subtype, RFC 2045, section 5.1."""
    kind, _, subtype = text.partition("/")
    return all(0 < len(part) <= MIME_PART and MIME_CHARS.issuperset(part) for part in (kind, subtype))


def checked(message: Any) -> dict[str, Any]:
    """A kernel's message with all that it must have, and nothing else.

    Args:
        message: What was decoded.

    Returns:
        ``event``, ``cell`` (None is the one that runs), and the event's own fields.

    Raises:
        ValueError: It is none that there is.
        TypeError: The same.
        KeyError: The same.
    """
    kind = message["event"]
    told: dict[str, Any] = {"event": kind, "cell": _maybe_text(message.get("cell"))}
    if kind == "ready":
        return told
    if kind == "sync":
        told["number"] = _count(message["number"])
    elif kind == "started":
        told["count"] = _count(message["count"])
    elif kind == "output":
        if message["channel"] not in {STDOUT, STDERR} or type(message["data"]) is not bytes:
            raise ValueError("output")
        told["channel"], told["data"] = message["channel"], message["data"]
    elif kind == "display":
        told.update(_display(message))
    elif kind == "clear":
        told["wait"] = bool(message["wait"])
    elif kind == "error":
        told["name"], told["value"] = _line(message["name"]), _line(message["value"])
        told["traceback"] = [_line(line) for line in message["traceback"][-LIMITS["traceback"] :]]
    elif kind == "done":
        told["ok"], told["count"] = bool(message["ok"]), _count(message["count"])
    else:
        raise ValueError(kind)
    return told


def _display(message: dict[str, Any]) -> dict[str, Any]:
    items = list(message["data"].items())[: LIMITS["mime_types"]]
    metadata = message.get("metadata")
    metadata = {} if metadata is None else metadata
    if type(metadata) is not dict or len(metadata) > METADATA or not _is_plain(metadata, DEEP):
        raise ValueError("metadata")
    display_id = message.get("display_id")
    return {
        "data": {mime: item for mime, item in items if type(item) in {str, bytes} and is_mime_type(mime)},
        "main": bool(message["main"]),
        "metadata": metadata,
        "display_id": None if display_id is None else _line(display_id)[: LIMITS["name"]],
        "update": bool(message.get("update")),
    }


def _is_plain(value: Any, deep: int) -> bool:
    """Whether a value can be sent on as it is, and said as JSON."""
    if type(value) is dict:
        return deep > 0 and all(type(key) is str and len(key) <= KEY_CHARS and _is_plain(item, deep - 1) for key, item in value.items())
    if type(value) is list:
        return deep > 0 and all(_is_plain(item, deep - 1) for item in value)
    return value is None or type(value) in {str, int, float, bool}


def _line(text: Any) -> str:
    if type(text) is not str:
        raise TypeError(text)
    return text[:LINE_CHARS]


def _maybe_text(text: Any) -> str | None:
    if text is not None and type(text) is not str:
        raise TypeError(text)
    return text


def _count(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= MOST:
        raise ValueError(number)
    return number
