"""Files in the format in which sandboxes send and take them (``guest/helpers/overlay.py``): read and write, without I/O.

What a sandbox sends can be hostile: names, sizes and counts are limited, and everything else ends the reading with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandlot.builds.limits import CHUNK_BYTES
from sandlot.model.errors import ConflictError, ErrorCode, LimitError
from sandlot.protocol import values
from sandlot.protocol.helpers import OVERLAY_VERSION

MAX_RECORD_BYTES: Final = 1024 * 1024
MAX_ATTRIBUTE_BYTES: Final = 65_536
NAME_BYTES: Final = 255
PATH_BYTES: Final = 4_095
_HOLE: Final = 1 << 31
_LENGTH_BYTES: Final = 4
_MAX_PIECE_BYTES: Final = 1024 * 1024
_MAX_ID: Final = (1 << 32) - 1
_ZEROS: Final = bytes(CHUNK_BYTES)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """An entry of a file system.

    Args:
        kind: ``file``, ``folder``, ``symlink``, ``link`` (a hard link), ``pipe``, or ``gone`` (the entry was removed).
        path: Absolute path without ``.`` and ``..``.
        mode: Permission bits.
        uid: User id of the owner.
        gid: Group id.
        mtime_ns: Time of the last change in nanoseconds since the epoch.
        size: Size of a file in bytes.
        target: Target of a link; the absolute path of an earlier file for a hard link.
        attributes: Extended attributes.
    """

    kind: str
    path: bytes
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    target: bytes = b""
    attributes: Mapping[str, bytes] = field(default_factory=dict)


class FileEnd:
    """Class of the marker ``FILE_END``, which a reader yields when the content of a file is complete."""

    __slots__ = ()


FILE_END: Final = FileEnd()
Event = FileRecord | bytes | FileEnd


def broken() -> ConflictError:
    """Return the error of a sandbox that sends invalid files."""
    return ConflictError("The sandbox of the build sends its files in an invalid form.", hint="Start the build again.")


class OverlayReader:
    """Reads what a sandbox sends. Every file has exactly its announced size: missing bytes are zeros.

    Args:
        max_bytes: Maximum size of all files.
        max_entries: Maximum number of entries.

    Attributes:
        has_ended: True after the last record.
        size_bytes: Size of all files until now.
    """

    def __init__(self, max_bytes: int, max_entries: int) -> None:
        self._data = bytearray()
        self._max_bytes = max_bytes
        self._max_entries = self._entries = max_entries
        self._left: int | None = None
        self._begun = False
        self.has_ended = False
        self.size_bytes = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        """Read the next bytes. Yield entries, pieces of content, and ``FILE_END`` after the content of each file.

        Raises:
            ConflictError: The bytes are not valid.
            LimitError: The files are too large, or too many.
        """
        self._data += data
        at = 0
        try:
            while not self.has_ended and len(self._data) - at >= _LENGTH_BYTES:
                number = int.from_bytes(self._data[at : at + _LENGTH_BYTES], "big")
                if self._left is not None:
                    size = 0 if number & _HOLE else number
                    if size > _MAX_PIECE_BYTES:
                        raise broken()
                    if len(self._data) - at < _LENGTH_BYTES + size:
                        return
                    piece = bytes(self._data[at + _LENGTH_BYTES : at + _LENGTH_BYTES + size])
                    at += _LENGTH_BYTES + size
                    yield from self._content(number, piece)
                    continue
                if not 0 < number <= MAX_RECORD_BYTES:
                    raise broken()
                if len(self._data) - at < _LENGTH_BYTES + number:
                    return
                raw = bytes(self._data[at + _LENGTH_BYTES : at + _LENGTH_BYTES + number])
                at += _LENGTH_BYTES + number
                if (record := self._record(raw)) is not None:
                    yield record
        finally:
            del self._data[:at]

    def close(self) -> None:
        """Check that everything was read.

        Raises:
            ConflictError: The last record is missing.
        """
        if not self.has_ended:
            raise broken()

    def _content(self, number: int, piece: bytes) -> Iterator[Event]:
        left = self._left or 0
        if number == 0:
            yield from _zeros(left)
            self._left = None
            yield FILE_END
        elif number & _HOLE:
            size = min(left, number - _HOLE)
            self._left = left - size
            yield from _zeros(size)
        else:
            self._left = left - len(piece[:left])
            if piece[:left]:
                yield piece[:left]

    def _record(self, raw: bytes) -> FileRecord | None:
        try:
            value = values.decode(raw)
        except values.EncodingError:
            raise broken() from None
        if not isinstance(value, dict):
            raise broken()
        kind = value.get("kind")
        if not self._begun:
            if kind != "overlay" or value.get("version") != OVERLAY_VERSION:
                raise broken()
            self._begun = True
            return None
        if kind == "end":
            self.has_ended = True
            return None
        record = _checked(kind, value)
        self._entries -= 1
        if self._entries < 0:
            raise LimitError(
                f"The build has more than {self._max_entries} files.",
                code=ErrorCode.TOO_LARGE,
                hint="Remove files that the template does not need.",
            )
        if record.kind == "file":
            self.size_bytes += record.size
            if self.size_bytes > self._max_bytes:
                raise LimitError(
                    f"The files of the build have more than {self._max_bytes} bytes.",
                    code=ErrorCode.TOO_LARGE,
                    hint="Remove files that the template does not need.",
                )
            self._left = record.size
        return record


def _zeros(size: int) -> Iterator[bytes]:
    while size:
        piece = _ZEROS[: min(size, CHUNK_BYTES)]
        size -= len(piece)
        yield piece


def _checked(kind: Any, value: Mapping[str, Any]) -> FileRecord:  # noqa: ANN401 - any decoded value
    path, target, attributes = value.get("path"), value.get("target", b""), value.get("attributes", {})
    if kind not in {"file", "folder", "symlink", "link", "pipe", "gone"} or not isinstance(path, bytes) or not is_path(path):
        raise broken()
    if not isinstance(target, bytes) or b"\0" in target or len(target) > PATH_BYTES:
        raise broken()
    if (kind == "link" and not is_path(target)) or (kind == "symlink" and not target):
        raise broken()
    if not isinstance(attributes, dict) or sum(len(each) for each in attributes.values() if isinstance(each, bytes)) > MAX_ATTRIBUTE_BYTES:
        raise broken()
    for name, content in attributes.items():
        if not isinstance(content, bytes) or not name or len(name) > NAME_BYTES or not name.isprintable() or "=" in name:
            raise broken()
    numbers = {}
    for name, highest in (("mode", 0o7777), ("uid", _MAX_ID), ("gid", _MAX_ID), ("size", 1 << 50)):
        number = value.get(name, 0)
        if type(number) is not int or not 0 <= number <= highest:
            raise broken()
        numbers[name] = number
    mtime_ns = value.get("mtime_ns", 0)
    if type(mtime_ns) is not int:
        raise broken()
    return FileRecord(kind, path, target=target, attributes=attributes, mtime_ns=max(0, mtime_ns), **numbers)


def is_path(path: object) -> bool:
    """Return whether a value is an absolute path without ``.``, ``..`` and empty parts, other than the root. Pure."""
    if not isinstance(path, bytes) or not path.startswith(b"/") or b"\0" in path or not 1 < len(path) <= PATH_BYTES:
        return False
    return all(part not in {b"", b".", b".."} and len(part) <= NAME_BYTES for part in path[1:].split(b"/"))


def begin() -> bytes:
    """Return the first record of an overlay. Pure."""
    return _encoded({"kind": "overlay", "version": OVERLAY_VERSION})


def entry(record: FileRecord) -> bytes:
    """Return the record of an entry. The content of a file follows as :func:`piece`, and then :data:`CONTENT_END`. Pure."""
    about: dict[str, Any] = {"kind": record.kind, "path": record.path}
    if record.kind not in {"link", "gone"}:
        about |= {"mode": record.mode, "uid": record.uid, "gid": record.gid, "mtime_ns": record.mtime_ns, "attributes": dict(record.attributes)}
    if record.kind in {"link", "symlink"}:
        about["target"] = record.target
    return _encoded(about)


def piece(content: bytes) -> bytes:
    """Return a piece of the content of a file: at most ``CHUNK_BYTES``. Pure."""
    return len(content).to_bytes(_LENGTH_BYTES, "big") + content if content else b""


CONTENT_END: Final = bytes(_LENGTH_BYTES)


def end(records: int) -> bytes:
    """Return the last record. Pure."""
    return _encoded({"kind": "end", "records": records})


def _encoded(about: dict[str, Any]) -> bytes:
    raw = values.encode(about)
    return len(raw).to_bytes(_LENGTH_BYTES, "big") + raw
