"""The cache as a whole: no cost before its use, and nothing left behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages.cache import PackageCache
from sandlot.egress.packages.config.machine import PackageSources
from sandlot.model.errors import HostError
from tests.support.packages import MIB, served, sources_of
from tests.support.traces import descriptors
from tests.support.until import until
from tests.support.upstream import Said, Upstream


def refuse() -> PackageSources:
    raise AssertionError("nobody has asked for anything")


def test_http_libraries_are_imported_at_the_first_use() -> None:
    lazy = {"httpx", "h11", "html.parser", "sandlot.egress.packages.upstream"}
    program = f"import sys, sandlot.egress.packages.cache; print(sorted({lazy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip() == "[]"


async def test_unusable_folder_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = PackageCache(tmp_path / "file/p", refuse, max_bytes=MIB, ttl_s=1.0)
    with pytest.raises(HostError):
        await cache.start()
    await cache.aclose()


async def test_close_during_downloads_leaves_nothing(tmp_path: Path, registry: Upstream) -> None:
    data = os.urandom(2 * MIB)
    digest = hashlib.sha256(data).hexdigest()
    file, page_ = Said(data, hold_at=MIB), Said(b"x" * 100, hold_at=1)
    registry.says["/f"] = file
    page = {"files": [{"filename": "pkg-1.tar.gz", "url": "/f", "hashes": {"sha256": digest}}]}
    registry.says["/simple/pkg/"] = Said(json.dumps(page).encode(), headers={"Content-Type": "application/json"})
    registry.says["/simple/held/"] = page_
    before, tasks = descriptors(os.getpid()), len(asyncio.all_tasks())
    async with served(tmp_path / "p", sources_of(registry.origin)) as cache, cache.client() as client:
        asked = [asyncio.create_task(client.get(path)) for path in (f"/pypi/files/pkg/sha256-{digest}/unknown/pkg-1.tar.gz", "/pypi/simple/held/")]
        await until(lambda: {"/f", "/simple/held/"} <= set(registry.paths))
        await until(lambda: len(list((tmp_path / "p/tmp").iterdir())) == 1)
    assert all(isinstance(each, httpx.HTTPError) for each in await asyncio.gather(*asked, return_exceptions=True))
    assert list((tmp_path / "p/tmp").iterdir()) == []
    for each in (file, page_):
        each.held.set()
    await until(lambda: descriptors(os.getpid()) - before == {} and len(asyncio.all_tasks()) <= tasks + 2)
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("packages")] == []


async def test_clients_that_disconnect_at_any_moment_leave_nothing(tmp_path: Path, registry: Upstream) -> None:
    data = os.urandom(MIB)
    digest = hashlib.sha256(data).hexdigest()
    registry.says["/f"] = Said(data)
    page = {"files": [{"filename": "pkg-1.tar.gz", "url": "/f", "hashes": {"sha256": digest}}]}
    registry.says["/simple/pkg/"] = Said(json.dumps(page).encode(), headers={"Content-Type": "application/json"})
    request = f"GET /pypi/files/pkg/sha256-{digest}/unknown/pkg-1.tar.gz HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    async with served(tmp_path / "p", sources_of(registry.origin)) as cache:
        before = descriptors(os.getpid())
        for number in range(30):
            _, writer = await asyncio.open_connection("127.0.0.1", cache.port)
            writer.write(request[: number * 4] if number % 3 == 0 else request * 3)
            await asyncio.sleep(number * 0.0005)
            writer.transport.abort()
        async with cache.client() as client:
            assert (await client.get(request.split()[1].decode())).content == data
        await until(lambda: list((tmp_path / "p/tmp").iterdir()) == [])
        await until(lambda: all("socket" in name or "pipe" in name for name in descriptors(os.getpid()) - before))
        assert cache.cache.counters().errors == 0


def test_service_killed_during_downloads_leaves_a_usable_store(tmp_path: Path) -> None:
    program = """
import asyncio, hashlib, os, sys
from pathlib import Path
from sandlot.egress.packages.counters import Counters
from sandlot.egress.packages.store.store import Kind, PackageStore
store = PackageStore(Path(sys.argv[1]), 2**24, Counters())
store.prepare()
print("ready", flush=True)
number = 0
while True:
    number += 1
    data = str(number).encode() * 20000
    draft = store.create_draft()
    store.make_room(draft, len(data))
    draft.write(data)
    store.publish(draft, Kind.FILES, f"sha256-{hashlib.sha256(data).hexdigest()}")
    draft.close()
"""
    folder = tmp_path / "p"
    for delay_s in (0.0, 0.05, 0.2):
        process = subprocess.Popen([sys.executable, "-c", program, folder], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        threading.Event().wait(delay_s)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = [path for path in (folder / "files").rglob("*") if path.is_file()]
    assert found
    for path in found:
        assert path.name == f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"
