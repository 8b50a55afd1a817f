"""A sandbox of the in-memory service behind both backends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from sandlot.model.access import OPERATOR
from sandlot.sdk import AsyncClient, AsyncSandbox
from sandlot.testing.memory.guest import MemoryGuest
from sandlot.toolset.backend import ToolBackend
from sandlot.toolset.backends.node import NodeBackend
from sandlot.toolset.backends.sdk import SdkBackend
from sandlot.web.preview_urls import PreviewAddress
from tests.support.service import Bench, bench, client


class Previews:
    """Previews of a local service."""

    is_enabled = True

    async def require_address(self) -> PreviewAddress:
        return PreviewAddress("http", "localhost", 1234)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path) as here:
        yield here


@pytest.fixture(params=["node", "sdk"])
async def sandbox(at: Bench, request: pytest.FixtureRequest) -> AsyncIterator[ToolBackend]:
    live = await at.sandbox()
    if request.param == "node":
        yield NodeBackend(at.node, OPERATOR, live.id, previews=Previews())
        return
    async with client(at.service), AsyncClient(url=f"unix://{at.service.settings.socket}") as connections:
        yield SdkBackend(await AsyncSandbox.connect(live.id, client=connections))


@pytest.fixture
def guest(at: Bench) -> Callable[[], MemoryGuest]:
    """Function that returns the guest of the sandbox."""

    def found() -> MemoryGuest:
        guest: MemoryGuest = next(iter(at.driver.booted)).guest
        return guest

    return found
