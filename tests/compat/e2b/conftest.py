"""One service for all that E2B's own client is asked to do, and a sandbox of each module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import pytest
from e2b import Sandbox

from tests.support.isolations import CONTAINERS_FIRST
from tests.support.tcpservice import TcpService, tcp_service


class Options(TypedDict):
    """Where the client finds the service: all that a program has to change."""

    api_key: str
    api_url: str
    sandbox_url: str


@pytest.fixture(scope="package", params=CONTAINERS_FIRST)
def service(request: pytest.FixtureRequest) -> Iterator[TcpService]:
    with tcp_service(isolation=request.param) as running:
        yield running


@pytest.fixture(scope="package")
def gvisor_service() -> Iterator[TcpService]:
    """The same on gVisor, for sandboxes that are paused, forked or snapshotted."""
    with tcp_service() as running:
        yield running


@pytest.fixture(scope="package")
def url(service: TcpService) -> str:
    return f"{service.url}/e2b"


@pytest.fixture(scope="package")
def options(service: TcpService, url: str) -> Options:
    return {"api_key": service.key("compat"), "api_url": url, "sandbox_url": url}


@pytest.fixture(scope="package")
def others(service: TcpService, url: str) -> Options:
    """The same for another tenant."""
    return {"api_key": service.key("others"), "api_url": url, "sandbox_url": url}


@pytest.fixture(scope="module")
def sandbox(options: Options) -> Iterator[Sandbox]:
    """One that a module's tests share."""
    made = Sandbox.create(template="base", timeout=7200, **options)
    yield made
    made.kill()
