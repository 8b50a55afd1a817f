"""Sandlot's drivers pass the suites that Sandlot ships."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.drivers.oci.snapshots import manifest
from sandlot.images.store import ImageStore
from sandlot.model.errors import ConflictError, ErrorCode
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver, Instance
from sandlot.model.specs import Limits, RootFs
from sandlot.testing.drivers.cleanup import CleanupSuite
from sandlot.testing.drivers.contract import SnapshotContractSuite
from sandlot.testing.drivers.harness import SMALL_LIMITS, ConnectedSandbox, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot
from sandlot.testing.drivers.isolation import IsolationSuite
from sandlot.testing.drivers.leftovers import leftovers, wait_until_empty
from sandlot.testing.drivers.limits import LimitsSuite
from sandlot.testing.drivers.network import OWN_ADDRESS, NetworkSuite
from sandlot.testing.drivers.snapshots import SnapshotSuite
from sandlot.testing.drivers.suite import DriverSuite, DriverSuiteWithoutSnapshots
from tests.support.cache import CACHE_DIR
from tests.support.command_line import open_without_control


@pytest.fixture(scope="session")
def root() -> RootFs:
    return ImageStore(CACHE_DIR).root("base")


@pytest.fixture(scope="session")
def image_root() -> RootFs:
    return ImageStore(CACHE_DIR).root_image("base")


@dataclasses.dataclass(frozen=True, slots=True)
class SharedHarness(DriverHarness):
    """A harness whose ``sandbox`` returns a sandbox that several tests share.

    Args:
        shared: The live sandbox.
    """

    shared: Instance = dataclasses.field(kw_only=True)

    @asynccontextmanager
    async def sandbox(self, driver: Driver | None = None, limits: Limits = SMALL_LIMITS) -> AsyncIterator[ConnectedSandbox]:
        del driver
        assert limits == SMALL_LIMITS
        async with connect_sandbox(self.shared) as sandbox:
            yield sandbox


SHARING = {
    "test_full_disk_is_an_error_inside_only",
    "test_large_input_and_output_pass_concurrently",
    "test_processes_of_the_host_are_not_visible",
    "test_programs_see_the_memory_limit_if_the_probe_says_so",
    "test_network_of_the_host_is_not_reachable",
    "test_max_resources_is_an_upper_bound_of_usage",
    "test_written_files_can_be_executed_and_loaded",
    "test_missing_capability_raises_unsupported_error",
    "test_resume_of_a_running_sandbox_does_nothing",
}
"""Tests that leave nothing running and no limit changed in their sandbox. A boot of gVisor takes most of their time."""


@pytest.fixture(scope="module")
async def shared(image_root: RootFs, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Instance]:
    harness = DriverHarness("gvisor", root=image_root, node=new_node_id(), data_dir=tmp_path_factory.mktemp("shared") / "state")
    instance = await harness.boot(harness.new_driver())
    yield instance
    await instance.destroy()
    assert wait_until_empty(lambda: leftovers(harness.data_dir, harness.node)) == ()


class TestGvisor(DriverSuite):
    @pytest.fixture
    def harness(self, image_root: RootFs, tmp_path: Path, shared: Instance, request: pytest.FixtureRequest) -> DriverHarness:
        own = DriverHarness("gvisor", root=image_root, node=new_node_id(), data_dir=tmp_path / "state")
        if request.function.__name__ not in SHARING:
            return own
        return SharedHarness(own.driver_name, own.root, own.node, own.data_dir, shared=shared)

    async def test_missing_runtime_build_is_named(self, harness: DriverHarness) -> None:
        driver, into = harness.new_driver(), harness.data_dir / "saved" / "image"
        async with harness.sandbox(driver) as source:
            await source.link.checkpoint(armed=True)
            await take_snapshot(source.instance, into, keep_running=True)
            await source.link.checkpoint(armed=False)
        file = into / manifest.NAME
        file.write_text(json.dumps(json.loads(file.read_text()) | {"runtime_sha256": "0" * 64}))
        result = driver.restorable(into)
        assert not result.ok
        assert "0" * 12 in result.reason
        prepared = await driver.prepare(harness.shape())
        with pytest.raises(ConflictError, match="0" * 12) as refused:
            await restore_snapshot(driver, prepared, into, harness.spec())
        assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
        await prepared.destroy()


class GvisorByItsCommandLine:
    """gVisor through its command line, which every release of runsc has, and with a network that runsc copies.

    :class:`TestGvisor` uses the faster control socket of this release.
    """

    @pytest.fixture
    def harness(self, root: RootFs, tmp_path: Path) -> DriverHarness:
        return DriverHarness("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state", open_driver=open_without_control)


class TestGvisorByItsCommandLine(GvisorByItsCommandLine, CleanupSuite):
    """Some tests in every run; ``test_gvisor_snapshots.py`` has another."""

    test_connections_reach_the_host_by_name_or_address = NetworkSuite.test_connections_reach_the_host_by_name_or_address
    test_network_of_the_host_is_not_reachable = IsolationSuite.test_network_of_the_host_is_not_reachable
    test_snapshot_of_a_paused_sandbox_leaves_it_paused = SnapshotSuite.test_snapshot_of_a_paused_sandbox_leaves_it_paused


@pytest.mark.soak
class TestAllOfGvisorByItsCommandLine(GvisorByItsCommandLine, DriverSuite):
    """All tests, with one difference."""

    async def test_programs_find_the_address_of_the_card(self, harness: DriverHarness) -> None:
        """The copied device of loopback type has all addresses, so gVisor takes every destination for an own address."""
        async with harness.sandbox() as sandbox:
            assert (await sandbox.python(f"import socket\n{OWN_ADDRESS}")).stdout == "8.8.8.8\n"


class GvisorOnAFolder:
    """gVisor with a root file system that is a folder, as the first service on a machine has. :class:`TestGvisor` uses an EROFS image."""

    @pytest.fixture
    def harness(self, root: RootFs, tmp_path: Path) -> DriverHarness:
        return DriverHarness("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state")


class TestGvisorOnAFolder(GvisorOnAFolder, CleanupSuite):
    """Some tests in every run; ``test_gvisor.py`` and ``test_gvisor_snapshots.py`` have others."""

    test_full_disk_is_an_error_inside_only = LimitsSuite.test_full_disk_is_an_error_inside_only
    test_snapshot_that_ends_the_sandbox_is_complete = SnapshotContractSuite.test_snapshot_that_ends_the_sandbox_is_complete


@pytest.mark.soak
class TestAllOfGvisorOnAFolder(GvisorOnAFolder, DriverSuite):
    """All tests."""


class TestContainer(DriverSuiteWithoutSnapshots):
    @pytest.fixture
    def harness(self, root: RootFs, tmp_path: Path) -> DriverHarness:
        return DriverHarness("container", root=root, node=new_node_id(), data_dir=tmp_path / "state")
