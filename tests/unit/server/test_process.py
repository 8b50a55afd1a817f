"""How many clients a service takes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sandlot.server.process import Server, allowed_connections
from sandlot.server.settings import MAX_CONNECTIONS, Settings
from tests.support.service import Bench

DESCRIPTORS = 1024


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize("asked,given", [(8, 8), (256, 256), (257, 256), (MAX_CONNECTIONS, 256)])
def test_half_of_the_descriptors_are_kept_for_sandboxes(asked: int, given: int) -> None:
    assert allowed_connections(Settings(max_connections=asked)) == given


@pytest.mark.usefixtures("few_descriptors")
async def test_an_operator_who_gets_fewer_connections_than_asked_for_is_told(at: Bench) -> None:
    with capture_logs() as told:
        Server(replace(at.service, settings=replace(at.service.settings, max_connections=256)))
    assert told == []
    with capture_logs() as told:
        Server(replace(at.service, settings=replace(at.service.settings, max_connections=1000)))
    assert [(each["event"], each["configured"], each["allowed"]) for each in told] == [("connections_limited", 1000, 256)]
