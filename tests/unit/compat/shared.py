"""A service that the tests of a module share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from sandlot.server.process import serve_in_background
from sandlot.web import listener
from tests.support.http import unix_client
from tests.support.service import Bench, bench


@dataclass
class SharedBench(Bench):
    """A service that is reachable by HTTP, with all rights on its unix socket and with a key on TCP.

    Attributes:
        port: Its TCP port on 127.0.0.1.
        http: A client of its unix socket.
    """

    port: int
    http: httpx.AsyncClient

    def client(self, key: str | None = None) -> httpx.AsyncClient:
        """Return a client of the TCP port; without a key unless one is given."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60, trust_env=False)


@asynccontextmanager
async def shared_bench(folder: Path) -> AsyncIterator[SharedBench]:
    """Run a service and serve it.

    Args:
        folder: Where its data is.
    """
    tcp = listener.tcp_socket("127.0.0.1", 0)
    async with bench(folder) as made:
        path = made.service.settings.socket
        async with serve_in_background(made.service, [listener.unix_socket(path), tcp]), unix_client(path) as http:
            yield SharedBench(made.service, made.driver, int(tcp.getsockname()[1]), http)


def ok(response: httpx.Response, status: int = 200) -> Any:  # noqa: ANN401 - JSON
    """Return the body of a response, whose status must be the given one."""
    assert response.status_code == status, response.text
    return response.json() if response.content else None
