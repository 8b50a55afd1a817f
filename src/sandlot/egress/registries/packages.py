"""What Debian's indexes say of files: Release files, and tables made of Packages indexes. Pure, but for the file that is read.

A table has a record for each file of the pool, sorted: 16 bytes of the SHA-256 of its path, then the 32 bytes of its own SHA-256. Debian's
``main`` has 64,000 packages, 3 MB of it; a record is found by bisection.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import re
from collections.abc import Mapping
from typing import IO

from sandlot.egress.digests import Digest

SUFFIXES = (".xz", ".gz", "")
"""Of Packages indexes, the smallest first."""
MAX_BYTES = 1024 * 1024 * 1024
"""Of one Packages index, unpacked; Debian's main has 50 MB."""
_BLOCK_BYTES = 1024 * 1024
_SEAL = 32
_KEY = 16
RECORD = _KEY + 32
"""Bytes of a record."""
_FIELDS = re.compile(rb"^(?:Filename: ([\x21-\x7e]+)|SHA256: ([0-9a-f]{64}))$", re.MULTILINE)
_LINE = re.compile(r"^ ([0-9a-f]{64}) +(\d+) (\S+)$", re.MULTILINE)
_SECTION = re.compile(r"^SHA256:\n((?: .*\n?)*)", re.MULTILINE)


def release(text: str) -> Mapping[str, Digest]:
    """The files that a Release or InRelease file names, by their path beside it."""
    section = _SECTION.search(text.replace("\r\n", "\n"))
    return {path: Digest("sha256", value) for value, _, path in _LINE.findall(section[1])} if section else {}


def table(descriptor: int) -> bytes:
    """The table of a Packages index, packed or not.

    Args:
        descriptor: An open file; it is read from its beginning and not closed.

    Raises:
        ValueError: It is no such index.
    """
    records: dict[bytes, bytes] = {}
    total = 0
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        packed = file.read(6)
        file.seek(0)
        rest, path = b"", b""
        with _unpacked(packed, file) as stream:
            try:
                while block := stream.read(_BLOCK_BYTES):
                    total += len(block)
                    if total > MAX_BYTES:
                        raise ValueError("the index is too large")
                    whole, newline, rest_of_it = (rest + block).rpartition(b"\n")
                    rest = rest_of_it
                    path = _collect(whole + newline, path, records)
            except (lzma.LZMAError, EOFError, OSError) as error:
                raise ValueError(str(error)) from error
        _collect(rest, path, records)
    return b"".join(key + records[key] for key in sorted(records))


def sealed(records: bytes) -> bytes:
    """A table as it is kept: its SHA-256 goes before it."""
    return hashlib.sha256(records).digest() + records


def unsealed(kept: bytes) -> bytes | None:
    """A table out of what :func:`sealed` made of it; None where it is not that any more."""
    records = kept[_SEAL:]
    return records if hashlib.sha256(records).digest() == kept[:_SEAL] else None


def find(records: bytes, path: str) -> Digest | None:
    """What a file of the pool has to be; None if the table does not have it.

    Args:
        records: The table.
        path: Below the archive's root.
    """
    key = _key(path.encode())
    low, high = 0, len(records) // RECORD
    while low < high:
        middle = (low + high) // 2
        if records[middle * RECORD : middle * RECORD + _KEY] < key:
            low = middle + 1
        else:
            high = middle
    record = records[low * RECORD : (low + 1) * RECORD]
    return Digest("sha256", record[_KEY:].hex()) if record[:_KEY] == key else None


def _collect(text: bytes, path: bytes, records: dict[bytes, bytes]) -> bytes:
    """Add what a piece of the index says; the path whose digest is still to come."""
    for found in _FIELDS.finditer(text):
        if found[1]:
            path = found[1]
        elif path:
            records[_key(path)] = bytes.fromhex(found[2].decode("ascii"))
            path = b""
    return path


def _key(path: bytes) -> bytes:
    return hashlib.sha256(path).digest()[:_KEY]


def _unpacked(magic: bytes, file: IO[bytes]) -> IO[bytes]:
    if magic.startswith(b"\xfd7zXZ"):
        return lzma.open(file)
    return gzip.open(file) if magic.startswith(b"\x1f\x8b") else io.BufferedReader(file)  # type: ignore[return-value,type-var]
