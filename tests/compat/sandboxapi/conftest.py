"""One service for both ways to SandboxAPI."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.isolations import CONTAINERS_FIRST
from tests.support.tcpservice import TcpService, tcp_service


@pytest.fixture(scope="package", params=CONTAINERS_FIRST)
def service(request: pytest.FixtureRequest) -> Iterator[TcpService]:
    with tcp_service(isolation=request.param) as running:
        yield running
