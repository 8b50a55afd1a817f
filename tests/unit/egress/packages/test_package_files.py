"""Package files: verified during the download, shared by all clients, stored, or passed through."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages import download, package_files, pass_through
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.egress.packages.config.values import PypiSources
from sandlot.egress.packages.store.open_files import DraftFile
from sandlot.egress.packages.store.store import Kind, PackageStore
from sandlot.egress.packages.upstream import UpstreamError
from tests.support.packages import MIB, Served, served, sources_of
from tests.support.until import until
from tests.support.upstream import Asked, Said, Upstream

DATA = os.urandom(3 * MIB)
NAME = "pkg-1.0-py3-none-any.whl"


def page(data: bytes = DATA, *, hashed: bool = True, name: str = NAME) -> Said:
    hashes = {"sha256": hashlib.sha256(data).hexdigest()} if hashed else {}
    words = {"meta": {"api-version": "1.0"}, "name": "pkg", "files": [{"filename": name, "url": f"/f/{name}", "hashes": hashes}]}
    return Said(json.dumps(words).encode(), headers={"Content-Type": "application/vnd.pypi.simple.v1+json"})


@pytest.fixture
def path(registry: Upstream) -> str:
    """A project with one file; the file's path here."""
    registry.says["/simple/pkg/"] = page()
    registry.says[f"/f/{NAME}"] = Said(DATA)
    return f"/pypi/files/pkg/sha256-{hashlib.sha256(DATA).hexdigest()}/unknown/{NAME}"


def drafts(folder: Path) -> list[Path]:
    return list((folder / "packages/tmp").iterdir())


@asynccontextmanager
async def asking(client: httpx.AsyncClient, path: str) -> AsyncIterator[httpx.Response]:
    async with client.stream("GET", path) as response:
        yield response


async def cut(client: httpx.AsyncClient, path: str) -> bytes:
    """Return the bytes of a response that is cut."""
    got = b""
    async with client.stream("GET", path) as response:
        try:
            async for piece in response.aiter_raw():
                got += piece
        except httpx.TransportError:
            return got
    raise AssertionError("it came to its end")


async def test_file_is_downloaded_once(client: httpx.AsyncClient, registry: Upstream, cache: Served, path: str) -> None:
    for _ in range(3):
        response = await client.get(path)
        assert response.content == DATA
        assert response.headers["content-length"] == str(len(DATA))
    assert registry.paths == ["/simple/pkg/", f"/f/{NAME}"]
    counters = cache.cache.counters()
    assert counters.hits + counters.misses == 4  # a request that comes before the file is stored joins the download, which counts as a miss
    assert (counters.upstream_requests, counters.served_bytes) == (2, 3 * len(DATA))


async def test_concurrent_clients_share_one_download(client: httpx.AsyncClient, registry: Upstream, path: str) -> None:
    held = Said(DATA, hold_at=MIB)
    registry.says[f"/f/{NAME}"] = held
    asked = [asyncio.create_task(client.get(path)) for _ in range(20)]
    await until(lambda: f"/f/{NAME}" in registry.paths)
    await asyncio.sleep(0.05)
    held.held.set()
    assert all(response.content == DATA for response in await asyncio.gather(*asked))
    assert registry.paths.count(f"/f/{NAME}") == 1


async def test_client_that_leaves_does_not_disturb_others(client: httpx.AsyncClient, registry: Upstream, path: str, tmp_path: Path) -> None:
    held = Said(DATA, hold_at=MIB)
    registry.says[f"/f/{NAME}"] = held
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(asking(client, path))
        assert first.status_code == 200
        other = asyncio.create_task(client.get(path))
        await asyncio.sleep(0.05)
    held.held.set()
    assert (await other).content == DATA
    assert registry.paths.count(f"/f/{NAME}") == 1
    await until(lambda: drafts(tmp_path) == [])


async def test_download_without_clients_ends(
    client: httpx.AsyncClient, registry: Upstream, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "LINGER_S", 0.05)
    registry.says[f"/f/{NAME}"] = Said(DATA, hold_at=MIB)
    async with client.stream("GET", path) as response:
        assert response.status_code == 200
    await until(lambda: drafts(tmp_path) == [])
    registry.says[f"/f/{NAME}"] = Said(DATA)
    assert (await client.get(path)).content == DATA


