"""The in-memory driver and its scripted guest keep the same contracts as the real ones (``test_drivers.py`` for the real drivers)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.images.store import ImageStore
from sandlot.model.errors import SandboxEndedError
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver, ExitReason, HeadroomRange
from sandlot.model.specs import MIB, Limits, RootFs
from sandlot.testing.drivers.contract import DriverContractSuite, SnapshotContractSuite
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox
from sandlot.testing.guest_suite import GuestSuite
from sandlot.testing.memory.driver import MemoryDriver
from tests.support.cache import CACHE_DIR

LIMITS = Limits(cpus=1.0, memory_bytes=512 * MIB, disk_bytes=64 * MIB, pids=128)


def memory_harness(folder: Path) -> DriverHarness:
    driver = MemoryDriver()
    driver.headroom = HeadroomRange(256 * MIB, 512 * MIB)

    def start(_name: str, _settings: object) -> Driver:
        driver.restart()
        return driver

    return DriverHarness("gvisor", root=RootFs("0" * 64, folder / "root"), node=new_node_id(), data_dir=folder / "state", open_driver=start)


def real_harness(driver: str, folder: Path) -> DriverHarness:
    return DriverHarness(driver, root=ImageStore(CACHE_DIR).root("base"), node=new_node_id(), data_dir=folder / "state")


async def shared(harness: DriverHarness) -> AsyncIterator[ConnectedSandbox]:
    """One sandbox for all tests of a class that need no sandbox of their own."""
    instance = await harness.boot(harness.new_driver(), LIMITS)
    async with connect_sandbox(instance, LIMITS) as sandbox:
        yield sandbox
    await instance.destroy()


@pytest.fixture(scope="module")
async def gvisor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConnectedSandbox]:
    async for sandbox in shared(real_harness("gvisor", tmp_path_factory.mktemp("gvisor"))):
        yield sandbox


@pytest.fixture(scope="module")
async def container(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConnectedSandbox]:
    async for sandbox in shared(real_harness("container", tmp_path_factory.mktemp("container"))):
        yield sandbox


class TestMemoryDriver(DriverContractSuite, SnapshotContractSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DriverHarness:
        return memory_harness(tmp_path)

    async def test_headroom_stays_granted_while_a_test_holds_its_withdrawal(self, tmp_path: Path) -> None:
        driver = MemoryDriver()
        harness = replace(memory_harness(tmp_path), open_driver=lambda _name, _settings: driver)
        driver.hold("withdraw")
        async with harness.sandbox() as sandbox:
            await sandbox.instance.snapshot(tmp_path / "one", keep_running=True, headroom_bytes=3 * MIB)
            await driver.faults.reach("withdraw")
            await sandbox.instance.snapshot(tmp_path / "two", keep_running=True, headroom_bytes=2 * MIB)
            assert sandbox.instance.headroom_bytes == 3 * MIB
            assert await sandbox.instance.snapshot_headroom() == HeadroomRange(3 * MIB, 3 * MIB)
            driver.faults.release("withdraw")
            await sandbox.instance.wait_headroom_withdrawn()
            assert sandbox.instance.headroom_bytes == 0

    async def test_sandbox_that_keeps_its_headroom_is_ended(self, tmp_path: Path) -> None:
        driver = MemoryDriver()
        harness = replace(memory_harness(tmp_path), open_driver=lambda _name, _settings: driver)
        driver.fail_next("withdraw", OSError("it uses more than its limit"))
        async with harness.sandbox() as sandbox:
            await sandbox.instance.snapshot(tmp_path / "one", keep_running=True, headroom_bytes=MIB)
            assert (await sandbox.instance.wait()).reason is ExitReason.OOM
            assert sandbox.instance.headroom_bytes == 0

    async def test_snapshot_with_too_little_headroom_ends_the_sandbox(self, tmp_path: Path) -> None:
        harness = memory_harness(tmp_path)
        async with harness.sandbox() as sandbox:
            with pytest.raises(SandboxEndedError):
                await sandbox.instance.snapshot(tmp_path / "one", keep_running=True, headroom_bytes=MIB)
            assert (await sandbox.instance.wait()).reason is ExitReason.OOM


class TestMemoryGuest(GuestSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DriverHarness:
        return memory_harness(tmp_path)

    @pytest.fixture
    async def sandbox(self, harness: DriverHarness) -> AsyncIterator[ConnectedSandbox]:
        async for sandbox in shared(harness):
            yield sandbox


class TestGvisorGuest(GuestSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DriverHarness:
        return real_harness("gvisor", tmp_path)

    @pytest.fixture
    def sandbox(self, gvisor: ConnectedSandbox) -> ConnectedSandbox:
        return gvisor


class TestContainerGuest(GuestSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DriverHarness:
        return real_harness("container", tmp_path)

    @pytest.fixture
    def sandbox(self, container: ConnectedSandbox) -> ConnectedSandbox:
        return container
