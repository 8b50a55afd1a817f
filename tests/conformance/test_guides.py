"""The driver and the blobs in the guides for authors (docs/how-to/write-a-driver.md, docs/how-to/write-a-store.md) pass the suites."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from sandlot.drivers.registry import DriverSettings
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver
from sandlot.model.repositories import Blobs
from sandlot.model.specs import RootFs
from sandlot.testing.drivers.contract import DriverContractSuite, SnapshotContractSuite
from sandlot.testing.drivers.harness import DriverHarness
from sandlot.testing.stores.suite import StreamedBlobsSuite

DOCS = Path(__file__).parents[2] / "docs"


def documented(page: str, path: str, folder: Path) -> ModuleType:
    """Import the module that a page shows under a path."""
    match = re.search(rf"```python\n# {re.escape(path)}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert match is not None, f"{page} has no {path}"
    file = folder / Path(path).name
    file.write_text(match[1], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"documented_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestDocumentedDriver(DriverContractSuite, SnapshotContractSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DriverHarness:
        module = documented("how-to/write-a-driver.md", "src/sandlot_acme/driver.py", tmp_path)
        root, data_dir = RootFs("0" * 64, tmp_path / "root"), tmp_path / "state"

        def open_driver(_name: str, settings: DriverSettings) -> Driver:
            driver: Driver = module.open_acme(settings)
            return driver

        return DriverHarness("acme", root=root, node=new_node_id(), data_dir=data_dir, open_driver=open_driver)


class TestDocumentedBlobs(StreamedBlobsSuite):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Blobs:
        (tmp_path / "files").mkdir()
        blobs: Blobs = documented("how-to/write-a-store.md", "src/acme_store/blobs.py", tmp_path).AcmeBlobs(tmp_path / "files")
        return blobs
