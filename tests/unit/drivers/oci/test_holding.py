"""What one sandbox holds: once it is being given back nothing else is written down, and nothing about it waits in the event loop."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.holding import Holding
from sandlot.drivers.oci.places import Folder
from sandlot.drivers.oci.record import Record, Step
from sandlot.host import disks
from sandlot.host.cgroups import Cgroup
from sandlot.host.hierarchies import Hierarchy, Layout
from sandlot.model.specs import MIB, Limits

REF = "ab27-aaaaaaaaaaaaaaaa"
RECORD = Record(REF, Step.BOOT, "container", "/usr/bin/crun", "0" * 64, "x", Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64))


@pytest.fixture
def holding(tmp_path: Path) -> Holding:
    """With a folder, and a control group that is gone."""
    layout = Layout(2, (Hierarchy(tmp_path / "groups", frozenset({"memory", "cpu", "pids"})),))
    made = Holding(Folder(tmp_path / "data" / "sandboxes" / REF), Cgroup(layout, PurePosixPath("/sandlot/ab27") / REF))
    made.make_folder(RECORD)
    return made


async def test_what_is_being_given_back_stays_so(holding: Holding, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, on = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        reached.set()
        await on.wait()

    monkeypatch.setattr(Holding, "_end_processes", lambda _self: held())
    giving_back = asyncio.ensure_future(holding.release())
    await reached.wait()
    with pytest.raises(FileNotFoundError):
        holding.intend(replace(RECORD, limits=replace(RECORD.limits, pids=100)))
    assert records.read(holding.folder.record) == replace(RECORD, step=Step.DESTROY)
    on.set()
    await giving_back
    assert not holding.folder.path.exists()


async def test_the_hosts_loop_devices_are_looked_through_in_a_thread(holding: Holding, monkeypatch: pytest.MonkeyPatch) -> None:
    holding.folder.disk_image.touch()
    seen: list[threading.Thread] = []

    def look(_folder: Path) -> dict[Path, Path]:
        seen.append(threading.current_thread())
        return {}

    monkeypatch.setattr(disks, "loops_below", look)
    await holding.release()
    assert seen
    assert threading.main_thread() not in seen
