"""Pages that another process builds: equal results, errors, and no process left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from sandlot.egress.packages.index_page import BuildPage, FetchedInput
from sandlot.egress.packages.index_page_worker import MEMORY_BYTES, build_in_process
from sandlot.egress.packages.registries import npm_metadata, pypi_pages
from tests.support.until import until


async def running(code: str) -> object:
    """Have the process run some code: the test's own functions are none that it could import."""
    return await build_in_process(cast("BuildPage", partial(exec, code)), cast("Sequence[FetchedInput]", {}))


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def packument(versions: int) -> FetchedInput:
    words = {
        "name": "pkg",
        "versions": {f"{each}.0.0": {"dist": {"tarball": f"http://127.0.0.1:9/pkg-{each}.tgz", "shasum": "0" * 40}} for each in range(versions)},
    }
    return FetchedInput("http://127.0.0.1:9/pkg", "application/json", json.dumps(words).encode())


def project(files: int) -> FetchedInput:
    words = {
        "files": [{"filename": f"pkg-{each}.tar.gz", "url": f"http://127.0.0.1:9/{each}", "hashes": {"sha256": "0" * 64}} for each in range(files)]
    }
    return FetchedInput("http://127.0.0.1:9/simple/pkg/", "application/json", json.dumps(words).encode())


async def test_process_builds_the_same_page() -> None:
    for make, got in (
        (partial(npm_metadata.build_metadata, name="pkg", origin="http://127.0.0.1:4479", short=True), packument(500)),
        (partial(npm_metadata.build_metadata, name="pkg", origin="http://127.0.0.1:4479", short=False), packument(3)),
        (partial(pypi_pages.build_pages, project="pkg"), project(500)),
    ):
        assert await build_in_process(make, [got]) == make([got])


@pytest.mark.parametrize("body", [b"{", b"[1]", b'{"versions": 3}', b"[" * 100_000, b"\xff"])
async def test_malformed_input_is_an_error(body: bytes) -> None:
    with pytest.raises(ValueError, match="Error"):
        await build_in_process(partial(npm_metadata.build_metadata, name="pkg", origin="", short=True), [FetchedInput("", "application/json", body)])


async def test_every_end_of_the_process_is_reported() -> None:
    with pytest.raises(ValueError, match="ended with status 3"):
        await running("import os; os._exit(3)")
    with pytest.raises(ValueError, match="ended with status -9"):
        await running("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ValueError, match="MemoryError"):
        await running(f"b'x' * ({MEMORY_BYTES} + 1)")


async def test_process_ends_if_its_caller_is_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    task = asyncio.create_task(running(f"import os, time; open({str(path)!r}, 'w').write(str(os.getpid())); time.sleep(600)"))
    await until(lambda: path.exists() and path.read_text(encoding="ascii") != "")
    pid = int(path.read_text(encoding="ascii"))
    assert is_there(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_there(pid)
