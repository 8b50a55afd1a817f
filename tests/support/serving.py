"""Fixtures: a service of its own for every test that asks for one, and its HTTP on a unix socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.service import Bench, bench, client


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path, which may be too long for a unix socket (unix(7): 107 bytes).
    made = Path(tempfile.mkdtemp(prefix="sandlot-test-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
async def at(folder: Path) -> AsyncIterator[Bench]:
    async with bench(folder) as here:
        yield here


@pytest.fixture
async def http(at: Bench) -> AsyncIterator[httpx.AsyncClient]:
    async with client(at.service) as made:
        yield made
