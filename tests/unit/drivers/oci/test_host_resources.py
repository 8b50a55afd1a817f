"""Host resources of a sandbox: no other intent is recorded once their release has begun, and a failed release is repeated."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.host_resources import SandboxHostResources
from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Program
from sandlot.drivers.registry import DriverSettings
from sandlot.host.cgroup_layout import Hierarchy, Layout
from sandlot.host.cgroups import Cgroup
from sandlot.host.programs import content_sha256
from sandlot.model.errors import HostError, InternalError
from sandlot.model.ids import new_node_id
from sandlot.model.specs import MIB, Limits, RootFs, Shape
from tests.support.until import until

REF = "ab27-aaaaaaaaaaaaaaaa"
RECORD = Record(REF, Step.BOOT, "container", "/usr/bin/crun", "0" * 64, "x", Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64))


@pytest.fixture
def resources(tmp_path: Path) -> SandboxHostResources:
    """Resources with a folder, whose control group is gone."""
    layout = Layout(2, (Hierarchy(tmp_path / "groups", frozenset({"memory", "cpu", "pids"})),))
    made = SandboxHostResources(SandboxFolder(tmp_path / "data" / "sandboxes" / REF), Cgroup(layout, PurePosixPath("/sandlot/ab27") / REF), Crun())
    made.create_folder(RECORD)
    return made


async def test_no_other_intent_is_recorded_once_the_release_has_begun(resources: SandboxHostResources, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, on = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        reached.set()
        await on.wait()

    monkeypatch.setattr(SandboxHostResources, "_end_processes", lambda _self: held())
    releasing = asyncio.ensure_future(resources.release())
    await reached.wait()
    with pytest.raises(FileNotFoundError):
        resources.write_intent(replace(RECORD, limits=replace(RECORD.limits, pids=100)))
    assert records.read(resources.folder.record) == replace(RECORD, step=Step.DESTROY)
    on.set()
    await releasing
    assert not resources.folder.path.exists()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Errors with which releases fail, one after another."""
    failures: list[Exception] = []
    real = SandboxHostResources._end_processes  # noqa: SLF001 - made to fail

    async def end(self: SandboxHostResources) -> None:
        if failures:
            raise failures.pop()
        await real(self)

    monkeypatch.setattr(SandboxHostResources, "_end_processes", end)
    monkeypatch.setattr("sandlot.drivers.oci.host_resources.RETRY_PAUSES_S", (0.01, 0.01))
    return failures


async def test_failed_release_of_a_sandbox_that_was_never_handed_out_is_repeated(tmp_path: Path, failing: list[Exception]) -> None:
    settings = DriverSettings(new_node_id(), tmp_path)
    driver = OciDriver("gvisor", settings, Runsc(lambda: Program("runsc", Path("/bin/true"), content_sha256(Path("/bin/true")), "x")))
    failing += [InternalError("It has processes that do not end."), OSError(5, "Input/output error")]
    shape = Shape(root=RootFs(digest="0", tree=tmp_path), limits=RECORD.limits)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SandboxHostResources, "create_folder", _fails_half_way)
        with pytest.raises(HostError, match="half-way"):
            await driver.prepare(shape)
    assert len(failing) == 1
    (left,) = (tmp_path / "sandboxes").iterdir()
    await until(lambda: not left.exists())
    assert await driver.sweep(keep=()) == 0
    assert failing == []


async def test_resources_that_cannot_be_released_are_left_to_the_next_sweep(resources: SandboxHostResources, failing: list[Exception]) -> None:
    forgotten: list[str] = []
    resources._forget = forgotten.append  # noqa: SLF001 - as a driver passes it
    failing += [OSError(5, "Input/output error")] * 3
    await resources.release_in_background()
    await until(lambda: forgotten == [REF])
    assert (failing, resources.folder.path.exists()) == ([], True)


_create_folder = SandboxHostResources.create_folder


def _fails_half_way(self: SandboxHostResources, record: Record) -> None:
    _create_folder(self, record)
    raise OSError(5, "half-way")


async def test_folder_is_not_removed_while_a_file_is_moved_out_of_it(resources: SandboxHostResources) -> None:
    folder = resources.folder.path
    with resources.moving:
        releasing = asyncio.ensure_future(resources.release())
        while (record := records.read(resources.folder.record)) is None or record.step is not Step.DESTROY:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        (folder / "image.new").mkdir()
        (folder / "image.new").rename(folder.parent / "image")
    await releasing
    assert not folder.exists()
    assert (folder.parent / "image").is_dir()


async def test_staged_intent_is_committed_by_a_rename_and_never_after_the_release(resources: SandboxHostResources) -> None:
    changed = replace(RECORD, limits=replace(RECORD.limits, pids=100))
    resources.stage_intent(changed)
    assert records.read(resources.folder.record) == resources.record == RECORD
    resources.commit_intent(changed)
    assert records.read(resources.folder.record) == resources.record == changed
    await resources.release()
    for work in (resources.stage_intent, resources.commit_intent):
        with pytest.raises(FileNotFoundError):
            work(RECORD)
