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
from tests.support.bombs import Targets
from tests.support.hoststate import changes, host_state
from tests.support.localservice import ISOLATIONS, TEMPLATE, LocalService, local_service
from tests.support.planted import Planted, plant
from tests.support.roots import Roots, own_roots
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
    # The tests compare what sandboxes see with the environment and the command line that /proc shows of the service.
    with local_service({"SANDLOT_IDLE_EXIT_S": "86400"}, isolation=ISOLATIONS[0], preloaded=False) as running:
        yield running


@pytest.fixture(scope="session")
def roots() -> Iterator[Roots]:
    """Templates of ``shared_service_with_roots``: the usual one, one with a hostile guest, and what a module adds."""
    with own_roots() as made:
        made.add_image(TEMPLATE)
        made.add_impostor("impostor")
        yield made


@pytest.fixture(scope="session")
def shared_service_with_roots(roots: Roots) -> Iterator[LocalService]:
    """The service of all modules that need templates of their own."""
    env = {"SANDLOT_IDLE_EXIT_S": "86400", "SANDLOT_MAX_CREATES": "16"}
    with local_service(env, isolation=ISOLATIONS[0], roots=roots.folder) as running:
        yield running


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, isolation: str) -> Iterator[LocalService]:
    """A shared service without sandboxes of other modules: the one with roots for modules with ``USES_ROOTS``.

    Each module has to leave it alive and the host clean.
    """
    shared: LocalService = request.getfixturevalue("shared_service_with_roots" if hasattr(request.module, "USES_ROOTS") else "shared_service")
    if not shared.is_alive():
        shared.start()
    shared.isolation = isolation
    opened = shared.descriptors()
    yield shared
    assert shared.is_alive(), shared.log()
    for left in shared.client.sandboxes.list():
        shared.client.sandboxes.kill(left.id)
    settle(shared.traces, NOTHING)
    settle(lambda: shared.descriptors() - opened - shared.preview_listener(), Counter[str]())


@pytest.fixture(scope="module")
def other(service: LocalService) -> Iterator[Sandbox]:
    """Somebody else's sandbox, which must notice nothing; its kernel knows ``mine`` as 42."""
    with service.create() as made:
        assert made.run_code("mine = 42").ok
        yield made


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create() as made:
        yield made


@pytest.fixture(scope="module")
def targets(service: LocalService, request: pytest.FixtureRequest) -> Iterator[Targets]:
    """Sandboxes to be bombed, with the limits that the module has as ``LIMITS``."""
    made = Targets(service, **request.module.LIMITS)
    yield made
    made.close()


@pytest.fixture
def bombed(targets: Targets) -> Sandbox:
    """A sandbox that other tests of the module may have bombed; a live one."""
    return targets.get()


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
