"""One service, its keys, and one sandbox that tests share, for Tensorlake's own client."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
from tensorlake.sandbox import Sandbox, SandboxClient

from tests.support.garbage import collected
from tests.support.tcpservice import TcpService, tcp_service


@pytest.fixture(scope="session")
def service() -> Iterator[TcpService]:
    with tcp_service() as running:
        yield running


@pytest.fixture(scope="session")
def key(service: TcpService) -> str:
    return service.key("compat")


@pytest.fixture(autouse=True)
def sockets_are_collected() -> Iterator[None]:
    """The client leaves the sockets of terminals that ended, or were refused, to the garbage collector, which may find them in any later test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        with collected():
            yield


@pytest.fixture(scope="session")
def url(service: TcpService) -> str:
    return f"{service.url}/tensorlake"


@pytest.fixture(scope="session")
def client(key: str, url: str) -> Iterator[SandboxClient]:
    with pytest.deprecated_call(), SandboxClient(api_url=url, api_key=key) as made:
        yield made


@pytest.fixture(scope="session")
def operator(service: TcpService, url: str) -> Iterator[SandboxClient]:
    with pytest.deprecated_call(), SandboxClient(api_url=url, api_key=service.key("operator", "--operator")) as made:
        yield made


@pytest.fixture(scope="session")
def stranger(service: TcpService, url: str) -> Iterator[SandboxClient]:
    with pytest.deprecated_call(), SandboxClient(api_url=url, api_key=service.key("stranger")) as made:
        yield made


@pytest.fixture(scope="session")
def box(client: SandboxClient) -> Iterator[Sandbox]:
    """One sandbox that tests share."""
    with client.create_and_connect(cpus=1.0, memory_mb=512, timeout_secs=7200) as made:
        yield made
