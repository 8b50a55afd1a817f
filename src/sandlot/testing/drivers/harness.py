"""Objects that the suites of drivers use: the driver under test, and live sandboxes whose guest is connected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sandlot.drivers.registry import DriverSettings, open_driver
from sandlot.link.client import Link
from sandlot.link.services import GuestService
from sandlot.model.executions import Output
from sandlot.model.ids import NodeId, new_sandbox_id
from sandlot.model.ports import ByteStream, Driver, DriverCapability, Instance, PreparedSandbox
from sandlot.model.specs import MIB, Limits, ProcessSpec, RootFs, SandboxSpec, Shape, User

SMALL_LIMITS = Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)
"""Limits of a test's sandboxes unless the test passes others."""


@dataclass(frozen=True, slots=True)
class DriverHarness:
    """The driver under test and the state directory that the driver uses.

    Args:
        driver_name: Name of the driver in the registry (:mod:`sandlot.drivers.registry`).
        root: Root file system with the guest and the programs ``python3``, ``sh`` and ``dd``.
        node: Node id of the state directory.
        data_dir: State directory. Each test gets a new one.
        open_driver: Function that opens the driver, as a service does when it starts. A second driver that is opened on the same state directory
            simulates a restart of the service.
    """

    driver_name: str
    root: RootFs
    node: NodeId
    data_dir: Path
    open_driver: Callable[[str, DriverSettings], Driver] = field(default=open_driver)

    def new_driver(self) -> Driver:
        """Open the driver, as a service does when it starts."""
        return self.open_driver(self.driver_name, DriverSettings(node=self.node, data_dir=self.data_dir))

    async def driver_with(self, *capabilities: DriverCapability) -> Driver:
        """Open the driver. If its probe reports that one of the capabilities is missing, skip the test with the probe's reason."""
        driver = self.new_driver()
        probed = await asyncio.to_thread(driver.probe)
        for capability in capabilities:
            if not probed.can(capability):
                pytest.skip(probed.why_not(capability))
        return driver

    def shape(self, limits: Limits = SMALL_LIMITS) -> Shape:
        """Return the shape of a sandbox: the root file system of the harness, and limits."""
        return Shape(root=self.root, limits=limits)

    def spec(self, limits: Limits = SMALL_LIMITS) -> SandboxSpec:
        """Return the spec of a sandbox with a new id, for ``boot`` or ``restore``."""
        return SandboxSpec(id=new_sandbox_id(self.node), limits=limits, isolation=self.driver_name)

    async def boot(self, driver: Driver, limits: Limits = SMALL_LIMITS) -> Instance:
        """Prepare and boot a sandbox. The caller must destroy the sandbox."""
        prepared = await driver.prepare(self.shape(limits))
        return await prepared.boot(self.spec(limits))

    @asynccontextmanager
    async def sandbox(self, driver: Driver | None = None, limits: Limits = SMALL_LIMITS) -> AsyncIterator[ConnectedSandbox]:
        """Boot a sandbox, connect to its guest, wake the guest, and destroy the sandbox at the end.

        Args:
            driver: Driver that boots the sandbox; None: a newly opened driver.
            limits: Limits of the sandbox.
        """
        instance = await self.boot(driver or self.new_driver(), limits)
        try:
            async with connect_sandbox(instance, limits) as sandbox:
                yield sandbox
        finally:
            await instance.destroy()

    @asynccontextmanager
    async def restored_sandbox(self, driver: Driver, snapshot: Path, limits: Limits = SMALL_LIMITS) -> AsyncIterator[ConnectedSandbox]:
        """Restore a sandbox from a snapshot, connect to its guest, wake the guest, and destroy the sandbox at the end."""
        prepared = await driver.prepare(self.shape(limits), snapshot=snapshot)
        instance = await restore_snapshot(driver, prepared, snapshot, self.spec(limits))
        try:
            async with connect_sandbox(instance, limits) as sandbox:
                yield sandbox
        finally:
            await instance.destroy()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command in a sandbox.

    Args:
        exit_code: Exit code; for a command that a signal ended, the negative number of the signal.
        stdout: Standard output. Bytes that are not UTF-8 are replaced by U+FFFD.
        stderr: Standard error. Bytes that are not UTF-8 are replaced by U+FFFD.
    """

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class ConnectedSandbox:
    """A live sandbox with a connection to its guest.

    Args:
        instance: The driver's object for the sandbox.
        link: Connection to the guest.
    """

    instance: Instance
    link: Link

    async def run(self, *argv: str, user: User = User.USER, timeout_s: float | None = 120, stdin: bytes | None = None) -> CommandResult:
        """Run a command in the directory ``/``, and wait until the command has ended.

        Args:
            argv: Program and arguments.
            user: User that runs the command inside the sandbox.
            timeout_s: Seconds until the command is killed; None: no timeout.
            stdin: Content of standard input; None: standard input is ``/dev/null``.
        """
        call = await self.link.processes.start(ProcessSpec(argv=argv, user=user, cwd="/", timeout_s=timeout_s, stdin=stdin is not None))
        output: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}

        async def send_stdin() -> None:
            if stdin is not None:
                await call.write(stdin)
                call.close_stdin()

        sending = asyncio.create_task(send_stdin())
        async with call:
            async for item in call:
                if isinstance(item, Output):
                    output[item.channel] += item.data
            result = await call.result()
        await sending
        exit_code = result.exit_code if result.exit_code is not None else -(result.signal or 0)
        return CommandResult(exit_code, output[1].decode(errors="replace"), output[2].decode(errors="replace"))

    async def python(self, program: str, *arguments: str, user: User = User.USER, timeout_s: float | None = 120) -> CommandResult:
        """Run a Python program, and wait until it has ended. The site packages of the image are not loaded, which halves the start-up time.

        Args:
            program: Source code.
            arguments: Arguments of the program.
            user: User that runs the program inside the sandbox.
            timeout_s: Seconds until the program is killed; None: no timeout.
        """
        return await self.run("python3", "-SI", "-c", program, *arguments, user=user, timeout_s=timeout_s)


@asynccontextmanager
async def connect_sandbox(
    instance: Instance, limits: Limits = SMALL_LIMITS, *, services: Mapping[str, GuestService] | None = None
) -> AsyncIterator[ConnectedSandbox]:
    """Connect to the guest of a live sandbox, and wake the guest if it sleeps. The sandbox keeps running after the block.

    Args:
        instance: The sandbox.
        limits: Limits of the sandbox.
        services: Services of the host that the guest may use, by name; None: no service.
    """
    stream: ByteStream = await instance.connect()
    link = await Link.open(stream, services=services)
    try:
        if link.asleep:
            await link.wake(identity="sb-test", hostname="sandbox", env={}, pids=limits.pids, deadline_s=None)
        yield ConnectedSandbox(instance, link)
    finally:
        await link.aclose()


async def take_snapshot(instance: Instance, into: Path, *, keep_running: bool, durable: bool = True) -> int:
    """Write a snapshot of a live sandbox with all the headroom that is of use, and return the size of the snapshot in bytes."""
    headroom = await instance.snapshot_headroom()
    return await instance.snapshot(into, keep_running=keep_running, durable=durable, headroom_bytes=headroom.most_bytes)


async def restore_snapshot(driver: Driver, prepared: PreparedSandbox, snapshot: Path, spec: SandboxSpec) -> Instance:
    """Restore a snapshot into a prepared sandbox with all the headroom that is of use. The caller must destroy the sandbox."""
    headroom = await driver.restore_headroom(snapshot, spec.limits)
    return await prepared.restore(snapshot, spec, headroom_bytes=headroom.most_bytes)


async def wait_for_cpu_time(instance: Instance, cpu_s: float) -> None:
    """Wait until a sandbox has used ``cpu_s`` seconds of processor time since its start."""
    while (await instance.usage()).cpu_s < cpu_s:  # noqa: ASYNC110 - the driver has no event for this
        await asyncio.sleep(0.01)
