"""A real sandbox on gVisor with the real guest, spoken to over the link: no service in between."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore, cache_from
from sandlot.link.client import Link
from sandlot.link.services import Service
from sandlot.link.types import CellError, CellResult, Display, Output, ProcessResult
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.ports import Blank, Instance
from sandlot.model.specs import Limits, ProcessSpec, SandboxSpec, Shape, User, shell_argv

PIDS = 64
SMALL = Limits(memory_bytes=512 << 20, disk_bytes=64 << 20, pids=PIDS)


@dataclass(slots=True)
class Inside:
    """One sandbox and how tests speak to it."""

    instance: Instance
    link: Link

    async def run(self, *argv: str, user: User = User.USER, cwd: str | None = None, timeout_s: float = 60) -> tuple[bytes, bytes, ProcessResult]:
        """Run a program; its stdout, stderr and result."""
        call = await self.link.start(ProcessSpec(argv, user=user, cwd=cwd, timeout_s=timeout_s))
        output = {1: bytearray(), 2: bytearray()}
        async for item in call:
            assert isinstance(item, Output), item
            output[item.channel] += item.data
        return bytes(output[1]), bytes(output[2]), await call.result()

    async def sh(self, command: str, user: User = User.USER, timeout_s: float = 60) -> str:
        """Run a shell command line that must succeed; its stdout."""
        out, err, result = await self.run(*shell_argv(command), user=user, timeout_s=timeout_s)
        assert result.exit_code == 0, (result, out, err)
        return out.decode()

    async def cell(self, code: str, timeout_s: float | None = 60) -> tuple[str, list[Display | CellError], CellResult]:
        """Run a cell; what it printed, displayed or raised, and its result."""
        call = await self.link.execute(code, timeout_s=timeout_s)
        text, told = bytearray(), []
        async for item in call:
            if isinstance(item, Output):
                text += item.data
            elif isinstance(item, Display | CellError):
                told.append(item)
        return text.decode("utf-8", "replace"), told, await call.result()


@asynccontextmanager
async def open_sandbox(
    data_dir: Path, *, limits: Limits = SMALL, services: Mapping[str, Service] | None = None, template: str = "base", isolation: str = "gvisor"
) -> AsyncIterator[Inside]:
    """A sandbox of its own, awake; gone again in the end, whatever happened."""
    store = ImageStore(cache_from(os.environ))
    node = new_node_id()
    driver = open_driver(isolation, DriverSettings(node=node, data_dir=data_dir))
    spec = SandboxSpec(id=new_sandbox_id(node), template=template, limits=limits)
    blank = await driver.prepare(Shape(root=store.root(template), limits=limits))
    held: Blank | Instance = blank
    try:
        held = instance = await blank.boot(spec)
        link = await Link.greet(await instance.connect(), services=services)
        try:
            await link.wake(
                identity=spec.id,
                hostname="inside",
                env=dict(store.ensure(template).env),
                pids=limits.pids,
                deadline_s=600,
                memory_bytes=limits.memory_bytes,
            )
            yield Inside(instance, link)
        finally:
            await link.aclose()
    finally:
        await held.destroy()


@pytest.fixture(scope="module")
async def inside(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Inside]:
    """A sandbox that the tests of a module share."""
    async with open_sandbox(tmp_path_factory.mktemp("data")) as sandbox:
        yield sandbox
