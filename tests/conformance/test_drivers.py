"""Every driver that Sandlot has, through the suite that it ships."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.registry import DriverSettings
from sandlot.images.store import ImageStore, cache_from
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver, Instance
from sandlot.model.specs import Limits, RootFs
from sandlot.testing.bench import SMALL, Bench, Subject, meet
from sandlot.testing.driver_clean import CleanSuite
from sandlot.testing.driver_snapshot import SnapshotSuite
from sandlot.testing.driver_suite import DriverSuite, PlainDriverSuite
from sandlot.testing.traces import settled, traces


def _without_control(name: str, settings: DriverSettings) -> OciDriver:
    return OciDriver(name, settings, Runsc(lambda: dataclasses.replace(find_runsc(), has_control=False)))


@pytest.fixture(scope="session")
def root() -> RootFs:
    return ImageStore(cache_from(os.environ)).root("base")


@dataclasses.dataclass(frozen=True, slots=True)
class SharedBench(Bench):
    """A bench whose ``sandbox`` is one that other tests use as well.

    Args:
        shared: The live sandbox.
    """

    shared: Instance = dataclasses.field(kw_only=True)

    @asynccontextmanager
    async def sandbox(self, driver: Driver | None = None, limits: Limits = SMALL) -> AsyncIterator[Subject]:
        del driver
        assert limits == SMALL
        async with meet(self.shared) as subject:
            yield subject


SHARING = {
    "test_a_full_disk_is_an_error_inside_and_nothing_more",
    "test_much_flows_both_ways_at_once",
    "test_processes_of_the_host_are_not_there",
    "test_the_memory_limit_is_what_is_seen_inside",
    "test_the_network_of_the_host_is_not_there",
    "test_what_a_sandbox_is_said_to_take_is_never_less_than_what_it_uses",
    "test_what_is_written_inside_can_be_run_and_loaded",
    "test_what_the_probe_denies_is_refused_with_a_reason",
}
"""Tests that leave nothing running and no limit changed in their sandbox. A boot of gVisor takes most of their time."""


@pytest.fixture(scope="module")
async def shared(root: RootFs, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Instance]:
    bench = Bench("gvisor", root=root, node=new_node_id(), data_dir=tmp_path_factory.mktemp("shared") / "state")
    instance = await bench.boot(bench.start())
    yield instance
    await instance.destroy()
    assert settled(lambda: traces(bench.data_dir, bench.node)) == ()


class TestGvisor(DriverSuite):
    @pytest.fixture
    def bench(self, root: RootFs, tmp_path: Path, shared: Instance, request: pytest.FixtureRequest) -> Bench:
        own = Bench("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state")
        if request.function.__name__ not in SHARING:
            return own
        return SharedBench(own.driver, own.root, own.node, own.data_dir, shared=shared)


class GvisorByItsCommandLine:
    """The way to a sandbox that every release of runsc has; this one has a quicker one, which is what :class:`TestGvisor` goes."""

    @pytest.fixture
    def bench(self, root: RootFs, tmp_path: Path) -> Bench:
        return Bench("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state", open_driver=_without_control)


class TestGvisorByItsCommandLine(GvisorByItsCommandLine, CleanSuite):
    """One test of it in every run; ``test_gvisor_snapshots.py`` has another."""

    test_one_that_is_paused_is_written_and_stays_paused = SnapshotSuite.test_one_that_is_paused_is_written_and_stays_paused


@pytest.mark.soak
class TestAllOfGvisorByItsCommandLine(GvisorByItsCommandLine, SnapshotSuite):
    """All of it."""


class TestContainer(PlainDriverSuite):
    @pytest.fixture
    def bench(self, root: RootFs, tmp_path: Path) -> Bench:
        return Bench("container", root=root, node=new_node_id(), data_dir=tmp_path / "state")
