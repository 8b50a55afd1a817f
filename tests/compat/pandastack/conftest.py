"""The services that PandaStack's client is used with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pandastack import Client

from tests.support.builds import Rig
from tests.support.isolations import CONTAINERS_FIRST
from tests.support.tcpservice import TcpService, tcp_service


@pytest.fixture(scope="package", params=CONTAINERS_FIRST)
def service(request: pytest.FixtureRequest) -> Iterator[TcpService]:
    with tcp_service(isolation=request.param) as running:
        yield running


@pytest.fixture(scope="package")
def gvisor_service() -> Iterator[TcpService]:
    """The same on gVisor, for sandboxes that are hibernated, forked or snapshotted."""
    with tcp_service() as running:
        yield running


@pytest.fixture
def client(rig: Rig) -> Client:
    """A client of the service whose builds are recorded."""
    return Client(api_url=f"{rig.url}/pandastack", api_key=rig.key)


def client_of(service: TcpService, name: str) -> Client:
    """A client with a key of its own."""
    return Client(api_url=f"{service.url}/pandastack", api_key=service.key(name), max_create_retry_seconds=0)
