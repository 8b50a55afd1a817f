"""A real sandbox with the real guest, spoken to over the link: no service in between."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore, cache_from
from sandlot.link.client import Link
from sandlot.link.services import GuestService
from sandlot.model.access import LOCAL
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.ports import Instance, PreparedSandbox
from sandlot.model.specs import Limits, SandboxSpec, Shape, TemplateRef
from tests.support.lives import PIDS, Inside
from tests.support.localservice import EVERY_DAY

SMALL = Limits(memory_bytes=512 << 20, disk_bytes=64 << 20, pids=PIDS)


@asynccontextmanager
async def open_sandbox(
    data_dir: Path, *, limits: Limits = SMALL, services: Mapping[str, GuestService] | None = None, template: str = "base", isolation: str
) -> AsyncIterator[Inside]:
    """A sandbox of its own, awake; gone again in the end, whatever happened."""
    store = ImageStore(cache_from(os.environ))
    node = new_node_id()
    driver = open_driver(isolation, DriverSettings(node=node, data_dir=data_dir))
    spec = SandboxSpec(id=new_sandbox_id(node), template=TemplateRef(LOCAL, template), limits=limits)
    prepared = await driver.prepare(Shape(root=store.root(template), limits=limits))
    held: PreparedSandbox | Instance = prepared
    try:
        held = instance = await prepared.boot(spec)
        link = await Link.open(await instance.connect(), services=services)
        try:
            await link.wake(
                identity=spec.id,
                hostname="inside",
                env=dict(store.ensure(template).env),
                pids=limits.pids,
                deadline_s=600,
                memory_bytes=limits.memory_bytes,
                processors=limits.processors if isolation == "gvisor" else None,
            )
            yield Inside(instance, link)
        finally:
            await link.aclose()
    finally:
        await held.destroy()


@pytest.fixture(scope="module", params=EVERY_DAY)
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
async def inside(isolation: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Inside]:
    """A sandbox that the tests of a module share."""
    async with open_sandbox(tmp_path_factory.mktemp("data"), isolation=isolation) as sandbox:
        yield sandbox
