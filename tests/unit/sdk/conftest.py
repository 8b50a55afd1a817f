"""Fixtures of the SDK's unit tests."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.sdk import AsyncClient, AsyncSandbox, Client, Sandbox
from tests.unit.sdk.scripted import SANDBOX, Reply, Script, Server


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Script]:
    """A scripted service on its own unix socket."""
    script = Script(tmp_path / "s.sock")
    with Server(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield script
        server.shutdown()
        thread.join()


@pytest.fixture
def client(service: Script) -> Iterator[Client]:
    with Client(url=service.url) as client:
        yield client


@pytest.fixture
def sandbox(service: Script, client: Client) -> Sandbox:
    service.say(Reply(201, SANDBOX))
    sandbox = Sandbox.create(client=client)
    service.seen.clear()
    return sandbox


@pytest.fixture
async def async_sandbox(service: Script) -> AsyncIterator[AsyncSandbox]:
    service.say(Reply(201, SANDBOX))
    async with AsyncClient(url=service.url) as client:
        sandbox = await AsyncSandbox.create(client=client)
        service.seen.clear()
        yield sandbox
