"""Index of a root filesystem image: the names and times of all entries, by folder.

A program inside a sandbox makes the index together with the image. Both can contain anything, because the program reads layers of strangers. The host
looks up folders in the index, and never mounts or parses the image. All numbers are big-endian:

=================  ==================================================================================================================
8 bytes            :data:`MAGIC`
8 bytes            number of folders, 1 to :data:`MAX_FOLDERS`
32 bytes a folder  the folders, sorted by key. The key is the first 16 bytes of the SHA-256 of the path, which is absolute and has no slash
                   at its end, except ``/``. Then follow the offset of the listing in the file (8 bytes), its size (4) and its entries (4)
listings           the entries of each folder, sorted by name: length of the name (1 byte), name, time in nanoseconds since the epoch (8)
=================  ==================================================================================================================

The time is the modification time of the entry's inode. gVisor reports it as the change time, as long as the entry has not changed in the sandbox.

Invariants:
- A look-up reads one row after another and one listing, never the whole file.
- An index that breaks the format raises :class:`DamagedIndexError` and nothing else.
- The module imports nothing of Sandlot, because it is also run inside a sandbox.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

MAGIC: Final = b"SLINDEX\x01"
MAX_FOLDERS: Final = 1_000_000
MAX_ENTRIES: Final = 250_000
"""Largest number of entries in one folder."""
MAX_LISTING_BYTES: Final = 16 * 1024 * 1024
"""Largest size of the listing of one folder."""

_HEADER: Final = struct.Struct(">8sQ")
_ROW: Final = struct.Struct(">16sQII")
_TIME: Final = struct.Struct(">q")


class DamagedIndexError(Exception):
    """The index breaks the format. The text is the reason, as a clause without a full stop."""


def write_index(file: BinaryIO, folders: Mapping[bytes, Mapping[bytes, int]]) -> None:
    """Write an index.

    Args:
        file: New file.
        folders: Name and time in nanoseconds of each entry, by the path of its folder. Every folder of the image has a key, ``b"/"`` among them.

    Raises:
        ValueError: A folder has too many entries, or there are too many folders.
    """
    if not 1 <= len(folders) <= MAX_FOLDERS:
        raise ValueError(f"the image has {len(folders)} folders; at most {MAX_FOLDERS} are allowed")
    paths = sorted((_key(path), path) for path in folders)
    rows, offset = [], _HEADER.size + _ROW.size * len(paths)
    for key, path in paths:
        size = sum(1 + len(name) + _TIME.size for name in folders[path])
        if len(folders[path]) > MAX_ENTRIES or size > MAX_LISTING_BYTES:
            raise ValueError(f"the folder {os.fsdecode(path)!r} has {len(folders[path])} entries; at most {MAX_ENTRIES} are allowed")
        rows.append(_ROW.pack(key, offset, size, len(folders[path])))
        offset += size
    file.write(_HEADER.pack(MAGIC, len(rows)) + b"".join(rows))
    for _, path in paths:
        file.write(b"".join(bytes((len(name),)) + name + _TIME.pack(time_ns) for name, time_ns in sorted(folders[path].items())))


def read_folder(index: Path, folder: bytes) -> list[tuple[bytes, int]] | None:
    """Return the name and time of each entry of a folder, or None if the image has no such folder. Blocks for a moment.

    Args:
        index: File of the index.
        folder: Absolute path of the folder, without a slash at the end.

    Raises:
        DamagedIndexError: The index breaks the format.
        OSError: The file cannot be read.
    """
    fd = os.open(index, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise DamagedIndexError("it is not a file")
        magic, count = _HEADER.unpack(_read(fd, 0, _HEADER.size))
        if magic != MAGIC or not 1 <= count <= MAX_FOLDERS:
            raise DamagedIndexError("its header is not that of an index")
        row = _find(fd, _key(folder), count)
        return None if row is None else _entries(fd, *row)
    finally:
        os.close(fd)


def _find(fd: int, key: bytes, count: int) -> tuple[int, int, int] | None:
    """Return offset, size and number of entries of the listing with a key (binary search), or None if there is none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        found, offset, size, entries = _ROW.unpack(_read(fd, _HEADER.size + _ROW.size * middle, _ROW.size))
        if found == key:
            return offset, size, entries
        low, high = (middle + 1, high) if found < key else (low, middle)
    return None


def _entries(fd: int, offset: int, size: int, count: int) -> list[tuple[bytes, int]]:
    if size > MAX_LISTING_BYTES or count > MAX_ENTRIES or offset > os.fstat(fd).st_size:
        raise DamagedIndexError("a listing is too large")
    listing, found, at = _read(fd, offset, size), [], 0
    while at < size:
        end = at + 1 + listing[at]
        name, time = listing[at + 1 : end], listing[end : end + _TIME.size]
        if len(time) != _TIME.size or name in {b"", b".", b".."} or b"/" in name or b"\0" in name:
            raise DamagedIndexError("an entry has no valid name and time")
        found.append((name, *_TIME.unpack(time)))
        at = end + _TIME.size
    if len(found) != count:
        raise DamagedIndexError(f"a listing has {len(found)} entries instead of {count}")
    return found


def _read(fd: int, offset: int, size: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) != size:
        raise DamagedIndexError("it is cut off")
    return data


def _key(path: bytes) -> bytes:
    return hashlib.sha256(path).digest()[:16]
