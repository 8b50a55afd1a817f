"""Length of the memory of a snapshot, read from indexes in the format of runsc 20240729 (pkg/state/wire)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sandlot.drivers.oci.snapshots.memory_index import committed_bytes

_TYPE = b"\x11\x1dpkg/sentry/pgalloc.memAcctSet\x01\x04root"


def varint(number: int) -> bytes:
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def header(parts: int) -> bytes:
    """Header of an object."""
    return varint(1 << 63 | parts)


def number(value: int) -> bytes:
    """Object that is one number; zero has no value."""
    return header(1) + b"\x02\x01" + (b"\x02" + varint(value) if value else b"\x05")


def section(lengths: Sequence[int], committed: int | None = None) -> bytes:
    """Section of a memory file whose committed ranges have these lengths."""
    ranges = header(2) + _TYPE + b"\x02\x01\x0b\x01\x08\x26\x26" + b"".join(b"\x0d\x03\x02" + varint(length) for length in lengths)
    chunks = header(2) + b"\x11\x1cpkg/sentry/pgalloc.chunkInfo\x01\x04huge\x02\x01\x08\x01\x01\x02\x00\x02\x02\x09\x01\x0b\x01\x05"
    total = sum(lengths) if committed is None else committed
    return header(1) + b"\x02\x01\x06\x00" + ranges + number(total) + number(80) + (chunks if lengths else number(0)) + b"".join(map(varint, lengths))


def index(*files: Sequence[int]) -> bytes:
    """Index of a memory image with these memory files."""
    names = header(2) + b"\x11\x2bpkg/sentry/kernel.privateMemoryFileMetadata\x01\x06owners\x02\x01\x07\x0d__no_name_0:/"
    return section(files[0]) + names + b"".join(map(section, files[1:]))


@pytest.mark.parametrize("files", [((4096,),), ((4096, 1 << 30, 8192),), ((4096,), ()), ((), (4096,)), ((12288, 4096), (1 << 40,), (4096, 4096))])
def test_length_of_each_file_is_the_sum_of_its_committed_ranges(files: tuple[tuple[int, ...], ...]) -> None:
    assert committed_bytes(index(*files)) == tuple(map(sum, files))


@pytest.mark.parametrize(
    "other",
    [
        b"",
        b"x" * 5000,
        b"\x40\x00\x00\x00\x00\x00\x00\x00" + b"\x08\x01\x12\x02\x08\x01",  # a newer release
        header(2) + _TYPE + number(4096),
        section((4096, 8192), committed=16384),
        section((4096, 8192), committed=0x1000 - 1),
        index((4096,), (8192,))[:-30],
    ],
)
def test_other_format_has_no_length(other: bytes) -> None:
    assert committed_bytes(other) is None
