"""A real sandbox on gVisor whose link is closed and opened again, as services come and go."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore, cache_from
from sandlot.link.client import Link, ProcessCall
from sandlot.link.types import Output
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.ports import Instance
from sandlot.model.specs import Limits, ProcessSpec, SandboxSpec, Shape, shell_argv

TEMPLATE = "base"
LIMITS = Limits(memory_bytes=512 << 20, disk_bytes=64 << 20, pids=64)


@dataclass(slots=True)
class Sandbox:
    """One live sandbox, and the link of the service that serves it now."""

    instance: Instance
    link: Link
    env: dict[str, str]

    async def reopen(self, *, half_read: int = 0) -> None:
        """The service dies in the middle of whatever it was at, and another one comes.

        Args:
            half_read: Bytes that the dead one had read and did nothing with.
        """
        await self.link.aclose()  # which says nothing to the guest: to it this is the same as SIGKILL
        stream = await self.instance.connect()
        if half_read:
            await stream.receive(half_read)
        self.link = await Link.greet(stream)

    async def wake(self, *, hostname: str = "box", identity: str = "sb-test") -> None:
        await self.link.wake(identity=identity, hostname=hostname, env=self.env, pids=LIMITS.pids, deadline_s=600)

    async def sh(self, command: str) -> str:
        """Run a shell command line; its stdout."""
        return await collected(await self.link.start(ProcessSpec(shell_argv(command))))


async def collected(call: ProcessCall) -> str:
    """The standard output of a process that succeeds."""
    text = bytearray()
    async for item in call:
        assert isinstance(item, Output), item
        text += item.data
    result = await call.result()
    assert result.exit_code == 0, (result, text)
    return text.decode()


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncGenerator[Sandbox]:
    store = ImageStore(cache_from(os.environ))
    node = new_node_id()
    driver = open_driver("gvisor", DriverSettings(node=node, data_dir=tmp_path))
    image = store.ensure(TEMPLATE)
    blank = await driver.prepare(Shape(root=store.root(TEMPLATE), limits=LIMITS))
    try:
        instance = await blank.boot(SandboxSpec(id=new_sandbox_id(node), template=TEMPLATE, limits=LIMITS))
    except BaseException:
        await blank.destroy()
        raise
    try:
        made = Sandbox(instance, await Link.greet(await instance.connect()), dict(image.env))
        await made.wake()
        yield made
        await made.link.aclose()
    finally:
        await instance.destroy()
