"""What is told of objects and errors, in bounds: bundles of MIME types, tracebacks.

Laws:
- text/plain is cut at ``PLAIN_CHARS`` and says so. Any other representation beyond ``ITEM_BYTES``, or that would make the message
  longer than the wire takes, is left out, and text/plain or the metadata say so: half an image is none.
- Metadata and representations share ``BUNDLE_BYTES``; metadata comes first, because it is small. An entry of it that is not is
  ``NO_ROOM`` as a whole, however its parts refer to each other.
- Binary MIME types travel as bytes, also where an object gives base64; JSON travels as text.
- A traceback has frames of cells and libraries, none of the kernel or of IPython's inside, and is plain text.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import traceback
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PLAIN_CHARS = 1024 * 1024
PART_CHARS = PLAIN_CHARS - 1024
"""Of a text or bytes that is longer, so that what says so still fits."""
ITEM_BYTES = 6 * 1024 * 1024
BUNDLE_BYTES = 7 * 1024 * 1024
MIME_TYPES = 64
"""Representations of one object, as the guest takes them (``protocol.schema.LIMITS``)."""
MIME_CHARS = 201
METADATA_BYTES = 512 * 1024
METADATA_VALUES = 10000
"""In all, however they are nested; a message may have 100,000."""
METADATA_DEPTH = 8
METADATA_ITEMS = 64
METADATA_KEY = 255
NO_ROOM = "[left out: too large for metadata]"
TRACEBACK_LINES = 500
VALUE_CHARS = 8000
BINARY = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf"))
COMPILERS = (f"{os.sep}IPython{os.sep}", f"{os.sep}codeop.py", f"{os.sep}ast.py")
_NAME = type.__dict__["__name__"]
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def is_json(mime: str) -> bool:
    """Whether a MIME type is JSON, RFC 6839, section 3.1."""
    return mime == "application/json" or mime.endswith("+json")


def cut(text: str) -> str:
    """A text within the bound of text/plain."""
    if len(text) <= PLAIN_CHARS:
        return text
    return f"{text[:PLAIN_CHARS]}\n[... cut after {PLAIN_CHARS:,} of {len(text):,} characters]"


def bundle(data: Any, metadata: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What of an object's representations is told.

    Args:
        data: By MIME type: text, bytes, or for JSON whatever JSON has.
        metadata: By MIME type or any name, whatever JSON has.
    """
    told: dict[str, Any] = {}
    left_out: dict[str, int] = {}
    about, taken = _about(metadata)
    room = BUNDLE_BYTES - taken
    for mime, item in sorted(dict(data).items(), key=lambda entry: str(entry[0]) != "text/plain"):
        if len(told) + len(left_out) >= MIME_TYPES:
            break
        carried = _carried(str(mime), item) if "/" in str(mime) and len(str(mime)) <= MIME_CHARS else None
        if carried is None:
            continue
        size = len(carried) if isinstance(carried, bytes) else len(carried.encode("utf-8", "replace"))
        if size > min(ITEM_BYTES, room):
            left_out[str(mime)] = size
            continue
        told[str(mime)] = carried
        room -= size
    for mime, size in left_out.items():
        if len(about) < METADATA_ITEMS:
            about[mime] = {"left_out_bytes": size}
    if left_out and not told:
        told["text/plain"] = "\n".join(f"[{mime} of {size:,} bytes was left out: it is too large]" for mime, size in left_out.items())
    return told, about


