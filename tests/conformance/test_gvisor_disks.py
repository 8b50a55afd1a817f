"""Disks of gVisor's sandboxes that are allocated, on a host with and without room for them."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.registry import DriverSettings
from sandlot.images.store import ImageStore
from sandlot.model.ids import new_node_id
from sandlot.model.specs import MIB
from sandlot.testing.drivers.harness import SMALL_LIMITS, DriverHarness
from sandlot.testing.drivers.leftovers import leftovers, wait_until_empty
from tests.support.cache import CACHE_DIR

LIMITS = replace(SMALL_LIMITS, disk_bytes=64 * MIB)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[DriverHarness]:
    """A state directory on a file system of 160 MiB."""
    made = DriverHarness("gvisor", root=ImageStore(CACHE_DIR).root("base"), node=new_node_id(), data_dir=tmp_path / "state")
    made.data_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m,mode=0700", "tmpfs", made.data_dir], check=True)
    try:
        yield made
    finally:
        subprocess.run(["umount", made.data_dir], check=True)
    assert not wait_until_empty(lambda: leftovers(made.data_dir, made.node))


@pytest.fixture(params=[False, True], ids=["image", "runtime limits the disk"])
def driver(harness: DriverHarness, request: pytest.FixtureRequest) -> OciDriver:
    """A driver that allocates disks; also on a build of the runtime that could limit the disk itself."""
    program = replace(find_runsc(), limits_disk=request.param)
    settings = DriverSettings(harness.node, harness.data_dir, allocates_disks=True)
    return OciDriver("gvisor", settings, Runsc(lambda: program))


async def test_sandbox_without_room_for_its_disk_leaves_nothing(harness: DriverHarness, driver: OciDriver) -> None:
    with pytest.raises(OSError, match="No space left") as full:
        await driver.prepare(harness.shape(replace(LIMITS, disk_bytes=512 * MIB)))
    assert full.value.errno == errno.ENOSPC
    assert os.listdir(harness.data_dir / "sandboxes") == []  # noqa: PTH208 - names, not paths


async def test_disk_is_a_sparse_image_only_if_the_driver_does_not_allocate(harness: DriverHarness) -> None:
    for allocates in (True, False):
        driver = OciDriver("gvisor", DriverSettings(harness.node, harness.data_dir, allocates_disks=allocates), Runsc())
        async with harness.sandbox(driver, LIMITS) as sandbox:
            image = harness.data_dir / "sandboxes" / sandbox.instance.ref / "disk.img"
            assert sandbox.instance.has_sparse_disk is not allocates
            assert (image.stat().st_blocks * 512 >= image.stat().st_size) is allocates
            assert (await sandbox.run("dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", "count=32")).exit_code == 0
            assert (await sandbox.instance.usage()).disk_bytes >= 32 * MIB
            assert (await sandbox.run("rm", "/home/user/big")).exit_code == 0
            assert (image.stat().st_blocks * 512 >= image.stat().st_size) is allocates
