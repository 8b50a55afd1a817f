"""What one sandbox holds: once it is being given back nothing else is written down, and nothing about it waits in the event loop."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.holding import Holding
from sandlot.drivers.oci.places import Folder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Program, content_sha256
from sandlot.drivers.registry import DriverSettings
from sandlot.host.cgroups import Cgroup
from sandlot.host.hierarchies import Hierarchy, Layout
from sandlot.model.errors import HostError, InternalError
from sandlot.model.ids import new_node_id
from sandlot.model.specs import MIB, Limits, RootFs, Shape
from tests.support.until import until

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


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What giving back fails with, one after the other."""
    failures: list[Exception] = []
    real = Holding._end_processes  # noqa: SLF001 - made to fail

    async def end(self: Holding) -> None:
        if failures:
            raise failures.pop()
        await real(self)

    monkeypatch.setattr(Holding, "_end_processes", end)
    monkeypatch.setattr("sandlot.drivers.oci.holding._RETRY_PAUSES_S", (0.01, 0.01))
    return failures


async def test_one_that_was_never_handed_out_is_given_back_by_itself(tmp_path: Path, failing: list[Exception]) -> None:
    settings = DriverSettings(new_node_id(), tmp_path)
    driver = OciDriver("gvisor", settings, Runsc(lambda: Program("runsc", Path("/bin/true"), content_sha256(Path("/bin/true")), "x")))
    failing += [InternalError("It has processes that do not end."), OSError(5, "Input/output error")]
    shape = Shape(root=RootFs(path=tmp_path, digest="0"), limits=RECORD.limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Holding, "make_folder", _fails_half_way)
        with pytest.raises(HostError, match="half-way"):
            await driver.prepare(shape)
    assert len(failing) == 1
    (left,) = (tmp_path / "sandboxes").iterdir()
    await until(lambda: not left.exists())
    assert await driver.sweep(keep=()) == 0
    assert failing == []


async def test_one_that_never_can_be_given_back_is_the_next_sweeps(holding: Holding, failing: list[Exception]) -> None:
    forgotten: list[str] = []
    holding._forget = forgotten.append  # noqa: SLF001 - as a driver says it
    failing += [OSError(5, "Input/output error")] * 3
    await holding.let_go()
    await until(lambda: forgotten == [REF])
    assert (failing, holding.folder.path.exists()) == ([], True)


_make_folder = Holding.make_folder


def _fails_half_way(self: Holding, record: Record) -> None:
    _make_folder(self, record)
    raise OSError(28, "half-way")


async def test_what_is_moved_out_of_the_folder_is_not_removed_under_it(holding: Holding) -> None:
    folder = holding.folder.path
    with holding.moving:
        giving_back = asyncio.ensure_future(holding.release())
        while (record := records.read(holding.folder.record)) is None or record.step is not Step.DESTROY:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        (folder / "image.new").mkdir()
        (folder / "image.new").rename(folder.parent / "image")
    await giving_back
    assert not folder.exists()
    assert (folder.parent / "image").is_dir()


async def test_a_draft_is_said_by_a_rename_and_not_once_it_is_given_back(holding: Holding) -> None:
    changed = replace(RECORD, limits=replace(RECORD.limits, pids=100))
    holding.draft(changed)
    assert records.read(holding.folder.record) == holding.record == RECORD
    holding.issue(changed)
    assert records.read(holding.folder.record) == holding.record == changed
    await holding.release()
    for work in (holding.draft, holding.issue):
        with pytest.raises(FileNotFoundError):
            work(RECORD)