async def test_wrong_file_is_cut_before_its_end_and_not_stored(client: httpx.AsyncClient, registry: Upstream, cache: Served, path: str) -> None:
    wrong = bytearray(DATA)
    wrong[7] ^= 1
    registry.says[f"/f/{NAME}"] = Said(bytes(wrong))
    for _ in range(2):
        assert len(await cut(client, path)) <= len(DATA) - download.WITHHELD_BYTES
    assert cache.cache.counters().mismatches == 2
    assert len(cache.cut) == 2
    registry.says[f"/f/{NAME}"] = Said(DATA)
    assert (await client.get(path)).content == DATA


async def test_no_byte_of_a_small_wrong_file_is_sent(client: httpx.AsyncClient, registry: Upstream, path: str) -> None:
    registry.says[f"/f/{NAME}"] = Said(b"x" * 1000)
    assert await cut(client, path) == b""


@pytest.mark.parametrize("range_", ["bytes=0-99", "bytes=1000000-1999999", "bytes=-500", f"bytes={len(DATA) - 1}-"])
async def test_range_is_served_from_the_verified_file(client: httpx.AsyncClient, registry: Upstream, path: str, range_: str) -> None:
    response = await client.get(path, headers={"Range": range_})
    start, _, last = response.headers["content-range"].removeprefix("bytes ").partition("/")[0].partition("-")
    assert response.status_code == 206
    assert response.content == DATA[int(start) : int(last) + 1]
    assert (await client.get(path, headers={"Range": range_})).content == response.content
    assert registry.paths.count(f"/f/{NAME}") == 1


async def test_range_of_a_wrong_file_is_502(client: httpx.AsyncClient, registry: Upstream, path: str) -> None:
    registry.says[f"/f/{NAME}"] = Said(b"x" * len(DATA))
    response = await client.get(path, headers={"Range": "bytes=0-99"})
    assert response.status_code == 502
    assert b"x" * 10 not in response.content


@pytest.mark.parametrize("hashed", [False, True])
async def test_head_request_evicts_no_file(tmp_path: Path, registry: Upstream, *, hashed: bool) -> None:
    large = bytes(700_000)
    digest = f"sha256-{hashlib.sha256(large).hexdigest()}" if hashed else "unknown"
    registry.says["/simple/other/"] = page(large, hashed=hashed, name="other-1.0.tar.gz")
    registry.says["/f/other-1.0.tar.gz"] = Said(large, hold_at=600_000)
    registry.says["/simple/pkg/"] = page(DATA[:600_000])
    registry.says[f"/f/{NAME}"] = Said(DATA[:600_000])
    kept = f"/pypi/files/pkg/sha256-{hashlib.sha256(DATA[:600_000]).hexdigest()}/unknown/{NAME}"
    async with served(tmp_path / "p", sources_of(registry.origin), max_bytes=MIB) as cache, cache.client() as client:
        assert (await client.get(kept)).status_code == 200
        other = f"/pypi/files/other/{digest}/unknown/other-1.0.tar.gz"
        assert (await client.head(other)).headers["content-length"] == str(len(large))
        if not hashed:
            async with client.stream("GET", other) as response:
                assert response.headers["content-length"] == str(len(large))
        assert cache.cache.counters().evictions == 0
        assert (await client.get(kept)).content == DATA[:600_000]
    assert registry.paths.count(f"/f/{NAME}") == 1


