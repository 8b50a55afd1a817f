"""Every driver that Sandlot has, through the suite that it ships."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.registry import DriverSettings
from sandlot.images.store import ImageStore, cache_from
from sandlot.model.ids import new_node_id
from sandlot.model.specs import RootFs
from sandlot.testing.bench import Bench
from sandlot.testing.driver_clean import CleanSuite
from sandlot.testing.driver_snapshot import SnapshotSuite
from sandlot.testing.driver_suite import DriverSuite, PlainDriverSuite


def _without_control(name: str, settings: DriverSettings) -> OciDriver:
    return OciDriver(name, settings, Runsc(lambda: dataclasses.replace(find_runsc(), has_control=False)))


@pytest.fixture(scope="session")
def root() -> RootFs:
    return ImageStore(cache_from(os.environ)).root("base")


class TestGvisor(DriverSuite):
    @pytest.fixture
    def bench(self, root: RootFs, tmp_path: Path) -> Bench:
        return Bench("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state")


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
