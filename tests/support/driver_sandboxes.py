"""Sandboxes of a driver, without a service: booted, saved and restored, each with the link to its guest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.images.store import ImageStore
from sandlot.link.client import Link
from sandlot.link.types import CellResult, ProcessResult
from sandlot.model.access import LOCAL
from sandlot.model.executions import CellError, Display, Output
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.ports import Driver, Instance, PreparedSandbox
from sandlot.model.specs import CellSpec, Limits, ProcessSpec, RootFs, SandboxSpec, Shape, TemplateRef, User, shell_argv
from sandlot.testing.drivers.harness import restore_snapshot, take_snapshot
from tests.support.cache import CACHE_DIR

PIDS = 64
LIMITS = Limits(memory_bytes=1 << 30, disk_bytes=256 << 20, pids=PIDS)


@dataclass(slots=True)
class GuestSession:
    """One sandbox, and the link to its guest."""

    instance: Instance
    link: Link

    async def run(self, *argv: str, user: User = User.USER, cwd: str | None = None, timeout_s: float = 60) -> tuple[bytes, bytes, ProcessResult]:
        """Run a program. Return its stdout, stderr and result."""
        call = await self.link.processes.start(ProcessSpec(argv, user=user, cwd=cwd, timeout_s=timeout_s))
        output = {1: bytearray(), 2: bytearray()}
        async for item in call:
            assert isinstance(item, Output), item
            output[item.channel] += item.data
        return bytes(output[1]), bytes(output[2]), await call.result()

    async def sh(self, command: str, user: User = User.USER, timeout_s: float = 60) -> str:
        """Run a command of the shell that must succeed. Return its stdout."""
        out, err, result = await self.run(*shell_argv(command), user=user, timeout_s=timeout_s)
        assert result.exit_code == 0, (result, out, err)
        return out.decode()

    async def cell(self, code: str, timeout_s: float | None = 60, kernel: str = "default") -> tuple[str, list[Display | CellError], CellResult]:
        """Run a cell. Return its output, its displays and errors, and its result."""
        call = await self.link.kernels.execute(CellSpec(code, language=None, context=kernel, timeout_s=timeout_s))
        text, told = bytearray(), []
        async for item in call:
            if isinstance(item, Output):
                text += item.data
            elif isinstance(item, Display | CellError):
                told.append(item)
        return text.decode("utf-8", "replace"), told, await call.result()


@dataclass
class DriverSandboxes:
    """A driver, and the sandboxes that a test has started with it."""

    driver: Driver
    root: RootFs
    folder: Path
    template: str
    held: list[PreparedSandbox | Instance] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    async def open(self, snapshot: Path | None = None) -> GuestSession:
        """Boot or restore a sandbox, and connect to its guest, which has not been woken."""
        spec = SandboxSpec(id=new_sandbox_id(new_node_id()), template=TemplateRef(LOCAL, self.template), limits=LIMITS)
        prepared = await self.driver.prepare(Shape(root=self.root, limits=LIMITS), snapshot=snapshot)
        self.held.append(prepared)
        instance = await (prepared.boot(spec) if snapshot is None else restore_snapshot(self.driver, prepared, snapshot, spec))
        self.held[-1] = instance
        link = await self.greet(instance)
        assert link.asleep
        return GuestSession(instance, link)

    async def greet(self, instance: Instance) -> Link:
        link = await Link.open(await instance.connect())
        self.links.append(link)
        return link

    async def copies(self, of: GuestSession, count: int) -> list[GuestSession]:
        """Return copies of a running sandbox, which have not been woken. The sandbox continues."""
        image = self.folder / f"image-{len(self.held)}"
        await of.link.checkpoint(armed=True)
        await take_snapshot(of.instance, image, keep_running=True, durable=False)
        await of.link.checkpoint(armed=False)
        return [await self.open(image) for _ in range(count)]

    async def end(self) -> None:
        for link in self.links:
            await link.aclose()
        for held in self.held:
            await held.destroy()


@asynccontextmanager
async def driver_sandboxes(folder: Path, template: str) -> AsyncIterator[DriverSandboxes]:
    store = ImageStore(CACHE_DIR)
    made = DriverSandboxes(open_driver("gvisor", DriverSettings(node=new_node_id(), data_dir=folder)), store.root(template), folder, template)
    try:
        yield made
    finally:
        await made.end()


async def wake(inside: GuestSession, identity: str, **env: str) -> None:
    """Wake a sandbox of the isolation gvisor."""
    await inside.link.wake(
        identity=identity, hostname=identity, env=env, pids=PIDS, deadline_s=600, memory_bytes=LIMITS.memory_bytes, processors=LIMITS.processors
    )