async def test_complete_download_is_stored_although_the_service_stops(
    tmp_path: Path, registry: Upstream, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, slow = PackageStore.publish, threading.Event()

    def keep_slowly(store: PackageStore, draft: DraftFile, kind: Kind, name: str, *, durable: bool = True) -> None:
        slow.wait(0.5)
        keep(store, draft, kind, name, durable=durable)

    monkeypatch.setattr(PackageStore, "publish", keep_slowly)
    async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
        assert (await client.get(path)).content == DATA
    async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
        assert (await client.get(path)).content == DATA
    assert registry.paths.count(f"/f/{NAME}") == 1


async def test_broken_download_is_resumed(client: httpx.AsyncClient, registry: Upstream, path: str) -> None:
    def answer(asked: Asked) -> Said:
        if "range" not in asked.headers:
            return Said(DATA, cut_at=2 * MIB)
        start = int(asked.headers["range"].removeprefix("bytes=").rstrip("-"))
        return Said(DATA[start:], 206, {"Content-Range": f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"})

    registry.says[f"/f/{NAME}"] = answer
    assert (await client.get(path)).content == DATA
    assert registry.paths.count(f"/f/{NAME}") == 2


async def test_download_that_breaks_after_its_last_byte_is_complete(client: httpx.AsyncClient, registry: Upstream, path: str) -> None:
    def answer(asked: Asked) -> Said:
        if "range" in asked.headers:
            return Said(status=416, headers={"Content-Range": f"bytes */{len(DATA)}"})
        return Said(DATA, cut_at=len(DATA), chunked=True)

    registry.says[f"/f/{NAME}"] = answer
    for _ in range(2):
        assert (await client.get(path)).content == DATA
    assert registry.paths.count(f"/f/{NAME}") == 2


async def test_changed_file_is_detected_when_a_download_is_resumed(client: httpx.AsyncClient, registry: Upstream, path: str, cache: Served) -> None:
    def answer(asked: Asked) -> Said:
        if "range" not in asked.headers:
            return Said(DATA, cut_at=2 * MIB, headers={"ETag": '"one"'})
        return Said(bytes(64 * MIB), headers={"ETag": '"two"'}, hold_at=MIB)  # would never end

    registry.says[f"/f/{NAME}"] = answer
    await cut(client, path)
    assert [each.headers.get("if-range") for each in registry.asked if each.path == f"/f/{NAME}"] == [None, '"one"']
    assert cache.cache.counters().mismatches == 1


@pytest.mark.parametrize("size", [1000, len(DATA)])
async def test_url_of_a_wrong_file_is_tried_last_afterwards(tmp_path: Path, registry: Upstream, size: int) -> None:
    data = DATA[:size]
    for index in ("a", "b"):
        said = page(data)
        said.body = said.body.replace(b'"/f/', f'"/{index}/f/'.encode())
        registry.says[f"/{index}/pkg/"] = said
    registry.says |= {f"/a/f/{NAME}": Said(b"x" * size), f"/b/f/{NAME}": Said(data)}
    path = f"/pypi/files/pkg/sha256-{hashlib.sha256(data).hexdigest()}/unknown/{NAME}"
    sources = PackageSources(pypi=PypiSources(indexes=(f"{registry.origin}/a/", f"{registry.origin}/b/")))
    async with served(tmp_path / "p", lambda: sources) as cache, cache.client() as client:
        if size > download.WITHHELD_BYTES:
            await cut(client, path)  # its beginning was given already
        assert (await client.get(path)).content == data
        assert cache.cache.counters().mismatches == 1
    assert registry.paths.count(f"/a/f/{NAME}") == 1


async def test_download_restarts_if_upstream_has_no_ranges(client: httpx.AsyncClient, registry: Upstream, path: str) -> None:
    answers = iter([Said(DATA, cut_at=2 * MIB), Said(DATA)])
    registry.says[f"/f/{NAME}"] = lambda _: next(answers)
    assert (await client.get(path)).content == DATA


async def test_download_that_breaks_repeatedly_is_cut(client: httpx.AsyncClient, registry: Upstream, path: str, tmp_path: Path) -> None:
    registry.says[f"/f/{NAME}"] = Said(DATA, cut_at=MIB)
    with pytest.raises(httpx.TransportError):
        await client.get(path)
    await until(lambda: drafts(tmp_path) == [])


@pytest.mark.parametrize("status, expected", [(404, 404), (410, 404), (403, 404), (500, 502), (418, 502)])
async def test_error_of_upstream_is_reported_without_its_text(
    client: httpx.AsyncClient, registry: Upstream, path: str, status: int, expected: int
) -> None:
    registry.says[f"/f/{NAME}"] = Said(b"secret words", status)
    response = await client.get(path)
    assert response.status_code == expected
    assert b"secret" not in response.content
    assert registry.origin.encode() not in response.content


async def test_file_without_a_digest_is_passed_through_and_not_stored(client: httpx.AsyncClient, registry: Upstream) -> None:
    registry.says["/simple/pkg/"] = page(hashed=False)
    registry.says[f"/f/{NAME}"] = Said(DATA)
    path = f"/pypi/files/pkg/unknown/unknown/{NAME}"
    for number in (1, 2):
        assert (await client.get(path)).content == DATA
        assert registry.paths.count(f"/f/{NAME}") == number
    registry.says[f"/f/{NAME}"] = Said(DATA, cut_at=MIB, chunked=True)
    with pytest.raises(httpx.TransportError):
        await client.get(path)


async def test_file_larger_than_the_store_is_verified_and_passed_through(tmp_path: Path, registry: Upstream, path: str) -> None:
    async with served(tmp_path / "small", sources_of(registry.origin), max_bytes=MIB) as cache, cache.client() as client:
        assert (await client.get(path)).content == DATA
        registry.says[f"/f/{NAME}"] = Said(b"x" * len(DATA))
        with pytest.raises(httpx.TransportError):
            await client.get(path)
        assert cache.cache.counters().mismatches == 1
    assert list((tmp_path / "small/files").iterdir()) == []


async def test_slow_readers_of_passed_through_files_do_not_block_others(tmp_path: Path, registry: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_through, "MAX_FILES", 3)
    large, name = bytes(32 * MIB), "large-1.0.tar.gz"
    registry.says["/simple/large/"] = page(large, hashed=False, name=name)
    registry.says[f"/f/{name}"] = Said(large)
    path = f"/pypi/files/large/unknown/unknown/{name}"
    async with AsyncExitStack() as stack:
        cache = await stack.enter_async_context(served(tmp_path / "p", sources_of(registry.origin)))
        client = await stack.enter_async_context(cache.client())
        assert (await client.get("/pypi/simple/large/")).status_code == 200
        slow = [asyncio.create_task(stack.enter_async_context(asking(client, path))) for _ in range(6)]
        await until(lambda: registry.paths.count(f"/f/{name}") == pass_through.MAX_FILES_PER_SANDBOX and cache.cache.counters().misses == 1 + 6)
        cache.sandbox = "two"
        async with cache.client() as other:
            assert (await other.get(path)).content == large
            assert registry.paths.count(f"/f/{name}") == pass_through.MAX_FILES_PER_SANDBOX + 1, "one sandbox has no more turns"
            for number, sandbox in enumerate(("three", "four"), 1):
                cache.sandbox = sandbox
                greedy = await stack.enter_async_context(cache.client())
                slow.append(asyncio.create_task(stack.enter_async_context(asking(greedy, path))))
                await until(lambda asked=8 + number: cache.cache.counters().misses == asked)  # type: ignore[misc]
            await until(lambda: registry.paths.count(f"/f/{name}") == pass_through.MAX_FILES_PER_SANDBOX + 2)
            monkeypatch.setattr(pass_through, "WAIT_S", 0.05)
            response = await other.get(path)
            assert (response.status_code, response.headers["retry-after"], response.text.strip()) == (503, "10", package_files.BUSY)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_pace_counts_only_time_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_through, "PACE_WINDOW_S", 0.05)

    async def slowly() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            await asyncio.sleep(0.1)
            yield b"x"

    assert [piece async for piece in pass_through._paced(slowly())] == [b"x"] * 3  # noqa: SLF001 - its time is not the network's here
    pieces = pass_through._paced(slowly())  # noqa: SLF001
    await anext(pieces)
    await asyncio.sleep(0.1)
    with pytest.raises(UpstreamError, match="read 1 bytes"):
        await anext(pieces)


@pytest.mark.parametrize("chunked", [False, True])
async def test_full_disk_still_delivers_packages(small_disk: Path, registry: Upstream, path: str, *, chunked: bool) -> None:
    registry.says[f"/f/{NAME}"] = Said(DATA, chunked=chunked)
    async with served(small_disk / "packages", sources_of(registry.origin)) as cache, cache.client() as client:
        for _ in range(2):
            assert (await client.get(path)).content == DATA
        assert cache.cut == []
    assert list((small_disk / "packages/tmp").iterdir()) == []


async def test_files_of_local_folders_need_no_network(tmp_path: Path, registry: Upstream) -> None:
    wheels, simple = tmp_path / "my wheels", tmp_path / "simple/pkg"
    for folder in (wheels, simple):
        folder.mkdir(parents=True)
    (wheels / NAME).write_bytes(DATA)
    other = "pkg-2.0-py3-none-any.whl"
    (simple / other).write_bytes(b"other")
    (simple / "index.html").write_text(f'<a href="{other}#sha256={hashlib.sha256(b"other").hexdigest()}">x</a>', encoding="utf-8")
    sources = PackageSources(pypi=PypiSources(indexes=((tmp_path / "simple").as_uri() + "/",), links=(wheels.as_uri() + "/",)))
    async with served(tmp_path / "packages", lambda: sources) as cache, cache.client() as client:
        links = (await client.get("/pypi/simple/pkg/")).text
        assert links.count("<a ") == 2
        assert str(tmp_path) not in links
        assert (await client.get(f"/pypi/files/pkg/unknown/unknown/{NAME}", headers={"Range": "bytes=5-9"})).content == DATA[5:10]
        assert (await client.get(f"/pypi/files/pkg/sha256-{hashlib.sha256(b'other').hexdigest()}/unknown/{other}")).content == b"other"
        (wheels / NAME).unlink()
        assert (await client.get(f"/pypi/files/pkg/unknown/unknown/{NAME}")).status_code == 404
        assert cache.cache.counters().upstream_requests == 0
    assert registry.asked == []
