"""Debian's indexes: Release files and tables of Packages."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from sandlot.egress.digests import Digest
from sandlot.egress.registries.packages import RECORD, find, release, sealed, table, unsealed

PACKED: dict[str, Callable[[bytes], bytes]] = {"plain": bytes, "gz": gzip.compress, "xz": lzma.compress}


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def stanza(number: int) -> str:
    return (
        f"Package: p{number}\nVersion: 1\nFilename: pool/main/p/p{number}_1_amd64.deb\nSize: 5\nMD5sum: {'0' * 32}\n"
        f"SHA256: {digest(number)}\nDescription: SHA256: {'f' * 64}\n Filename: x\n\n"
    )


@pytest.mark.parametrize("packing", PACKED)
def test_every_file_of_an_index_is_found(tmp_path: Path, packing: str) -> None:
    path = tmp_path / "Packages"
    path.write_bytes(PACKED[packing]("".join(map(stanza, range(1_000))).encode()))
    with path.open("rb") as file:
        records = table(file.fileno())
    assert len(records) == 1_000 * 48
    for number in (0, 1, 499, 999):
        assert find(records, f"pool/main/p/p{number}_1_amd64.deb") == Digest("sha256", digest(number))
    for absent in ("pool/main/p/p1000_1_amd64.deb", "", "x"):
        assert find(records, absent) is None


@pytest.mark.parametrize("data", [lzma.compress(b"x" * 1000)[:-9], gzip.compress(b"x" * 1000, mtime=0)[:-9], b"\xfd7zXZ\x00 and no more"])
def test_a_torn_index_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "torn").write_bytes(data)
    with (tmp_path / "torn").open("rb") as file, pytest.raises(ValueError):  # noqa: PT011 - any of them: the text is the parser's
        table(file.fileno())


def test_a_release_file_names_files() -> None:
    text = (
        f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\nMD5Sum:\n {'0' * 32} 5 x\n"
        f"SHA256:\n {digest(1)} 5 main/binary-amd64/Packages\n"
        f" {digest(2)}    77 main/binary-amd64/Packages.xz\n-----BEGIN PGP SIGNATURE-----\n {digest(3)} 5 after\n"
    )
    assert release(text) == {
        "main/binary-amd64/Packages": Digest("sha256", digest(1)),
        "main/binary-amd64/Packages.xz": Digest("sha256", digest(2)),
    }
    assert release("nothing") == {}


def test_a_table_that_is_not_what_it_was_is_none() -> None:
    assert unsealed(sealed(b"x" * RECORD)) == b"x" * RECORD
    for torn in (b"", bytes(32 + RECORD), sealed(b"x" * RECORD)[:-1]):
        assert unsealed(torn) is None
