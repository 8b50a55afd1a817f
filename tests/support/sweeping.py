"""What a test's service left alive, removed: sandboxes outlive their service, and a test that failed must not leave any."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from sandlot.host.volume_disks import VolumeFiles
from sandlot.server.composition import own_drivers
from sandlot.server.data_dir import NODE
from sandlot.server.data_dir import node as node_of
from sandlot.server.settings import Settings


def sweep(data_dir: Path) -> int:
    """Remove every sandbox of a state directory whose service has ended; how many there were."""
    if not (data_dir / NODE).exists():
        return 0

    async def work() -> int:
        drivers = own_drivers(replace(Settings(), data_dir=data_dir), node_of(data_dir))
        return sum([await driver.sweep(keep=()) for driver in drivers.values()])

    swept = asyncio.run(work())
    files = VolumeFiles(replace(Settings(), data_dir=data_dir).volumes)
    for each in files.ids():
        files.remove(each)
    return swept
