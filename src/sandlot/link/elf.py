"""Executable files for x86-64 that consist of machine code and nothing else."""

from __future__ import annotations

import struct
from typing import Final

_HEADER_BYTES, _PROGRAM_HEADER_BYTES = 64, 56
_BASE: Final = 0x400000
CODE_ADDRESS: Final = _BASE + _HEADER_BYTES + _PROGRAM_HEADER_BYTES
"""Address of the first instruction."""


def elf_file(code: bytes) -> bytes:
    """Return an ELF file for x86-64 with one segment, which begins with the first instruction (elf(5)).

    Args:
        code: Content of the segment. It cannot be written.
    """
    size = _HEADER_BYTES + _PROGRAM_HEADER_BYTES + len(code)
    ident = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, CODE_ADDRESS, _HEADER_BYTES, 0, 0, _HEADER_BYTES, _PROGRAM_HEADER_BYTES, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code
