"""Tools in sandboxes of the in-memory service, through the SDK."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.agents import AsyncSandboxTools
from sandlot.sdk import AsyncClient
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.garbage import collected
from tests.support.service import Bench, bench, client


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as here, client(here.service):
        yield here


@pytest.fixture
def driver(at: Bench) -> MemoryDriver:
    found: MemoryDriver = at.driver
    return found


@pytest.fixture
def url(at: Bench) -> str:
    return f"unix://{at.service.settings.socket}"


@pytest.fixture
async def connections(url: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(url) as made:
        yield made


@pytest.fixture
async def tools(connections: AsyncClient) -> AsyncIterator[AsyncSandboxTools]:
    async with AsyncSandboxTools(template="base", client=connections) as made:
        yield made


MakeTools = Callable[..., Any]


@pytest.fixture(autouse=True)
def _streams_are_collected() -> Iterator[None]:
    """Broken streams of the vendors' packages leave their sockets to the garbage collector, which would find them in another test."""
    with collected():
        yield


PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
