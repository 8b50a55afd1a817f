"""Debian's packages through the cache: Release files, indexes by name and by hash, the pool."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.values import DebianSources
from sandlot.egress.packages.digests import Digest
from sandlot.egress.packages.registries.debian import parse_release
from tests.support.packages import MIB, Served, served, sources_of
from tests.support.upstream import Asked, Said, Upstream

DEB, OTHER, LARGE = b"deb" * 1000, b"other", os.urandom(2 * MIB)
POOL = "pool/main/l/libx++/libx++1_1.0~rc1-1_amd64.deb"
RELEASE = "/debian/dists/bookworm/InRelease"
INDEX = "main/binary-amd64/Packages.xz"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packages(*entries: tuple[str, bytes]) -> bytes:
    return lzma.compress("".join(f"Package: x\nFilename: {path}\nSize: {len(data)}\nSHA256: {sha(data)}\n\n" for path, data in entries).encode())


def publish(registry: Upstream, *entries: tuple[str, bytes]) -> bytes:
    """An archive with some packages; its index."""
    index = packages(*entries)
    text = f"Origin: Debian\nSHA256:\n {sha(index)} {len(index)} {INDEX}\n {sha(b'i18n')} 4 main/i18n/Translation-en.xz\n"
    registry.says["/deb/dists/bookworm/InRelease"] = Said(text.encode())
    registry.says[f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(index)}"] = Said(index)
    registry.says[f"/deb/dists/bookworm/{INDEX}"] = Said(index)
    for path, data in entries:
        registry.says[f"/deb/{path}"] = Said(data)
    return index


async def test_indexes_and_packages_come_from_upstream_once(client: httpx.AsyncClient, registry: Upstream) -> None:
    index = publish(registry, (POOL, DEB))
    assert b"Origin: Debian" in (await client.get(RELEASE)).content
    for _ in range(2):
        assert (await client.get(f"/debian/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(index)}")).content == index
        for path in (POOL, POOL.replace("+", "%2b").replace("~", "%7E")):
            assert (await client.get(f"/debian/{path}")).content == DEB
    assert len(registry.asked) == 3


async def test_a_stored_package_is_known_to_the_next_service(tmp_path: Path, registry: Upstream) -> None:
    registry.says[f"/deb/{POOL}"] = Said(DEB)
    for _ in range(2):
        async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
            assert (await client.get(f"/debian/{POOL}")).content == DEB
            assert (await client.get(f"/debian/{POOL}", headers={"Range": "bytes=3-5"})).content == DEB[3:6]
    assert len(registry.asked) == 1


async def test_incomplete_package_is_cut_and_not_stored(client: httpx.AsyncClient, registry: Upstream, cache: Served) -> None:
    registry.says[f"/deb/{POOL}"] = Said(DEB, cut_at=1000)
    with pytest.raises(httpx.TransportError):
        await client.get(f"/debian/{POOL}")
    assert len(cache.cut) == 1
    registry.says[f"/deb/{POOL}"] = Said(DEB)
    assert (await client.get(f"/debian/{POOL}")).content == DEB


async def test_broken_download_with_a_validator_is_resumed(client: httpx.AsyncClient, registry: Upstream) -> None:
    def answer(asked: Asked) -> Said:
        if asked.headers.get("if-range") != '"one"':
            return Said(LARGE, cut_at=MIB, headers={"ETag": '"one"'})
        start = int(asked.headers["range"].removeprefix("bytes=").rstrip("-"))
        return Said(LARGE[start:], 206, {"Content-Range": f"bytes {start}-{len(LARGE) - 1}/{len(LARGE)}"})

    registry.says[f"/deb/{POOL}"] = answer
    for _ in range(2):
        assert (await client.get(f"/debian/{POOL}")).content == LARGE
    assert len(registry.asked) == 2


async def test_package_that_changes_during_its_download_is_cut(client: httpx.AsyncClient, registry: Upstream, cache: Served) -> None:
    answers = iter([Said(LARGE, cut_at=MIB, headers={"ETag": '"one"'}), Said(bytes(len(LARGE)), headers={"ETag": '"two"'})])
    registry.says[f"/deb/{POOL}"] = lambda _: next(answers)
    with pytest.raises(httpx.TransportError):
        await client.get(f"/debian/{POOL}")
    assert cache.cache.counters().mismatches == 1


async def test_a_package_of_unknown_length_is_passed_through_and_not_stored(client: httpx.AsyncClient, registry: Upstream) -> None:
    registry.says[f"/deb/{POOL}"] = Said(DEB, chunked=True)
    for _ in range(2):
        before = len(registry.asked)
        assert (await client.get(f"/debian/{POOL}")).content == DEB
        assert len(registry.asked) > before


async def test_a_package_that_is_larger_than_the_store_is_passed_through(tmp_path: Path, registry: Upstream) -> None:
    registry.says[f"/deb/{POOL}"] = Said(LARGE)
    async with served(tmp_path / "p", sources_of(registry.origin), max_bytes=MIB) as cache, cache.client() as client:
        for _ in range(2):
            assert (await client.get(f"/debian/{POOL}")).content == LARGE
    assert list((tmp_path / "p/urls").iterdir()) == []


async def test_no_cache_replaces_a_stored_package(client: httpx.AsyncClient, registry: Upstream) -> None:
    registry.says[f"/deb/{POOL}"] = Said(OTHER)
    assert (await client.get(f"/debian/{POOL}")).content == OTHER
    registry.says[f"/deb/{POOL}"] = Said(DEB)
    assert (await client.get(f"/debian/{POOL}", headers={"Cache-Control": "max-age=0"})).content == OTHER
    assert (await client.get(f"/debian/{POOL}", headers={"Cache-Control": "no-cache"})).content == DEB
    assert (await client.get(f"/debian/{POOL}")).content == DEB
    assert len(registry.asked) == 2


async def test_other_files_of_the_pool_are_passed_through_and_not_stored(client: httpx.AsyncClient, registry: Upstream) -> None:
    registry.says["/deb/pool/main/s/s.dsc"] = Said(OTHER)
    for _ in range(2):
        assert (await client.get("/debian/pool/main/s/s.dsc")).content == OTHER
    assert len(registry.asked) == 2


async def test_packages_of_this_machines_folders_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "deb/pool").mkdir(parents=True)
    (tmp_path / "deb/pool/x_1_amd64.deb").write_bytes(DEB)
    sources = PackageSources(debian=DebianSources(archives={"debian": f"{(tmp_path / 'deb').as_uri()}/"}))
    async with served(tmp_path / "p", lambda: sources) as cache, cache.client() as client:
        for headers in ({}, {"Cache-Control": "no-cache"}):
            response = await client.get("/debian/pool/x_1_amd64.deb", headers={"Range": "bytes=3-5", **headers})
            assert (response.status_code, response.content) == (206, DEB[3:6])
    assert list((tmp_path / "p/urls").iterdir()) == []


async def test_index_by_name_matches_the_stored_release_file(client: httpx.AsyncClient, registry: Upstream) -> None:
    index = publish(registry, (POOL, DEB))
    await client.get(RELEASE)
    publish(registry, (POOL, OTHER))  # the archive goes on
    registry.says[f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(index)}"] = Said(index)
    assert (await client.get(f"/debian/dists/bookworm/{INDEX}")).content == index


async def test_file_with_a_wrong_hash_is_cut(client: httpx.AsyncClient, registry: Upstream) -> None:
    registry.says[f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{'a' * 64}"] = Said(gzip.compress(b"x"))
    with pytest.raises(httpx.TransportError):
        await client.get(f"/debian/dists/bookworm/main/binary-amd64/by-hash/SHA256/{'a' * 64}")


async def test_security_archive_is_separate(client: httpx.AsyncClient, registry: Upstream) -> None:
    registry.says[f"/deb/{POOL}"] = Said(DEB)
    index = packages((POOL, OTHER))
    registry.says["/sec/dists/bookworm-security/InRelease"] = Said(f"SHA256:\n {sha(index)} {len(index)} {INDEX}\n".encode())
    registry.says[f"/sec/dists/bookworm-security/{INDEX}"] = Said(index)
    registry.says[f"/sec/{POOL}"] = Said(OTHER)
    await client.get("/debian-security/dists/bookworm-security/InRelease")
    assert (await client.get(f"/debian-security/dists/bookworm-security/{INDEX}")).content == index
    for _ in range(2):
        assert (await client.get(f"/debian-security/{POOL}")).content == OTHER
        assert (await client.get(f"/debian/{POOL}")).content == DEB
    assert registry.paths.count(f"/sec/{POOL}") == registry.paths.count(f"/deb/{POOL}") == 1


def test_digests_of_a_release_file_are_parsed() -> None:
    digests = [sha(str(number).encode()) for number in range(3)]
    text = (
        f"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nOrigin: Debian\nMD5Sum:\n {'0' * 32} 5 x\n"
        f"SHA256:\n {digests[0]} 5 main/binary-amd64/Packages\n"
        f" {digests[1]}    77 main/binary-amd64/Packages.xz\n-----BEGIN PGP SIGNATURE-----\n {digests[2]} 5 after\n"
    )
    assert parse_release(text) == {
        "main/binary-amd64/Packages": Digest("sha256", digests[0]),
        "main/binary-amd64/Packages.xz": Digest("sha256", digests[1]),
    }
    assert parse_release("nothing") == {}


@pytest.mark.parametrize(
    "path",
    [
        "/debian", "/debian/", "/debian/dists/", "/debian/pool/", "/debian/pool", "/debian/ls-lR.gz", "/debian/dists/none/InRelease",
        "/debian/dists/bookworm", "/debian/dists/bookworm/main/by-hash/SHA256/short", "/debian/pool/main/none.deb", "/debian/pool/a%3fb",
        "/debian-other/dists/bookworm/InRelease",
    ],
)  # fmt: skip
async def test_unknown_path_is_404(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404
