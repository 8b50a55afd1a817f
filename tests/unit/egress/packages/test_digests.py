"""Digests from indexes: the strongest one is used, weak ones are ignored."""

from __future__ import annotations

import base64
import hashlib

import pytest

from sandlot.egress.packages.digests import Digest, digest_from_hashes, digest_from_integrity, parse_digest

DATA = b"data"
SHA1, SHA256, SHA512 = (hashlib.new(name, DATA).hexdigest() for name in ("sha1", "sha256", "sha512"))


def sri(algorithm: str) -> str:
    return f"{algorithm}-{base64.b64encode(hashlib.new(algorithm, DATA).digest()).decode()}"


def test_digest_is_parsed_from_its_text() -> None:
    digest = Digest("sha256", SHA256)
    assert parse_digest(str(digest)) == digest
    running = digest.new_hash()
    running.update(DATA)
    assert running.hexdigest() == digest.value


@pytest.mark.parametrize(
    "text", ["", "sha256-", f"sha256-{SHA1}", f"md5-{'a' * 32}", f"sha256-{SHA256.upper()}", f"sha256-{SHA256}/", f"../{SHA256}"]
)
def test_other_text_is_not_a_digest(text: str) -> None:
    assert parse_digest(text) is None


@pytest.mark.parametrize(
    "hashes, expected",
    [
        ({"sha256": SHA256, "md5": "x"}, Digest("sha256", SHA256)),
        ({"sha512": SHA512, "sha256": SHA256.upper()}, Digest("sha256", SHA256)),
        ({"sha512": SHA512}, Digest("sha512", SHA512)),
        ({"md5": "a" * 32, "sha1": SHA1}, None),
        ({"sha256": 5}, None),
        ({"sha256": SHA256[:-1]}, None),
        ({"sha256": SHA256[:-1] + "g"}, None),
        ({}, None),
    ],
)
def test_strongest_hash_of_a_python_index_is_used(hashes: dict[str, object], expected: Digest | None) -> None:
    assert digest_from_hashes(hashes) == expected


@pytest.mark.parametrize(
    "integrity, shasum, expected",
    [
        (sri("sha512"), SHA1, Digest("sha512", SHA512)),
        (f"{sri('sha1')} {sri('sha512')}?opt", None, Digest("sha512", SHA512)),
        (sri("sha1"), None, Digest("sha1", SHA1)),
        (None, SHA1, Digest("sha1", SHA1)),
        ("sha512-!!!", SHA1, Digest("sha1", SHA1)),
        ("sha512-AAAA", None, None),
        ("md5-AAAAAAAAAAAAAAAAAAAAAA==", None, None),
        (7, 7, None),
        (None, None, None),
    ],
)
def test_strongest_digest_of_npm_is_used(integrity: object, shasum: object, expected: Digest | None) -> None:
    assert digest_from_integrity(integrity, shasum) == expected
