"""Debian's packages through the cache: Release files, indexes by name and by hash, the pool."""

from __future__ import annotations

import gzip
import hashlib
import lzma
from pathlib import Path

import httpx
import pytest

from tests.support.packages import Served, served, sources_of
from tests.support.upstream import Said, Upstream

DEB, OTHER = b"deb" * 1000, b"other"
POOL = "pool/main/l/libx++/libx++1_1.0~rc1-1_amd64.deb"
STRANGE = "pool/main/s/strange_1_all.deb"
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


async def test_a_package_of_a_suite_that_went_through_here_is_verified_and_kept(client: httpx.AsyncClient, registry: Upstream) -> None:
    index = publish(registry, (POOL, DEB))
    assert b"Origin: Debian" in (await client.get(RELEASE)).content
    assert (await client.get(f"/debian/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(index)}")).content == index
    for path in (POOL, POOL.replace("+", "%2b").replace("~", "%7E")):
        assert (await client.get(f"/debian/{path}")).content == DEB
    assert len(registry.asked) == 3


async def test_a_wrong_package_is_cut(client: httpx.AsyncClient, registry: Upstream, cache: Served) -> None:
    publish(registry, (POOL, DEB))
    registry.says[f"/deb/{POOL}"] = Said(b"x" * len(DEB))
    await client.get(RELEASE)
    with pytest.raises(httpx.TransportError):
        await client.get(f"/debian/{POOL}")
    assert cache.cache.counters().mismatches == 1


async def test_a_package_that_no_index_names_is_passed_through_and_not_kept(client: httpx.AsyncClient, registry: Upstream) -> None:
    publish(registry, (POOL, DEB))
    registry.says[f"/deb/{STRANGE}"] = Said(OTHER)
    registry.says["/deb/pool/main/s/s.dsc"] = Said(OTHER)
    await client.get(RELEASE)
    for path in (STRANGE, STRANGE, "pool/main/s/s.dsc"):
        assert (await client.get(f"/debian/{path}")).content == OTHER
    assert registry.paths.count(f"/deb/{STRANGE}") == 2


async def test_what_is_known_of_suites_is_known_to_the_next_service(tmp_path: Path, registry: Upstream) -> None:
    publish(registry, (POOL, DEB))
    for path in (RELEASE, f"/debian/{POOL}", f"/debian/{POOL}"):
        async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
            assert (await client.get(path)).status_code == 200
    assert len(registry.asked) == 3, registry.paths


async def test_an_archive_that_has_gone_on_costs_one_question_and_is_no_forgery(client: httpx.AsyncClient, registry: Upstream, cache: Served) -> None:
    others = [f"pool/main/o/other{number}_1_amd64.deb" for number in range(3)]
    gone = publish(registry, (POOL, DEB))
    await client.get(RELEASE)
    publish(registry, (POOL, OTHER))  # another index by the same name, and the Release file that names the first one is still fresh
    by_hash = f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(gone)}"
    del registry.says[by_hash]
    for path in others:
        registry.says[f"/deb/{path}"] = Said(DEB)
        assert (await client.get(f"/debian/{path}")).content == DEB
    assert registry.paths.count(by_hash) == 1
    assert f"/deb/dists/bookworm/{INDEX}" not in registry.paths
    assert cache.cache.counters().mismatches == 0


async def test_an_old_release_file_is_asked_for_anew_before_an_index_is_fetched(tmp_path: Path, registry: Upstream) -> None:
    gone = publish(registry, (POOL, DEB))
    async with served(tmp_path / "p", sources_of(registry.origin), ttl_s=0.0) as cache, cache.client() as client:
        await client.get(RELEASE)
        publish(registry, (POOL, OTHER))
        by_hash = f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(gone)}"
        del registry.says[by_hash]
        for _ in range(2):
            assert (await client.get(f"/debian/{POOL}")).content == OTHER
    assert registry.paths.count(f"/deb/{POOL}") == 1
    assert by_hash not in registry.paths


