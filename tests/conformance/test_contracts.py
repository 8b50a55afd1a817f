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
from sandlot.testing.bench import Bench, Subject, meet
from sandlot.testing.driver_contract import DriverContractSuite, SnapshotContractSuite
from sandlot.testing.guest_contract import GuestContractSuite
from sandlot.testing.memory.driver import MemoryDriver

LIMITS = Limits(cpus=1.0, memory_bytes=512 * MIB, disk_bytes=64 * MIB, pids=128)


def memory_bench(folder: Path) -> Bench:
    driver = MemoryDriver()

    def start(_name: str, _settings: object) -> Driver:
        driver.restart()
        return driver

    return Bench("gvisor", root=RootFs(folder / "root", "0" * 64), node=new_node_id(), data_dir=folder / "state", open_driver=start)


def real_bench(driver: str, folder: Path) -> Bench:
    return Bench(driver, root=ImageStore(cache_from(os.environ)).root("base"), node=new_node_id(), data_dir=folder / "state")


async def shared(bench: Bench) -> AsyncIterator[Subject]:
    """One sandbox for all tests of a class that need no sandbox of their own."""
    instance = await bench.boot(bench.start(), LIMITS)
    async with meet(instance, LIMITS) as subject:
        yield subject
    await instance.destroy()


@pytest.fixture(scope="module")
async def gvisor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    async for subject in shared(real_bench("gvisor", tmp_path_factory.mktemp("gvisor"))):
        yield subject


@pytest.fixture(scope="module")
async def container(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Subject]:
    async for subject in shared(real_bench("container", tmp_path_factory.mktemp("container"))):
        yield subject


class TestMemoryDriver(DriverContractSuite, SnapshotContractSuite):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return memory_bench(tmp_path)


class TestMemoryGuest(GuestContractSuite):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return memory_bench(tmp_path)

    @pytest.fixture
    async def subject(self, bench: Bench) -> AsyncIterator[Subject]:
        async for subject in shared(bench):
            yield subject


class TestGvisorGuest(GuestContractSuite):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return real_bench("gvisor", tmp_path)

    @pytest.fixture
    def subject(self, gvisor: Subject) -> Subject:
        return gvisor


class TestContainerGuest(GuestContractSuite):
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        return real_bench("container", tmp_path)

    @pytest.fixture
    def subject(self, container: Subject) -> Subject:
        return container
