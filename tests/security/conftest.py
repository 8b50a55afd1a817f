"""Sandboxes of each isolation type to attack from, on one service per test process.

A test that harms its sandbox makes its own: ``service.create()`` makes a sandbox of the isolation type that the test runs for. Where a
promise differs between the two types, the test asks ``isolation``, and its docstring says what holds for which type, and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from tests.support.hoststate import changes, host_state
from tests.support.localservice import ISOLATIONS, LocalService, local_service
from tests.support.planted import Planted, plant
from tests.support.tenants import Two, memory_tenants
from tests.support.traces import NOTHING, settle


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """Isolation type of the sandboxes of this test."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def shared_service() -> Iterator[LocalService]:
    """The service of all modules that need no settings or templates of their own. It outlives the tests of other folders, in which it is idle."""
    with local_service({"SANDLOT_IDLE_EXIT_S": "86400"}, isolation=ISOLATIONS[0]) as running:
        yield running


@pytest.fixture(scope="module")
def service(shared_service: LocalService, isolation: str) -> Iterator[LocalService]:
    """The shared service, without sandboxes of other modules; each module has to leave it alive and the host clean."""
    if not shared_service.is_alive():
        shared_service.start()
    shared_service.isolation = isolation
    opened = shared_service.descriptors()
    yield shared_service
    assert shared_service.is_alive(), shared_service.log()
    for left in shared_service.client.sandboxes():
        shared_service.client.kill(left.id)
    settle(shared_service.traces, NOTHING)
    settle(lambda: shared_service.descriptors() - opened, Counter[str]())


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create() as made:
        yield made


@pytest.fixture(scope="module")
def planted(service: LocalService, sandbox: Sandbox) -> Iterator[Planted]:
    """Files of the host for the sandbox to look for, also in the sandbox's own folder on the host."""
    assert sandbox.is_running()
    with plant(service.data_dir, *(service.data_dir / "sandboxes").iterdir()) as files:
        yield files


@pytest.fixture(scope="module")
def host_unchanged(isolation: str) -> Iterator[None]:
    """Settings, modules, names and interfaces of the host, compared after all tests of the module."""
    before = host_state()
    yield
    assert changes(before, host_state()) == {}, f"changed from inside of {isolation}"


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    """Two tenants of one service."""
    async with memory_tenants(tmp_path) as clients:
        yield clients
