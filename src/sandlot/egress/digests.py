"""What a file has to be: digests as indexes give them. Pure.

Law: only what nobody can forge counts. MD5 is no digest here; SHA-1 is one where a registry has nothing better for old packages, and is taken
last.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

_SIZES = {"sha512": 64, "sha384": 48, "sha256": 32}
_OLD = {"sha1": 20}
_TOKEN = re.compile(r"(sha512|sha384|sha256|sha1)-([0-9a-f]{40,128})")


class Running(Protocol):
    """A digest being computed."""

    def update(self, data: bytes, /) -> None: ...  # noqa: D102
    def hexdigest(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Digest:
    """A digest.

    Args:
        algorithm: ``sha256``, ``sha384``, ``sha512`` or ``sha1``.
        value: In hexadecimal, lower case.
    """

    algorithm: str
    value: str

    def __str__(self) -> str:
        """``ALGORITHM-HEX``: part of a path, and the name of a file on the shelf."""
        return f"{self.algorithm}-{self.value}"

    def running(self) -> Running:
        """Begin to compute one like it."""
        return hashlib.new(self.algorithm, usedforsecurity=False)


def of_token(text: str) -> Digest | None:
    """A digest out of what :meth:`Digest.__str__` made of it; None for anything else."""
    found = _TOKEN.fullmatch(text)
    return _checked(found[1], found[2], _SIZES | _OLD) if found else None


def of_hashes(hashes: Mapping[str, object]) -> Digest | None:
    """The digest in the ``hashes`` of a Python index; None if there is none that counts.

    Args:
        hashes: Algorithm -> hexadecimal. SHA-256 goes first, because it is what every index and client has.
    """
    found = (_checked(name, hashes.get(name), _SIZES) for name in ("sha256", "sha512", "sha384"))
    return next((digest for digest in found if digest is not None), None)


def of_integrity(integrity: object, shasum: object) -> Digest | None:
    """The strongest digest of npm's ``dist``; None if there is none that counts.

    Args:
        integrity: ``ALGORITHM-BASE64``, any number of them with spaces between (Subresource Integrity).
        shasum: SHA-1 in hexadecimal.
    """
    found: dict[str, Digest] = {}
    for word in integrity.split() if isinstance(integrity, str) else ():
        algorithm, _, value = word.partition("?")[0].partition("-")
        try:
            digest = _checked(algorithm, base64.b64decode(value, validate=True).hex(), _SIZES | _OLD)
        except (binascii.Error, ValueError):
            continue
        if digest is not None:
            found[algorithm] = digest
    old = _checked("sha1", shasum, _OLD)
    return next((found[name] for name in (*_SIZES, *_OLD) if name in found), old)


def _checked(algorithm: str, value: object, sizes: Mapping[str, int]) -> Digest | None:
    text = value.lower() if isinstance(value, str) else ""
    return Digest(algorithm, text) if re.fullmatch(r"[0-9a-f]+", text) and len(text) == sizes.get(algorithm, 0) * 2 else None
