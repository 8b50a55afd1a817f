"""One service for both clients of Sandbase's API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.isolations import CONTAINERS_FIRST
from tests.support.tcpservice import TcpService, tcp_service


@pytest.fixture(scope="package", params=CONTAINERS_FIRST)
def service(request: pytest.FixtureRequest) -> Iterator[TcpService]:
    with tcp_service({"SANDLOT_NETWORK_PRIVATE": "127.0.0.1"}, isolation=request.param) as running:
        yield running
