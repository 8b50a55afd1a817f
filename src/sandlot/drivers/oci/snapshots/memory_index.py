r"""Length of the memory in a snapshot, read from its index (``pages_meta.img``). Pure.

runsc reports success before anyone has read the snapshot, and newer builds can leave ``pages.img`` too short near a full disk (google/gvisor 14228).
A sandbox whose processes then end is lost. The index says how long the file must be.

The format is internal to runsc (``MemoryFile.SaveTo`` in pkg/sentry/pgalloc/save_restore.go, pkg/state/wire). In release 20240729, the index has a
section for each memory file: that of the tenant's programs, and one for each file system. At the end of a section are three encoded objects and a
list of numbers::

    known-committed bytes | commit sequence | chunks | length of each committed range

An encoded object begins with a header: the number of its parts with the highest bit set, as a varint of ten bytes. The committed ranges are in
``pages.img``, one after another, so its length is the sum of the known-committed bytes of all sections. Releases from autumn 2024 write one encoded
structure instead, and those from August 2026 a Protocol Buffers message (``MemoryFileMetadataProto``). These formats are not read.
"""

from __future__ import annotations

import re

_SECTION = b"pkg/sentry/pgalloc.memAcctSet"
"""Name of a type that is in each section once."""
_VARINT = rb"[\x80-\xff]*[\x00-\x7f]"
_HEADER = rb"[\x80-\xff]\x80{8}\x01"
"""Header of an object with fewer than 128 parts. No number in the index has eight bytes 0x80 in a row: lengths and offsets are far below 2**56."""
_NUMBER = rb"\x81\x80{8}\x01\x02\x01(?:\x05|\x02(" + _VARINT + rb"))"
"""Encoded object that is one number: a header, the id of the object, and its value. The tag 0x05 means zero."""
_END_OF_SECTION = re.compile(_NUMBER + _NUMBER + _HEADER + rb"((?s:.*?))(?=" + _HEADER + rb"|\Z)")
"""The two numbers, the header of the chunks, and everything until the next object: the chunks and the list of lengths."""


def committed_bytes(index: bytes) -> tuple[int, ...] | None:
    """Return the bytes that each memory file has in ``pages.img``, the tenant's programs first. The length of ``pages.img`` is their sum.

    Return None if the format of the index is not known.

    Args:
        index: Content of ``pages_meta.img``.
    """
    sections = list(_END_OF_SECTION.finditer(index))
    if not sections or len(sections) != index.count(_SECTION):
        return None
    committed = tuple(_number(section[1] or b"\0") for section in sections)
    if not all(_ends_with_lengths(section[3], total) for section, total in zip(sections, committed, strict=True)):
        return None
    return committed


def _ends_with_lengths(text: bytes, total: int) -> bool:
    """Return whether the last numbers of ``text`` add up to ``total``. This proves that the format is the known one."""
    found = 0
    for length in reversed(re.findall(_VARINT, text)):
        if found >= total:
            break
        found += _number(length)
    return found == total


def _number(varint: bytes) -> int:
    return sum((byte & 0x7F) << (7 * position) for position, byte in enumerate(varint))
