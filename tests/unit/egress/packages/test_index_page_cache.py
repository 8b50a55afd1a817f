"""Index pages: fresh for a while, then refreshed, and served although expired while upstream does not respond."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages import index_page_cache, index_page_inputs
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.values import PypiSources
from sandlot.egress.packages.index_page import BuildPage, FetchedInput
from sandlot.egress.packages.index_page_worker import build_in_process
from tests.support.packages import Served, served, sources_of
from tests.support.until import until
from tests.support.upstream import Asked, Said, Upstream

JSON = "application/vnd.pypi.simple.v1+json"
PAGE = "/pypi/simple/pkg/"


def page(*versions: int, **headers: str) -> Said:
    files = [
        {"filename": f"pkg-{each}.tar.gz", "url": "x", "hashes": {"sha256": hashlib.sha256(str(each).encode()).hexdigest()}} for each in versions
    ]
    return Said(json.dumps({"meta": {"api-version": "1.0"}, "name": "pkg", "files": files}).encode(), headers={"Content-Type": JSON, **headers})


async def versions(client: httpx.AsyncClient) -> list[str]:
    response = await client.get(PAGE, headers={"Accept": JSON})
    assert response.status_code == 200, response.text
    return [each["filename"].removeprefix("pkg-").removesuffix(".tar.gz") for each in response.json()["files"]]


async def test_fresh_page_is_served_without_a_request(client: httpx.AsyncClient, registry: Upstream, cache: Served) -> None:
    registry.says["/simple/pkg/"] = page(1)
    for _ in range(5):
        assert await versions(client) == ["1"]
    registry.says["/simple/pkg/"] = page(1, 2)
    assert await versions(client) == ["1"]
    assert len(registry.asked) == 1
    counters = cache.cache.counters()
    assert (counters.hits, counters.misses) == (5, 1)


async def test_expired_page_is_requested_with_its_validators(tmp_path: Path, registry: Upstream) -> None:
    def answer(asked: Asked) -> Said:
        return Said(status=304) if asked.headers.get("if-none-match") == '"one"' else page(1, ETag='"one"', **{"Last-Modified": "then"})

    registry.says["/simple/pkg/"] = answer
    async with served(tmp_path / "p", sources_of(registry.origin), ttl_s=0.0) as cache, cache.client() as client:
        for _ in range(3):
            assert await versions(client) == ["1"]
    assert [each.headers.get("if-none-match") for each in registry.asked] == [None, '"one"', '"one"']
    assert registry.asked[1].headers["if-modified-since"] == "then"


@pytest.mark.parametrize("down", [Said(status=500), Said(status=429), Said(b"x" * 10, cut_at=3), Said(b"{", headers={"Content-Type": JSON})])
async def test_expired_page_is_served_and_logged_while_upstream_fails(
    tmp_path: Path, registry: Upstream, caplog: pytest.LogCaptureFixture, down: Said
) -> None:
    registry.says["/simple/pkg/"] = page(1)
    async with served(tmp_path / "p", sources_of(registry.origin), ttl_s=0.0) as cache, cache.client() as client:
        assert await versions(client) == ["1"]
        registry.says["/simple/pkg/"] = down
        assert await versions(client) == ["1"]
        assert cache.cache.counters().stale == 1
        response = await client.get("/pypi/simple/other/")
        assert response.status_code == 404
        registry.says["/simple/more/"] = down
        response = await client.get("/pypi/simple/more/")
        assert (response.status_code, "the service's log has the reason" in response.text) == (502, True)
        assert registry.origin not in response.text
    assert "is served as it was" in caplog.text


async def test_stored_page_survives_a_restart_and_belongs_to_its_index(tmp_path: Path, registry: Upstream) -> None:
    registry.says["/simple/pkg/"] = page(1)
    for _ in range(2):
        async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
            assert await versions(client) == ["1"]
    assert len(registry.asked) == 1
    async with served(tmp_path / "p", sources_of("http://127.0.0.1:9"), ttl_s=0.0) as cache, cache.client() as client:
        assert (await client.get(PAGE)).status_code == 502, "another index's word is not this one's"


async def test_missing_page_is_requested_again_soon(client: httpx.AsyncClient, registry: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_page_cache, "MISSING_S", 0.2)
    for _ in range(3):
        assert (await client.get(PAGE)).status_code == 404
    assert len(registry.asked) == 1
    registry.says["/simple/pkg/"] = page(1)

    async def there() -> bool:
        return (await client.get(PAGE)).status_code == 200

    await until(there)


async def test_concurrent_clients_share_one_refresh(client: httpx.AsyncClient, registry: Upstream) -> None:
    held = page(1)
    held.hold_at = 5
    registry.says["/simple/pkg/"] = held
    asked = [asyncio.create_task(versions(client)) for _ in range(20)]
    await until(lambda: bool(registry.asked))
    asked.pop().cancel()
    await asyncio.sleep(0.05)
    held.held.set()
    assert await asyncio.gather(*asked) == [["1"]] * 19
    assert len(registry.asked) == 1


async def test_too_large_page_is_refused_and_others_are_served(
    client: httpx.AsyncClient, registry: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_page_inputs, "MAX_BYTES", 10_000)
    monkeypatch.setattr(index_page_inputs, "SMALL_BYTES", 1_000)
    registry.says["/simple/huge/"] = page(*range(1000))
    bomb = gzip.compress(page(*range(1000)).body)
    registry.says["/simple/bomb/"] = Said(bomb, headers={"Content-Type": JSON, "Content-Encoding": "gzip"})
    registry.says["/simple/pkg/"] = page(*range(20))
    for name in ("huge", "bomb"):
        response = await client.get(f"/pypi/simple/{name}/")
        assert (response.status_code, "larger than" in response.text) == (502, True)
    assert len(await versions(client)) == 20


async def test_only_one_large_page_is_built_at_a_time(tmp_path: Path, registry: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_page_inputs, "SMALL_BYTES", 1_000)
    making, most = 0, 0

    async def seen(build: BuildPage, inputs: Sequence[FetchedInput]) -> Mapping[str, bytes]:
        nonlocal making, most
        making += 1
        most = max(most, making)
        try:
            return await build_in_process(build, inputs)
        finally:
            making -= 1

    monkeypatch.setattr(index_page_cache, "build_in_process", seen)
    links = b"".join(b'<a href="pkg%d-1.tar.gz"></a>' % number for number in range(100))
    registry.says["/links.html"] = Said(links, headers={"Content-Type": "text/html"})
    registry.says["/more.html"] = Said(links, headers={"Content-Type": "text/html"})
    for number in range(3):
        for index in ("a", "b"):
            registry.says[f"/{index}/pkg{number}/"] = page(*range(100))
    sources = PackageSources(
        pypi=PypiSources(
            indexes=(f"{registry.origin}/a/", f"{registry.origin}/b/"), links=(f"{registry.origin}/links.html", f"{registry.origin}/more.html")
        )
    )
    async with served(tmp_path / "p", lambda: sources) as cache, cache.client() as client:
        answers = await asyncio.gather(*(client.get(f"/pypi/simple/pkg{number}/") for number in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert most == 1


async def test_page_is_not_built_if_one_of_its_indexes_fails(tmp_path: Path, registry: Upstream) -> None:
    registry.says["/a/pkg/"] = page(1)
    registry.says["/b/pkg/"] = Said(status=500)
    sources = PackageSources(pypi=PypiSources(indexes=(f"{registry.origin}/a/", f"{registry.origin}/b/", f"{registry.origin}/c/")))
    async with served(tmp_path / "p", lambda: sources, ttl_s=0.0) as cache, cache.client() as client:
        assert (await client.get(PAGE)).status_code == 502
        registry.says["/b/pkg/"] = page(2)
        assert await versions(client) == ["1", "2"]
        registry.says["/c/pkg/"] = page(3)
        assert await versions(client) == ["1", "2", "3"]


async def test_page_is_built_from_all_indexes_if_one_has_changed(tmp_path: Path, registry: Upstream) -> None:
    def tagged(*numbers: int) -> object:
        tag = f'"{numbers}"'
        return lambda asked: Said(status=304) if asked.headers.get("if-none-match") == tag else page(*numbers, ETag=tag)

    registry.says |= {"/a/pkg/": tagged(1), "/b/pkg/": tagged(2)}  # type: ignore[dict-item]
    sources = PackageSources(pypi=PypiSources(indexes=(f"{registry.origin}/a/", f"{registry.origin}/b/")))
    async with served(tmp_path / "p", lambda: sources, ttl_s=0.0) as cache, cache.client() as client:
        assert await versions(client) == ["1", "2"]
        assert await versions(client) == ["1", "2"]
        assert len(registry.asked) == 4
        registry.says["/b/pkg/"] = tagged(2, 3)  # type: ignore[assignment]
        assert await versions(client) == ["1", "2", "3"]


async def test_damaged_records_and_pages_are_fetched_again(tmp_path: Path, registry: Upstream) -> None:
    registry.says["/simple/pkg/"] = page(1)
    for damage in (b"", b"{}", b"[]", b"\xff", b'{"format": 2, "key": "pypi/pkg", "checked_s": "x", "inputs": 3, "variants": {}}', None):
        async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
            assert await versions(client) == ["1"]
        for path in [*(tmp_path / "p/records").rglob("*"), *(tmp_path / "p/pages").rglob("*")]:
            if path.is_file():
                path.write_bytes(damage) if damage is not None and "records" in path.parts else os.truncate(path, 3)
    async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
        assert await versions(client) == ["1"]
    assert len(registry.asked) == 7


async def test_page_of_zeros_is_fetched_again_by_the_next_service(tmp_path: Path, registry: Upstream) -> None:
    registry.says["/simple/pkg/"] = page(1, ETag='"one"')
    for _ in range(2):
        async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
            assert await versions(client) == ["1"]
        for path in (tmp_path / "p/pages").rglob("*"):
            if path.is_file():
                path.write_bytes(bytes(path.stat().st_size))
    assert [each.headers.get("if-none-match") for each in registry.asked] == [None, None]
