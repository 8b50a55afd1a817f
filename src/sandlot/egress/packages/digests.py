"""Parsers for the digests of package files that package indexes name. Pure.

Invariant: only digests of strong algorithms are used, and MD5 is ignored. There is one exception: npm names only SHA-1 for old packages, so SHA-1 is
accepted from npm if there is no stronger digest.
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
    """Protocol of a hash object, such as those of hashlib."""

    def update(self, data: bytes, /) -> None: ...  # noqa: D102
    def hexdigest(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Digest:
    """Digest that the content of a package file must have.

    Args:
        algorithm: ``sha256``, ``sha384``, ``sha512`` or ``sha1``.
        value: The digest in lower-case hexadecimal.
    """

    algorithm: str
    value: str

    def __str__(self) -> str:
        """Return ``ALGORITHM-HEX``, the form that is used in names of stored files and in URL paths."""
        return f"{self.algorithm}-{self.value}"

    def new_hash(self) -> HashState:
        """Return an empty hash object of this digest's algorithm."""
        return hashlib.new(self.algorithm, usedforsecurity=False)


def parse_digest(text: str) -> Digest | None:
    """Parse a digest of the form ``ALGORITHM-HEX``. Return None if the text is not a valid digest."""
    found = _TOKEN.fullmatch(text)
    return _checked(found[1], found[2], _SIZES | _WEAK_SIZES) if found else None


def digest_from_hashes(hashes: Mapping[str, object]) -> Digest | None:
    """Return the digest of a file in a Python index, or None if the index names no usable digest.

    Args:
        hashes: Hexadecimal digest by algorithm, as in the index. SHA-256 is preferred, because all indexes and clients support it.
    """
    found = (_checked(name, hashes.get(name), _SIZES) for name in ("sha256", "sha512", "sha384"))
    return next((digest for digest in found if digest is not None), None)


def digest_from_integrity(integrity: object, shasum: object) -> Digest | None:
    """Return the strongest digest in the ``dist`` object of an npm package version, or None if it names no usable digest.

    Args:
        integrity: ``dist.integrity``: one or more ``ALGORITHM-BASE64``, separated by spaces (Subresource Integrity).
        shasum: ``dist.shasum``: SHA-1 in hexadecimal. Used only if ``integrity`` has no usable digest.
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
