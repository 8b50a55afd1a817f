"""What the suites stand on: a driver on a state directory, a root file system, and the guest inside as a user meets it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.link.client import Link
from sandlot.link.types import Output
from sandlot.model.ids import NodeId, new_sandbox_id
from sandlot.model.ports import ByteStream, Driver, Instance
from sandlot.model.specs import MIB, Limits, ProcessSpec, RootFs, SandboxSpec, Shape, User

SMALL = Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)
"""Enough for every behaviour that does not say otherwise."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One driver, to be tried.

    Args:
        driver: Its name in the registry.
        root: A root file system, complete with the guest, that has ``python3``, ``sh`` and ``dd``.
        node: The id of the state directory.
        data_dir: The state directory, for this test alone.
        open_driver: Makes a driver as a service that starts would; a second one on the same directory is a restart.
    """

    driver: str
    root: RootFs
    node: NodeId
    data_dir: Path
    open_driver: Callable[[str, DriverSettings], Driver] = field(default=open_driver)

    def start(self) -> Driver:
        """A driver, as after a start of the service."""
        return self.open_driver(self.driver, DriverSettings(node=self.node, data_dir=self.data_dir))

    def shape(self, limits: Limits = SMALL) -> Shape:
        """What to prepare."""
        return Shape(root=self.root, limits=limits)

    def spec(self, limits: Limits = SMALL) -> SandboxSpec:
        """What to boot: somebody new each time."""
        return SandboxSpec(id=new_sandbox_id(self.node), limits=limits, isolation=self.driver)

    async def boot(self, driver: Driver, limits: Limits = SMALL) -> Instance:
        """A live sandbox, for the caller to destroy."""
        prepared = await driver.prepare(self.shape(limits))
        return await prepared.boot(self.spec(limits))

    @asynccontextmanager
    async def sandbox(self, driver: Driver | None = None, limits: Limits = SMALL) -> AsyncIterator[Subject]:
        """A live sandbox with its guest awake, destroyed at the end."""
        instance = await self.boot(driver or self.start(), limits)
        try:
            async with meet(instance, limits) as subject:
                yield subject
        finally:
            await instance.destroy()


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended.

    Args:
        code: Its exit code; negative for the signal that ended it.
        stdout: What it wrote.
        stderr: What it complained.
    """

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A live sandbox that is connected.

    Args:
        instance: The driver's.
        link: To its guest.
    """

    instance: Instance
    link: Link

    async def run(self, *argv: str, user: User = User.USER, timeout_s: float | None = 120, stdin: bytes | None = None) -> Done:
        """Run a command to its end."""
        call = await self.link.processes.start(ProcessSpec(argv=argv, user=user, cwd="/", timeout_s=timeout_s, stdin=stdin is not None))
        text: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}

        async def feed() -> None:
            if stdin is not None:
                await call.write(stdin)
                call.close_stdin()

        feeding = asyncio.create_task(feed())
        async with call:
            async for item in call:
                if isinstance(item, Output):
                    text[item.channel] += item.data
            result = await call.result()
        await feeding
        code = result.exit_code if result.exit_code is not None else -(result.signal or 0)
        return Done(code, text[1].decode(errors="replace"), text[2].decode(errors="replace"))

    async def python(self, program: str, *arguments: str, user: User = User.USER, timeout_s: float | None = 120) -> Done:
        """Run a Python program on the image's python, which imports nothing by itself: that halves its start."""
        return await self.run("python3", "-SI", "-c", program, *arguments, user=user, timeout_s=timeout_s)


@asynccontextmanager
async def meet(instance: Instance, limits: Limits = SMALL) -> AsyncIterator[Subject]:
    """Greet the guest of a live sandbox, and wake it where it sleeps; the sandbox lives on afterwards."""
    stream: ByteStream = await instance.connect()
    link = await Link.open(stream)
    try:
        if link.asleep:
            await link.wake(identity="sb-test", hostname="sandbox", env={}, pids=limits.pids, deadline_s=None)
        yield Subject(instance, link)
    finally:
        await link.aclose()


async def spun(instance: Instance, cpu_s: float) -> None:
    """Return once a sandbox has used so much processor time."""
    while (await instance.usage()).cpu_s < cpu_s:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)
