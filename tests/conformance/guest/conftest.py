"""A real sandbox with the real guest, spoken to over the link: no service in between."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore
from sandlot.link.client import Link
from sandlot.link.services import GuestService
from sandlot.model.access import LOCAL
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.ports import Instance, PreparedSandbox
from sandlot.model.specs import Limits, SandboxSpec, Shape, TemplateRef, User
from tests.support.cache import CACHE_DIR
from tests.support.driver_sandboxes import PIDS, GuestSession
from tests.support.localservice import EVERY_DAY

SMALL = Limits(memory_bytes=512 << 20, disk_bytes=64 << 20, pids=PIDS)


@asynccontextmanager
async def open_sandbox(
    data_dir: Path,
    *,
    limits: Limits = SMALL,
    services: Mapping[str, GuestService] | None = None,
    template: str = "base",
    isolation: str,
    user: User = User.USER,
) -> AsyncIterator[GuestSession]:
    """A sandbox of its own, awake; gone again in the end, whatever happened. Its root is of the kind that the service uses with the isolation."""
    store = ImageStore(CACHE_DIR)
    node = new_node_id()
    driver = open_driver(isolation, DriverSettings(node=node, data_dir=data_dir))
    spec = SandboxSpec(id=new_sandbox_id(node), template=TemplateRef(LOCAL, template), limits=limits)
    root = store.root_image(template) if isolation == "gvisor" else store.root(template)
    prepared = await driver.prepare(Shape(root=root, limits=limits))
    held: PreparedSandbox | Instance = prepared
    try:
        held = instance = await prepared.boot(spec)
        link = await Link.open(await instance.connect(), services=services)
        try:
            await link.wake(
                identity=spec.id,
                hostname="inside",
                env=dict(store.environment(template)),
                pids=limits.pids,
                deadline_s=600,
                user=user,
                memory_bytes=limits.memory_bytes,
                processors=limits.processors if isolation == "gvisor" else None,
            )
            yield GuestSession(instance, link)
        finally:
            await link.aclose()
    finally:
        await held.destroy()


@pytest.fixture(scope="module", params=EVERY_DAY)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
async def inside(isolation: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[GuestSession]:
    """A sandbox that the tests of a module share."""
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=isolation) as sandbox:
        yield sandbox
