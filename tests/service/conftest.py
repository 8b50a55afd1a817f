"""One real service for each file of tests, and one sandbox of it.

``service`` is a process of its own. ``core_service`` runs in the process of the tests, which call its core directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest

from sandlot import Sandbox
from sandlot.images.store import ImageStore
from sandlot.server.composition import RunningService
from tests.support.cache import CACHE_DIR
from tests.support.localservice import TEMPLATE, LocalService, local_service
from tests.support.saving import place, real_service


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest) -> Iterator[LocalService]:
    """A service; a module that parametrizes ``service`` indirectly chooses the isolation of its sandboxes."""
    with local_service(isolation=getattr(request, "param", None)) as running:
        yield running


@pytest.fixture(scope="module")
def sandbox(service: LocalService) -> Iterator[Sandbox]:
    with service.create() as made:
        yield made


@pytest.fixture(scope="module")
def state_dir() -> Iterator[Path]:
    """The state directory of ``core_service``; in the end nothing of it may be on the host."""
    with place() as folder:
        yield folder


@pytest.fixture(scope="module")
async def core_service(state_dir: Path) -> AsyncGenerator[RunningService]:
    """A service that allows every isolation. It promises more than this machine has, because no test that uses it is about room.

    Its sandboxes of gVisor start from the EROFS image of the template, as those of every service but the first on a machine.
    """
    await asyncio.to_thread(ImageStore(CACHE_DIR).root_image, TEMPLATE)
    async with real_service(state_dir, memory_ratio=100.0, disk_ratio=100.0, pids_ratio=100.0) as running:
        yield running
