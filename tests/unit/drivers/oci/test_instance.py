"""Recovery of a sandbox that a killed service left, and limits that are derived from a control group."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import cast

import pytest

from sandlot.drivers.oci.container.runtime import Crun
from sandlot.drivers.oci.gvisor.runtime import Runsc
from sandlot.drivers.oci.headroom import SLACK_BYTES
from sandlot.drivers.oci.host_resources import SandboxHostResources
from sandlot.drivers.oci.instance import OciInstance, limits_of_group
from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.drivers.oci.record import Record, Step
from sandlot.drivers.oci.runtime import Engine, EngineError, Program, RunningOciRuntime, Runtime
from sandlot.drivers.oci.snapshots.image_files import STATE
from sandlot.host.cgroup_layout import CPU_PERIOD_US, GroupLimits, Hierarchy, Layout, cpu_quota_us
from sandlot.host.cgroups import Cgroup
from sandlot.host.launcher import Started
from sandlot.host.process_identity import Identity, identify, is_exiting
from sandlot.model.errors import HostError, InvalidRequestError, SandboxEndedError
from sandlot.model.specs import MIB, Limits
from tests.support.until import until
from tests.unit.drivers.oci.snapshots.test_memory_index import index


@pytest.mark.parametrize("runtime", [Runsc(), Crun()], ids=["gvisor", "container"])
@pytest.mark.parametrize("pids", [16, 17, 64, 512, 32768])
@pytest.mark.parametrize("cpus", [0.05, 1.5, 64])
def test_limits_of_a_sandbox_follow_from_those_of_its_group(runtime: Runtime, pids: int, cpus: float) -> None:
    limits = Limits(cpus=cpus, memory_bytes=256 * MIB, disk_bytes=64 * MIB, pids=pids)
    group = runtime.group_limits(limits)
    read = GroupLimits(group.memory_bytes, cpu_quota_us(group.cpus) / CPU_PERIOD_US, group.pids)
    assert limits_of_group(read, Limits(disk_bytes=64 * MIB), runtime.group_limits) == limits


def test_limits_that_no_sandbox_has_are_refused() -> None:
    with pytest.raises(InvalidRequestError):
        limits_of_group(GroupLimits(1, 1.0, 100), Limits(), Crun().group_limits)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a sandbox."""
    with subprocess.Popen(["sleep", "600"]) as started:
        yield started
        started.kill()


def live(tmp_path: Path, runtime: Runtime, pid: int) -> tuple[OciInstance, Path]:
    """Return a sandbox whose process has this pid, and the folder of its control group, which is of version 2 and only a folder."""
    ref = "ab27-aaaaaaaaaaaaaaaa"
    group = tmp_path / "groups/sandlot/ab27" / ref
    group.mkdir(parents=True)
    for name, text in {
        "memory.max": "800000000",
        "memory.high": "max      ",
        "memory.current": "700000000",
        "memory.stat": "anon 100\nshmem 50\n",
        "pids.current": "5",
        "pids.max": "100",
        "cpu.max": "max 100000",
        "cgroup.freeze": "0",
        "cgroup.events": "populated 1\nfrozen 0\n",
    }.items():
        (group / name).write_text(text)
    layout = Layout(2, (Hierarchy(tmp_path / "groups", frozenset({"memory", "cpu", "pids"})),))
    resources = SandboxHostResources(SandboxFolder(tmp_path / "sandboxes" / ref), Cgroup(layout, PurePosixPath("/sandlot/ab27") / ref), runtime)
    record = Record(ref, Step.BOOT, "gvisor", "/usr/bin/runsc", "0" * 64, "x", Limits(memory_bytes=500_000_000))
    resources.create_folder(record)
    identity = identify(pid)
    assert identity is not None
    started = Started(sandbox=identity, keeper=Identity(1, 1))
    return OciInstance(resources, record, started, runtime, lambda: Program("runsc", Path("/bin/true"), "0" * 64, "x")), group


