"""The in-memory driver and its scripted guest keep the same contracts as the real ones (``test_drivers.py`` for the real drivers)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.images.store import ImageStore, cache_from
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver
from sandlot.model.specs import MIB, Limits, RootFs
from sandlot.testing.drivers.contract import DriverContractSuite, SnapshotContractSuite
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox
from sandlot.testing.guest_suite import GuestSuite
from sandlot.testing.memory.driver import MemoryDriver

LIMITS = Limits(cpus=1.0, memory_bytes=512 * MIB, disk_bytes=64 * MIB, pids=128)


def memory_harness(folder: Path) -> DriverHarness:
    driver = MemoryDriver()

    def start(_name: str, _settings: object) -> Driver:
        driver.restart()
        return driver

    return DriverHarness("gvisor", root=RootFs(folder / "root", "0" * 64), node=new_node_id(), data_dir=folder / "state", open_driver=start)


def real_harness(driver: str, folder: Path) -> DriverHarness:
    return DriverHarness(driver, root=ImageStore(cache_from(os.environ)).root("base"), node=new_node_id(), data_dir=folder / "state")


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
