"""The driver's bookkeeping without a running sandbox. The conformance suite tests everything else."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.driver import OciDriver, container
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.host_resources import SandboxHostResources
from sandlot.drivers.oci.instance import OciInstance
from sandlot.drivers.oci.paths import SandboxFolder, new_ref, node_group
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Program
from sandlot.drivers.registry import DriverSettings
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.cgroups import Cgroup, detect_layout
from sandlot.host.process_identity import identify
from sandlot.host.programs import content_sha256
from sandlot.model.errors import InternalError, NotFoundError, UnsupportedError
from sandlot.model.ids import new_node_id
from sandlot.model.specs import MIB, Limits, RootFs, RootKind, Shape
from sandlot.testing.drivers.leftovers import leftovers
from tests.unit.drivers.oci.snapshots.test_memory_index import index

LIMITS = Limits(cpus=1.0, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=64)


@pytest.fixture
def settings(tmp_path: Path) -> DriverSettings:
    return DriverSettings(new_node_id(), tmp_path)


def driver(settings: DriverSettings, program: Path = Path("/bin/true")) -> OciDriver:
    def find() -> Program:
        return Program("runsc", program, content_sha256(program), "x")

    return OciDriver("gvisor", settings, Runsc(find))


def stray(settings: DriverSettings, *, folder: bool, group: bool) -> str:
    ref = new_ref(settings.node, settings.ids)
    if folder:
        (settings.data_dir / "sandboxes" / ref / "bundle").mkdir(parents=True)
    if group:
        Cgroup(detect_layout(), node_group(settings.node) / ref).create(GroupLimits(64 << 20, 1, 10))
    return ref


async def test_sweep_finds_a_stray_by_its_folder_or_its_group(settings: DriverSettings) -> None:
    stray(settings, folder=True, group=False)
    stray(settings, folder=False, group=True)
    kept = stray(settings, folder=True, group=True)
    assert await driver(settings).sweep(keep=[kept]) == 2
    assert {line for line in leftovers(settings.data_dir, settings.node) if kept not in line and not line.endswith(settings.node)} == set()
    assert await driver(settings).sweep(keep=()) == 1
    assert leftovers(settings.data_dir, settings.node) == ()


async def test_failed_removal_stops_no_other_one_and_is_repeated(settings: DriverSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn, easy = (stray(settings, folder=True, group=True) for _ in range(2))
    real = SandboxHostResources._end_processes  # noqa: SLF001 - made to fail, once

    async def end(self: SandboxHostResources) -> None:
        if self.ref == stubborn:
            raise InternalError("It has processes that do not end.")
        await real(self)

    swept = driver(settings)
    with monkeypatch.context() as patched:
        patched.setattr(SandboxHostResources, "_end_processes", end)
        with pytest.raises(InternalError, match="do not end"):
            await swept.sweep(keep=())
    assert not any(easy in line for line in leftovers(settings.data_dir, settings.node))
    assert await swept.sweep(keep=()) == 1
    assert leftovers(settings.data_dir, settings.node) == ()


async def test_incomplete_folder_is_swept_by_its_own_driver_only(settings: DriverSettings) -> None:
    sandboxes = settings.data_dir / "sandboxes"
    for name in (".new-gvisor-left", ".new-container-anothers"):
        (sandboxes / name).mkdir(parents=True)
    assert await driver(settings).sweep(keep=()) == 0
    # Another driver of this service may be about to finish its own.
    assert [folder.name for folder in sandboxes.iterdir()] == [".new-container-anothers"]


def test_replaced_runtime_changes_the_fingerprint(settings: DriverSettings, tmp_path: Path) -> None:
    program = tmp_path / "runsc"
    program.write_text("one")
    made = driver(settings, program)
    assert made.fingerprint() == f"runsc:{content_sha256(program)}"
    (tmp_path / "new").write_text("two")
    (tmp_path / "new").rename(program)
    assert made.fingerprint() == f"runsc:{content_sha256(program)}"


async def test_record_of_a_prepared_sandbox_says_prepare(settings: DriverSettings, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    prepared = await driver(settings).prepare(Shape(RootFs("0", tmp_path / "root"), LIMITS))
    (folder,) = (settings.data_dir / "sandboxes").iterdir()
    record = records.read(folder / "record.json")
    await prepared.destroy()
    assert record is not None
    assert record.step is Step.PREPARE


async def test_record_of_a_prepared_sandbox_names_the_kind_of_its_root(settings: DriverSettings, tmp_path: Path) -> None:
    (tmp_path / "image").touch()
    root = RootFs("0", image=tmp_path / "image", index=tmp_path / "index")
    prepared = await driver(settings).prepare(Shape(root, LIMITS))
    (folder,) = (settings.data_dir / "sandboxes").iterdir()
    record = records.read(folder / "record.json")
    await prepared.destroy()
    assert record is not None
    assert record.root_kind is RootKind.IMAGE


async def test_root_that_was_removed_is_an_error(settings: DriverSettings, tmp_path: Path) -> None:
    for root in (
        RootFs("0", tmp_path / "none"),
        RootFs("0", image=tmp_path / "none", index=tmp_path / "index"),
        RootFs("0", image=tmp_path, index=tmp_path),
    ):
        with pytest.raises(InternalError, match="does not exist"):
            await driver(settings).prepare(Shape(root, LIMITS))
    assert leftovers(settings.data_dir, settings.node) == ()


async def test_container_refuses_an_image_and_says_why(settings: DriverSettings, tmp_path: Path) -> None:
    (tmp_path / "image").touch()
    root = RootFs("0", image=tmp_path / "image", index=tmp_path / "index")
    with pytest.raises(UnsupportedError, match="kernel would have to mount the image") as refused:
        await container(settings).prepare(Shape(root, LIMITS))
    assert "gvisor" in refused.value.hint
    assert leftovers(settings.data_dir, settings.node) == ()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


@pytest.fixture
async def adoptable(settings: DriverSettings, process: subprocess.Popen[bytes]) -> AsyncIterator[str]:
    """Ref of a sandbox that an earlier service has left. Its process is not gVisor's."""
    ref = stray(settings, folder=True, group=True)
    folder, group = SandboxFolder(settings.data_dir / "sandboxes" / ref), Cgroup(detect_layout(), node_group(settings.node) / ref)
    for each in group.folders:
        (each / "cgroup.procs").write_text(str(process.pid))
    identity = identify(process.pid)
    assert identity is not None
    folder.live.write_text(f"{identity.pid} {identity.start_ticks} " * 2)
    records.write(folder.record, Record(ref, Step.BOOT, "gvisor", "/usr/bin/runsc", "0" * 64, "0", LIMITS))
    yield ref
    await driver(settings).sweep(keep=())


