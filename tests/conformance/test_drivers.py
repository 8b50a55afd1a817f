"""Every driver that Sandlot has, through the suite that it ships."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.register_assert_rewrite("sandlot.testing")

from sandlot.images.store import ImageStore, cache_from  # noqa: E402 - rewritten first
from sandlot.model.ids import new_node_id  # noqa: E402
from sandlot.model.specs import RootFs  # noqa: E402
from sandlot.testing.bench import Bench  # noqa: E402
from sandlot.testing.driver_suite import DriverSuite  # noqa: E402


@pytest.fixture(scope="session")
def root() -> RootFs:
    return ImageStore(cache_from(os.environ)).root("base")


class TestGvisor(DriverSuite):
    @pytest.fixture
    def bench(self, root: RootFs, tmp_path: Path) -> Bench:
        return Bench("gvisor", root=root, node=new_node_id(), data_dir=tmp_path / "state")


class TestContainer(DriverSuite):
    @pytest.fixture
    def bench(self, root: RootFs, tmp_path: Path) -> Bench:
        return Bench("container", root=root, node=new_node_id(), data_dir=tmp_path / "state")
