"""One service for all tests of a module, on the in-memory driver with its scripted guest; after each test it is emptied."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from sandlot.model.access import OPERATOR
from tests.unit.compat.shared import SharedBench, shared_bench

LISTS = ("webhooks", "files", "snapshots", "volumes", "pools")
"""Parts of the native API whose entries outlive a test unless they are deleted."""


@pytest.fixture(scope="module")
async def module_bench() -> AsyncIterator[SharedBench]:
    # Not tmp_path, which may be too long for a unix socket (unix(7): 107 bytes).
    folder = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    async with shared_bench(folder) as made:
        yield made
    shutil.rmtree(folder)


@pytest.fixture
async def at(module_bench: SharedBench) -> AsyncIterator[SharedBench]:
    """The service of the module, without sandboxes, keys and other entries of earlier tests; records of what ended stay."""
    yield module_bench
    for sandbox in module_bench.sandboxes.list(OPERATOR):
        await module_bench.sandboxes.kill(OPERATOR, sandbox.id)
    for key in await module_bench.service.api_keys.list():
        if key.revoked_at is None:
            await module_bench.service.api_keys.revoke(key.id)
    for name in LISTS:
        for entry in (await module_bench.http.get(f"/v1/{name}")).json()[name]:
            (await module_bench.http.delete(f"/v1/{name}/{entry['id']}")).raise_for_status()


@pytest.fixture
def http(at: SharedBench) -> httpx.AsyncClient:
    """A client of the service, with all rights."""
    return at.http


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a service of the test's own."""
    made = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield made
    shutil.rmtree(made)
