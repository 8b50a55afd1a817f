"""Digests of package files, as indexes name them. Pure.

Invariant: only digests of strong algorithms are used. MD5 is ignored. SHA-1 is accepted only from npm, which has no other digest for old packages,
and only if there is no stronger digest.
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
_WEAK_SIZES = {"sha1": 20}
_TOKEN = re.compile(r"(sha512|sha384|sha256|sha1)-([0-9a-f]{40,128})")


class HashState(Protocol):
    """A hash object of hashlib."""

    def update(self, data: bytes, /) -> None: ...  # noqa: D102
    def hexdigest(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest that a file must have.

    Args:
        algorithm: ``sha256``, ``sha384``, ``sha512`` or ``sha1``.
        value: Value in hexadecimal, lower case.
    """

    algorithm: str
    value: str

    def __str__(self) -> str:
        """Return ``ALGORITHM-HEX``. It is the name of the file in the store, and URL paths contain it."""
        return f"{self.algorithm}-{self.value}"

    def new_hash(self) -> HashState:
        """Return a new hash object of the same algorithm."""
        return hashlib.new(self.algorithm, usedforsecurity=False)


def parse_digest(text: str) -> Digest | None:
    """Parse ``ALGORITHM-HEX``. Return None if the text is anything else."""
    found = _TOKEN.fullmatch(text)
    return _checked(found[1], found[2], _SIZES | _WEAK_SIZES) if found else None


def digest_from_hashes(hashes: Mapping[str, object]) -> Digest | None:
    """Return the digest in the ``hashes`` of a Python index, or None if none of them can be used.

    Args:
        hashes: Hexadecimal value by algorithm. SHA-256 is preferred because all indexes and clients support it.
    """
    found = (_checked(name, hashes.get(name), _SIZES) for name in ("sha256", "sha512", "sha384"))
    return next((digest for digest in found if digest is not None), None)


def digest_from_integrity(integrity: object, shasum: object) -> Digest | None:
    """Return the strongest digest of npm's ``dist``, or None if none of them can be used.

    Args:
        integrity: One or more ``ALGORITHM-BASE64``, separated by spaces (Subresource Integrity).
        shasum: SHA-1 in hexadecimal.
    """
    found: dict[str, Digest] = {}
    for word in integrity.split() if isinstance(integrity, str) else ():
        algorithm, _, value = word.partition("?")[0].partition("-")
        try:
            digest = _checked(algorithm, base64.b64decode(value, validate=True).hex(), _SIZES | _WEAK_SIZES)
        except (binascii.Error, ValueError):
            continue
        if digest is not None:
            found[algorithm] = digest
    weak = _checked("sha1", shasum, _WEAK_SIZES)
    return next((found[name] for name in (*_SIZES, *_WEAK_SIZES) if name in found), weak)


def _checked(algorithm: str, value: object, sizes: Mapping[str, int]) -> Digest | None:
    text = value.lower() if isinstance(value, str) else ""
    return Digest(algorithm, text) if re.fullmatch(r"[0-9a-f]+", text) and len(text) == sizes.get(algorithm, 0) * 2 else None