async def test_headroom_of_a_killed_service_is_reported_and_withdrawn(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandlot.drivers.oci.headroom.RETRY_PAUSES_S", (0.01,) * 1000)
    instance, group = live(tmp_path, Runsc(), process.pid)
    (tmp_path / "sandboxes" / instance.ref / "roomy").touch()
    await instance.recover()
    assert instance.limits.memory_bytes == 500_000_000
    assert 200_000_000 <= instance.headroom_bytes <= 300_000_000
    assert (await instance.snapshot_headroom()).least_bytes >= instance.headroom_bytes
    await until(lambda: (group / "memory.max").read_text() == str(700_000_000 + SLACK_BYTES))
    (group / "memory.current").write_text("400000000")
    await instance.wait_headroom_withdrawn()
    assert instance.headroom_bytes == 0
    assert (group / "memory.max").read_text() == "500000000"
    instance.abandon()


async def test_end_of_a_sandbox_ends_the_wait_for_its_headroom(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    instance, _ = live(tmp_path, Runsc(), process.pid)
    (tmp_path / "sandboxes" / instance.ref / "roomy").touch()
    await instance.recover()
    waiting = asyncio.ensure_future(instance.wait_headroom_withdrawn())
    await asyncio.sleep(0)
    assert not waiting.done()
    process.kill()
    await waiting
    assert instance.headroom_bytes == 0
    instance.abandon()


def below_its_limit(group: Path) -> None:
    (group / "memory.max").write_text("500000000")
    (group / "memory.current").write_text("100000000")


@dataclasses.dataclass(frozen=True, slots=True)
class SavingRunsc(Runsc):
    """A runsc whose snapshots are written by a function of the test."""

    saving: Callable[[Path], None] = lambda _image: None

    def engine(self, program: Program) -> Engine:
        del program
        return cast("Engine", self)

    async def save(self, running: RunningOciRuntime, image: Path) -> None:
        del running
        self.saving(image)


_MAIN_THREAD_ENDS = (
    "import ctypes, threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,)).start()\n"
    "print('on', flush=True)\n"
    "ctypes.CDLL(None).syscall(60, 0)\n"
)
"""A process that the kernel is ending, while its pidfd does not report the end yet: one of its threads still runs."""


async def test_second_snapshot_needs_no_headroom_for_the_garbage_of_the_first(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    def write_objects(image: Path) -> None:
        with (image / STATE).open("wb") as file:
            file.truncate(100 * MIB)

    instance, group = live(tmp_path, SavingRunsc(saving=write_objects), process.pid)
    below_its_limit(group)
    (group / "memory.stat").write_text(f"anon {800 * MIB}\nshmem 0\n")
    first = await instance.snapshot_headroom()
    await instance.snapshot(tmp_path / "image", keep_running=True, headroom_bytes=0)
    assert (await instance.snapshot_headroom()).least_bytes < first.least_bytes // 2
    instance.abandon()


async def test_snapshot_of_a_sandbox_that_is_ending_reports_the_end(tmp_path: Path) -> None:
    saving = asyncio.Event()

    def fail(_image: Path) -> None:
        saving.set()
        raise EngineError("the runtime closed its control socket")

    with subprocess.Popen([sys.executable, "-c", _MAIN_THREAD_ENDS], stdout=subprocess.PIPE) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        assert process.stdout.read(3) == b"on\n"
        await until(lambda: is_exiting(Path(f"/proc/{process.pid}/stat").read_text()))
        instance, group = live(tmp_path, SavingRunsc(saving=fail), process.pid)
        below_its_limit(group)
        snapshot = asyncio.ensure_future(instance.snapshot(tmp_path / "image", keep_running=True, headroom_bytes=0))
        await saving.wait()
        process.kill()
        with pytest.raises(SandboxEndedError) as ended:
            await snapshot
    assert "continues" not in ended.value.message


async def test_snapshot_with_a_truncated_memory_is_refused(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    def save(image: Path) -> None:
        (image / "pages_meta.img").write_bytes(index((40960, 4096)))
        (image / "pages.img").write_bytes(bytes(40960))

    instance, group = live(tmp_path, SavingRunsc(saving=save), process.pid)
    below_its_limit(group)
    for keep_running in (True, False):
        (group / "cgroup.events").write_text(f"populated 1\nfrozen {int(not keep_running)}\n")  # frozen before its processes would end
        with pytest.raises(HostError, match=r"wrote 40960 bytes of pages\.img instead of 45056.*The sandbox continues"):
            await instance.snapshot(tmp_path / "image", keep_running=keep_running, headroom_bytes=0)
    assert process.poll() is None
    assert not (tmp_path / "image").exists()
    assert not (tmp_path / "sandboxes" / instance.ref / "image.new").exists()
    instance.abandon()


async def test_paused_sandbox_that_was_thawed_for_a_snapshot_is_frozen_again(tmp_path: Path) -> None:
    ref = "ab27-aaaaaaaaaaaaaaaa"
    group = tmp_path / "groups/sandlot/ab27" / ref
    group.mkdir(parents=True)
    (group / "cgroup.freeze").write_text("0")
    (group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    layout = Layout(2, (Hierarchy(tmp_path / "groups", frozenset({"memory", "cpu", "pids"})),))
    resources = SandboxHostResources(SandboxFolder(tmp_path / "sandboxes" / ref), Cgroup(layout, PurePosixPath("/sandlot/ab27") / ref), Runsc())
    record = Record(ref, Step.BOOT, "gvisor", "/usr/bin/runsc", "0" * 64, "x", Limits())
    resources.create_folder(record)
    (resources.folder.path / "refreeze").touch()
    ended = Started(sandbox=Identity(1, 1), keeper=Identity(1, 1))
    instance = OciInstance(resources, record, ended, Runsc(), lambda: Program("runsc", Path("/bin/true"), "0" * 64, "x"))

    await instance.recover()

    assert (group / "cgroup.freeze").read_text() == "1"
    assert not (resources.folder.path / "refreeze").exists()
    await instance.wait()