async def test_sandbox_is_adopted_only_if_its_record_says_boot(settings: DriverSettings, adoptable: str) -> None:
    file = SandboxFolder(settings.data_dir / "sandboxes" / adoptable).record
    record = records.read(file)
    assert record is not None
    for step in (Step.PREPARE, Step.DESTROY):
        records.write(file, replace(record, step=step))
        with pytest.raises(NotFoundError):
            await driver(settings).adopt(adoptable)
    records.write(file, record)
    await (await driver(settings).adopt(adoptable)).destroy()


async def test_adoption_that_failed_can_be_repeated(settings: DriverSettings, adoptable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = OciInstance.recover, [OSError(errno.EIO, "Input/output error")]

    async def recover(self: OciInstance) -> None:
        if failures:
            raise failures.pop()
        await real(self)

    monkeypatch.setattr(OciInstance, "recover", recover)
    adopting = driver(settings)
    with pytest.raises(OSError, match="Input/output"):
        await adopting.adopt(adoptable)
    instance = await adopting.adopt(adoptable)
    assert instance.ref == adoptable
    await instance.destroy()


async def test_headroom_of_a_restore_grows_with_the_objects_of_the_snapshot(settings: DriverSettings, tmp_path: Path) -> None:
    empty = await driver(settings).restore_headroom(tmp_path, LIMITS)
    assert (empty.least_bytes, empty.most_bytes) == (16 * MIB, 256 * MIB)
    for name, size in (("checkpoint.img", 100 * MIB), ("pages.img", 500 * MIB)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    (tmp_path / "pages_meta.img").write_bytes(index((50 * MIB,), (450 * MIB,)))
    full = await driver(settings).restore_headroom(tmp_path, LIMITS)
    assert 200 * MIB < full.least_bytes < 300 * MIB
    (tmp_path / "pages_meta.img").write_bytes(b"of another release")
    assert (await driver(settings).restore_headroom(tmp_path, LIMITS)).least_bytes == full.least_bytes + 450 * MIB