async def test_suites_that_another_sandbox_asks_for_cost_the_others_nothing(client: httpx.AsyncClient, registry: Upstream, cache: Served) -> None:
    guesses = [f"guess{number}" for number in range(16)]
    for suite in guesses:
        index = packages((f"pool/{suite}_1_amd64.deb", OTHER))
        registry.says[f"/deb/dists/{suite}/InRelease"] = Said(f"SHA256:\n {sha(index)} {len(index)} {INDEX}\n".encode())
        registry.says[f"/deb/dists/{suite}/main/binary-amd64/by-hash/SHA256/{sha(index)}"] = Said(index)
    for suite in guesses:
        assert (await client.get(f"/debian/dists/{suite}/InRelease")).status_code == 200
        made_up = f"/debian/dists/{suite}/main/binary-amd64/by-hash/SHA256/{'a' * 64}"
        assert (await client.get(made_up)).status_code == 404
    publish(registry, (POOL, DEB))
    registry.says[f"/deb/{STRANGE}"] = Said(OTHER)
    cache.sandbox = "two"
    async with cache.client() as other:
        await other.get(RELEASE)
        asked = len(registry.asked)
        for path, data in ((POOL, DEB), (STRANGE, OTHER), (POOL, DEB)):
            assert (await other.get(f"/debian/{path}")).content == data
    assert len(registry.asked) == asked + 3, "its own index and the two files"


async def test_an_index_by_its_name_is_the_one_that_the_release_file_means(client: httpx.AsyncClient, registry: Upstream) -> None:
    index = publish(registry, (POOL, DEB))
    await client.get(RELEASE)
    publish(registry, (POOL, OTHER))  # the archive goes on
    registry.says[f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(index)}"] = Said(index)
    assert (await client.get(f"/debian/dists/bookworm/{INDEX}")).content == index


async def test_a_file_by_a_wrong_hash_is_cut(client: httpx.AsyncClient, registry: Upstream) -> None:
    registry.says[f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{'a' * 64}"] = Said(gzip.compress(b"x"))
    with pytest.raises(httpx.TransportError):
        await client.get(f"/debian/dists/bookworm/main/binary-amd64/by-hash/SHA256/{'a' * 64}")


async def test_security_has_an_archive_and_packages_of_its_own(client: httpx.AsyncClient, registry: Upstream) -> None:
    publish(registry, (POOL, DEB))
    index = packages(("pool/updates/main/x/x_1_amd64.deb", OTHER))
    registry.says["/sec/dists/bookworm-security/InRelease"] = Said(f"SHA256:\n {sha(index)} {len(index)} {INDEX}\n".encode())
    registry.says[f"/sec/dists/bookworm-security/{INDEX}"] = Said(index)
    registry.says["/sec/pool/updates/main/x/x_1_amd64.deb"] = Said(OTHER)
    await client.get("/debian-security/dists/bookworm-security/InRelease")
    assert (await client.get(f"/debian-security/dists/bookworm-security/{INDEX}")).content == index
    for _ in range(2):
        assert (await client.get("/debian-security/pool/updates/main/x/x_1_amd64.deb")).content == OTHER
    assert registry.paths.count("/sec/pool/updates/main/x/x_1_amd64.deb") == 1
    assert not any(path.startswith("/deb/") for path in registry.paths)


async def test_an_index_that_makes_no_sense_vouches_for_nothing(client: httpx.AsyncClient, registry: Upstream) -> None:
    torn = b"\xfd7zXZ\x00 torn"
    registry.says["/deb/dists/bookworm/InRelease"] = Said(f"SHA256:\n {sha(torn)} {len(torn)} {INDEX}\n".encode())
    registry.says[f"/deb/dists/bookworm/main/binary-amd64/by-hash/SHA256/{sha(torn)}"] = Said(torn)
    registry.says[f"/deb/{POOL}"] = Said(DEB)
    await client.get(RELEASE)
    for _ in range(2):
        assert (await client.get(f"/debian/{POOL}")).content == DEB
    assert len(registry.asked) == 4, "what makes no sense is read once"


@pytest.mark.parametrize(
    "path",
    [
        "/debian", "/debian/", "/debian/dists/", "/debian/pool/", "/debian/pool", "/debian/ls-lR.gz", "/debian/dists/none/InRelease",
        "/debian/dists/bookworm", "/debian/dists/bookworm/main/by-hash/SHA256/short", "/debian/pool/main/none.deb", "/debian/pool/a%3fb",
        "/debian-other/dists/bookworm/InRelease",
    ],
)  # fmt: skip
async def test_what_there_is_not(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404
