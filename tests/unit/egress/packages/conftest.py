"""A cache, an upstream of the test's own, and a client that asks it, as a program in a sandbox does."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from functools import cache as cached
from pathlib import Path

import httpx
import pytest

from sandlot.egress.packages import upstream as module
from sandlot.egress.packages.config.values import Access
from sandlot.egress.packages.upstream import tls_context
from tests.support.packages import Served, served, sources_of
from tests.support.upstream import Upstream, upstream


def _tls(access: Access, *, verify: bool) -> ssl.SSLContext:
    """The certificates of the system are read once: it takes 100 ms."""
    return _of_the_system() if verify and access == Access() else tls_context(access, verify=verify)


@cached
def _of_the_system() -> ssl.SSLContext:
    return tls_context(Access(), verify=True)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BACKOFF_S", 0.001)
    monkeypatch.setattr(module, "tls_context", _tls)


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
    async with cache.client() as found:
        yield found