def error(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> dict[str, Any]:
    """The message about an exception.

    Args:
        kind: Its class.
        raised: The exception; those that caused it are told too.
        trace: Where it went through.
    """
    name = name_of(kind)
    try:
        value = str(raised)
    except BaseException as broken:  # noqa: BLE001 - an exception may fail at being printed
        value = f"(cannot be printed: {name_of(type(broken))})"
    lines = lines_of(kind, raised, trace)
    return {"event": "error", "name": name, "value": value[:VALUE_CHARS], "traceback": lines}


def name_of(kind: type) -> str:
    """A class's name, whatever its metaclass makes of it."""
    return str(_NAME.__get__(kind))


def lines_of(kind: type[BaseException], raised: BaseException, trace: types.TracebackType | None) -> list[str]:
    """A traceback's lines, the last ``TRACEBACK_LINES``."""
    try:
        _strip_chain(raised, set())
        lines = traceback.format_exception(kind, raised, strip(trace))
    except BaseException as broken:  # noqa: BLE001 - as above
        lines = [f"{name_of(kind)}: (cannot be printed: {name_of(type(broken))})\n"]
    return "".join(lines)[-PLAIN_CHARS:].splitlines()[-TRACEBACK_LINES:]


def strip(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback from its first cell on, without the frames that belong to the kernel; without a cell, also without IPython's."""
    kept = []
    while trace is not None:
        kept.append((trace.tb_frame.f_code.co_filename, trace))
        trace = trace.tb_next
    cells = [at for at, (path, _entry) in enumerate(kept) if path.startswith("<cell ")]
    if cells:
        kept = [(path, entry) for path, entry in kept[cells[0] :] if not path.startswith(HERE)]
    else:
        kept = [(path, entry) for path, entry in kept if not path.startswith(HERE) and not any(part in path for part in COMPILERS)]
    made = None
    for _path, entry in reversed(kept):
        made = types.TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made


def _strip_chain(raised: BaseException | None, seen: set[int]) -> None:
    while raised is not None and id(raised) not in seen:
        seen.add(id(raised))
        raised.__traceback__ = strip(raised.__traceback__)
        for inner in getattr(raised, "exceptions", None) or ():
            if isinstance(inner, BaseException):
                _strip_chain(inner, seen)
        _strip_chain(raised.__cause__, seen)
        raised = raised.__context__


def _carried(mime: str, item: Any) -> str | bytes | None:
    """A representation as the wire has it; None where it is none."""
    if mime == "text/plain":
        return cut(str(item))
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    try:
        if isinstance(item, (list, tuple)) and not is_json(mime):
            item = "".join(item)  # lines, as notebooks have them
        if not isinstance(item, str):
            item = _json(item)
        return base64.b64decode("".join(item.split()), validate=True) if mime in BINARY else str.__str__(item)
    except (TypeError, ValueError, RecursionError, binascii.Error):
        return None


def _json(item: Any) -> str:
    try:
        return json.dumps(item, default=str, allow_nan=False)
    except ValueError:  # numbers that JSON does not have
        return json.dumps(_finite(item), default=str)


def _finite(item: Any) -> Any:
    if isinstance(item, float) and not math.isfinite(item):
        return None
    if isinstance(item, dict):
        return {key: _finite(value) for key, value in item.items()}
    return [_finite(value) for value in item] if isinstance(item, (list, tuple)) else item


def _about(metadata: Any) -> tuple[dict[str, Any], int]:
    """Metadata as the wire has it, and its size in bytes."""
    about: dict[str, Any] = {}
    room = _Room()
    for name, item in list(dict(metadata or {}).items())[:METADATA_ITEMS]:
        before = room.bytes, room.values
        try:
            key = room.text(str(name)[:METADATA_KEY])
            about[key] = _plain(item, METADATA_DEPTH, room)
        except _NoRoomError:
            room.bytes, room.values = before
            about[str(name)[:METADATA_KEY]] = NO_ROOM
    return about, METADATA_BYTES - room.bytes


class _NoRoomError(Exception):
    """An entry of metadata is more than there is room for."""


class _Room:
    """What metadata may still take."""

    def __init__(self) -> None:
        self.bytes = METADATA_BYTES
        self.values = METADATA_VALUES

    def take(self, size: int) -> None:
        """One value of so many bytes, and what is before it on the wire."""
        self.bytes -= size + 9
        self.values -= 1
        if self.bytes < 0 or self.values < 0:
            raise _NoRoomError

    def text(self, text: str) -> str:
        """Take a text's room."""
        self.take(len(text.encode("utf-8", "replace")))
        return text


def _plain(item: Any, depth: int, room: _Room) -> Any:
    """A value that the wire carries.

    Raises:
        _NoRoomError: There is more of it than there is room.
    """
    if depth and isinstance(item, dict):
        room.take(0)
        return {room.text(str(key)[:METADATA_KEY]): _plain(value, depth - 1, room) for key, value in list(item.items())[:METADATA_ITEMS]}
    if depth and isinstance(item, (list, tuple)):
        room.take(0)
        return [_plain(value, depth - 1, room) for value in item[:METADATA_ITEMS]]
    made = _scalar(item)
    if isinstance(made, str):
        return room.text(made)
    room.take(0)
    return made


def _scalar(item: Any) -> Any:
    if item is None or isinstance(item, (bool, str)):
        return item if type(item) in {bool, type(None)} else str(item)[:VALUE_CHARS]
    if isinstance(item, int):
        return int(item) if -(1 << 63) <= item < 1 << 63 else str(item)[:VALUE_CHARS]
    if isinstance(item, float):
        return float(item) if math.isfinite(item) else None
    return str(item)[:VALUE_CHARS]
