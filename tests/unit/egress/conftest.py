"""A cache, an upstream of the test's own, and a client that asks it, as a program in a sandbox does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandlot.egress import upstream as module
from tests.support.packages import Served, served, sources_of
from tests.support.upstream import Upstream, upstream


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_S", 0.001)


@pytest.fixture
async def registry() -> AsyncIterator[Upstream]:
    async with upstream() as found:
        yield found


@pytest.fixture
async def cache(tmp_path: Path, registry: Upstream) -> AsyncIterator[Served]:
    async with served(tmp_path / "packages", sources_of(registry.origin)) as found:
        yield found


@pytest.fixture
async def client(cache: Served) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=cache.origin, trust_env=False) as found:
        yield found
