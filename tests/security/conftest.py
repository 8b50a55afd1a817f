"""For each file of promises and each kind of isolation one service, and one sandbox to try from.

A test that harms its sandbox makes one of its own: ``service.create()`` makes it of the isolation whose turn it is. Where a
promise differs between the two, the test asks ``isolation`` and says in its docstring what is true of which, and why.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandlot import Sandbox
from tests.support.localservice import ISOLATIONS, LocalService, local_service
from tests.support.planted import Planted, plant


@pytest.fixture(scope="module", params=ISOLATIONS)
def isolation(request: pytest.FixtureRequest) -> str:
    """What the sandboxes of this test's service are."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def service(isolation: str) -> Iterator[LocalService]:
    with local_service(isolation=isolation) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create() as made:
        yield made


@pytest.fixture(scope="module")
def planted(service: LocalService, sandbox: Sandbox) -> Iterator[Planted]:
    """Files of the host for the sandbox to look for, those in its own folder on the host among them."""
    assert sandbox.is_running()
    with plant(service.data_dir, *(service.data_dir / "sandboxes").iterdir()) as files:
        yield files
