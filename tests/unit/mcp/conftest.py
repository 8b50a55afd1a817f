"""The MCP endpoint of a service in memory, on TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.server.process import serve_in_background
from sandlot.server.settings import Settings
from sandlot.web import listener
from tests.support.service import Bench, bench


@dataclass(frozen=True)
class Endpoint:
    """The endpoint of a service.

    Args:
        base: URL of the service.
        key: API key.
    """

    at: Bench
    base: str
    key: str

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    async def new_key(self) -> str:
        return (await self.at.service.api_keys.create("another"))[1]


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[Endpoint]:
    async with bench(tmp_path, Settings(mcp_allowed_hosts=("sandbox.test",))) as at:
        _, key = await at.service.api_keys.create("model")
        tcp = listener.tcp_socket("127.0.0.1", 0)
        async with serve_in_background(at.service, [tcp]):
            yield Endpoint(at, f"http://127.0.0.1:{tcp.getsockname()[1]}", key)
