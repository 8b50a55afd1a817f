"""What is gVisor's own about snapshots: its builds, its processes after a restore, and a host whose disk is full."""

# ruff: noqa: ASYNC240
from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.plan import group_limits
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.oci.paths import SandboxFolder, runtimes_folder, sandboxes_folder
from sandlot.drivers.oci.probe import PROBE_LIMITS, make_tiny_root
from sandlot.drivers.oci.runtime import EngineError, Program, RunningOciRuntime, content_sha256
from sandlot.drivers.oci.snapshots.control_socket import ControlEngine
from sandlot.drivers.registry import DriverSettings
from sandlot.images.store import ImageStore, cache_from
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver, ExitReason, Instance
from sandlot.model.specs import MIB, Limits, ProcessSpec, User
from sandlot.testing.bench import SMALL, Bench, meet
from sandlot.testing.traces import settled, traces
from tests.support import oldrunsc
from tests.support.onhost import group, processes, status

Locate = Callable[[], Program]
_HOLD = "import os, sys, time\nheld = os.urandom(1 << 20) * int(sys.argv[1])\nprint('held', flush=True)\ntime.sleep(600)"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench("gvisor", root=ImageStore(cache_from(os.environ)).root("base"), node=new_node_id(), data_dir=tmp_path / "state")
    yield made
    assert settled(lambda: left(made)) == []


@pytest.fixture(params=["control socket", "command line"])
def engine(request: pytest.FixtureRequest) -> Locate:
    """The program, told one way or the other."""
    return lambda: dataclasses.replace(find_runsc(), has_control=request.param == "control socket")


def left(bench: Bench) -> list[str]:
    """What is left of its sandboxes. A test's own mount may be in the private view of another sandbox of this machine, for as long as that lives."""
    return [
        line for line in traces(bench.data_dir, bench.node) if "- tmpfs" not in line and not (line.startswith("process") and is_others(line, bench))
    ]


def is_others(line: str, bench: Bench) -> bool:
    try:
        return f"/{bench.node}/" not in Path("/proc", line.split()[1], "cgroup").read_text()
    except OSError:
        return True


def place(bench: Bench, name: str = "one") -> Path:
    return bench.data_dir / "saved" / name / "image"


async def restore(bench: Bench, driver: Driver, snapshot: Path, limits: Limits = SMALL) -> Instance:
    prepared = await driver.prepare(bench.shape(limits), snapshot=snapshot)
    return await prepared.restore(snapshot, bench.spec(limits))


async def test_what_was_restored_is_confined_like_any_other(bench: Bench) -> None:
    driver = bench.start()
    async with bench.sandbox(driver) as source:
        await source.link.checkpoint(armed=True)
        await source.instance.snapshot(place(bench), keep_running=True)
    prepared = await driver.prepare(bench.shape())
    await prepared.warm()
    instance = await prepared.restore(place(bench), bench.spec())
    async with meet(instance):
        started, members = processes(bench, instance), group(bench, instance).pids()
        assert {started.sandbox.pid, started.keeper.pid} <= members
        for pid in members - {started.keeper.pid}:
            facts, proc = status(pid), Path(f"/proc/{pid}")
            assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
            assert int((proc / "oom_score_adj").read_text()) in ({1000} if pid == started.sandbox.pid else {1, 1000})
            assert (proc / "environ").read_bytes() == b""
        kernel = status(started.sandbox.pid)
        assert set(kernel["Uid"].split()) == {"65534"}
        assert int(kernel["CapEff"], 16) == 0
        # Nothing of the images stays open in a process that runs the tenant's system calls.
        open_files = [os.readlink(entry) for entry in Path(f"/proc/{started.sandbox.pid}/fd").iterdir()]  # noqa: PTH115 - targets that are no paths
        assert not [file for file in open_files if "saved" in file or "image" in file]
    assert limits_of(bench, instance) == {str(SMALL.memory_bytes), "100000"}
    await instance.destroy()


def limits_of(bench: Bench, instance: Instance) -> set[str]:
    """The memory and the processor time that its group gets."""
    files = ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us")
    return {(folder / file).read_text().strip() for folder in group(bench, instance).folders for file in files if (folder / file).exists()}


async def test_what_the_service_has_not_read_yet_is_not_lost_to_a_snapshot(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # gVisor empties every pipe that it can read when it writes its memory; and a service that does something else meanwhile reads nothing.
    save = ControlEngine.save

    async def alone(engine: ControlEngine, live: RunningOciRuntime, image: Path) -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - nobody else is to run
        saving = threading.Thread(target=lambda: asyncio.run(save(engine, live, image)))
        saving.start()
        saving.join()

    monkeypatch.setattr(ControlEngine, "save", alone)
    driver = bench.start()
    async with bench.sandbox(driver) as source:
        count = "for n in $(seq 1 100); do echo line $n; sleep 0.01; done"
        counting = asyncio.create_task(source.run("sh", "-c", count, user=User.ROOT))
        await asyncio.sleep(0.3)
        await source.link.checkpoint(armed=True)
        await source.instance.snapshot(place(bench), keep_running=True)
        await source.link.checkpoint(armed=False)
        assert (await counting).stdout == "".join(f"line {n}\n" for n in range(1, 101))


async def test_one_that_uses_nearly_all_of_its_memory_is_written_and_restored(bench: Bench) -> None:
    driver = bench.start()
    async with bench.sandbox(driver) as source:
        hold = await source.link.processes.start(ProcessSpec(argv=("python3", "-c", _HOLD, "170"), user=User.ROOT, cwd="/", timeout_s=None))
        async for _ in hold:
            break
        await source.link.checkpoint(armed=True)
        await source.instance.snapshot(place(bench), keep_running=True)
        await source.link.checkpoint(armed=False)
        # The limit is as it was once what the writing took is given back.
        assert (await source.run("echo", "on")).stdout == "on\n"
        while limits_of(bench, source.instance) != {str(SMALL.memory_bytes), "100000"}:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    instance = await restore(bench, driver, place(bench))
    async with meet(instance) as subject:
        held = await subject.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '^170$'", user=User.ROOT)
        assert held.stdout == "1\n"
    assert limits_of(bench, instance) == {str(SMALL.memory_bytes), "100000"}
    await instance.destroy()


async def test_what_a_killed_service_lent_for_a_snapshot_is_taken_back(bench: Bench) -> None:
    instance = await bench.boot(bench.start())
    folder = SandboxFolder(sandboxes_folder(bench.data_dir) / instance.ref)
    lent = group_limits(dataclasses.replace(SMALL, memory_bytes=2 * SMALL.memory_bytes, cpus=2.0))
    group(bench, instance).change(lent)
    folder.image.mkdir()
    async with meet(instance) as subject:
        hold = await subject.link.processes.start(ProcessSpec(argv=("python3", "-c", _HOLD, "300"), user=User.ROOT, cwd="/", timeout_s=None))
        async for _ in hold:
            break
    adopted = await bench.start().adopt(instance.ref)
    assert adopted.limits == SMALL
    assert not folder.image.exists()
    assert str(lent.memory_bytes) in limits_of(bench, adopted)
    async with meet(adopted) as subject:
        assert (await subject.run("pkill", "-f", "time.sleep", user=User.ROOT)).code == 0
        while str(SMALL.memory_bytes) not in limits_of(bench, adopted):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    while folder.roomy.exists():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    await adopted.destroy()
    await instance.destroy()


@pytest.fixture
def small_disk(bench: Bench) -> Iterator[Path]:
    """A state directory on a file system of its own."""
    bench.data_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m,mode=0700", "tmpfs", bench.data_dir], check=True)
    yield bench.data_dir
    subprocess.run(["umount", bench.data_dir], check=True)


async def test_a_full_disk_refuses_the_snapshot_and_the_sandbox_goes_on(bench: Bench, small_disk: Path, engine: Locate) -> None:
    driver = OciDriver("gvisor", DriverSettings(bench.node, bench.data_dir), Runsc(engine))
    limits = dataclasses.replace(SMALL, disk_bytes=16 * MIB)
    async with bench.sandbox(driver, limits) as source:
        await source.run("sh", "-c", "echo kept > /home/user/file")
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        with (small_disk / "filler").open("wb") as filler:
            filler.write(bytes(free - 4 * MIB))
        for keep_running in (True, False):
            with pytest.raises(LimitError, match="disk of the host is full") as full:
                await source.instance.snapshot(place(bench), keep_running=keep_running)
            assert "SANDLOT_DATA_DIR" in full.value.hint
            assert not place(bench).exists()
            assert (await source.run("cat", "/home/user/file")).stdout == "kept\n"
        assert sorted(file.name for file in (bench.data_dir / "sandboxes" / source.instance.ref).glob("image*")) == []
        (small_disk / "filler").unlink()
        await source.link.checkpoint(armed=True)
        await source.instance.snapshot(place(bench), keep_running=False)
    instance = await restore(bench, driver, place(bench), limits)
    async with meet(instance, limits) as subject:
        assert (await subject.run("cat", "/home/user/file")).stdout == "kept\n"
    await instance.destroy()


async def test_what_the_runtime_refuses_leaves_the_sandbox_as_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ControlEngine.save

    async def save(self: ControlEngine, live: RunningOciRuntime, image: Path) -> None:
        await real(self, live, image)
        raise EngineError("encoding error at object x")

    async with bench.sandbox() as source:
        with monkeypatch.context() as patched:
            patched.setattr(ControlEngine, "save", save)
            for is_paused, keep_running in itertools.product((True, False), repeat=2):
                if is_paused:
                    await source.instance.pause()
                with pytest.raises(HostError, match="encoding error at object x"):
                    await source.instance.snapshot(place(bench), keep_running=keep_running)
                assert group(bench, source.instance).is_frozen() == is_paused
                await source.instance.resume()
                assert (await source.run("echo", "on")).stdout == "on\n"
        assert not place(bench).exists()
        folder = SandboxFolder(sandboxes_folder(bench.data_dir) / source.instance.ref)
        assert not folder.image.exists()
        assert not folder.refreeze.exists()


async def test_a_snapshot_may_appear_on_another_file_system(bench: Bench, small_disk: Path) -> None:
    del small_disk
    driver, beside = bench.start(), bench.data_dir.parent / "saved" / "image"
    async with bench.sandbox(driver) as source:
        await source.instance.snapshot(beside, keep_running=False)
    assert driver.restorable(beside).ok
    assert [file.name for file in beside.parent.iterdir()] == ["image"]
    assert {oct(file.stat().st_mode & 0o777) for file in beside.iterdir()} == {"0o600"}


# ------------------------------------------------------------------------------------------------------------- builds


@dataclasses.dataclass
class Builds:
    """A driver whose runtime is replaced under it, as a package is, and a root with nothing but the probe's program."""

    bench: Bench
    current: Program

    def start(self) -> OciDriver:
        return OciDriver("gvisor", DriverSettings(self.bench.node, self.bench.data_dir), oldrunsc.EitherRunsc(lambda: self.current))

    async def write(self, driver: Driver, into: Path) -> None:
        instance = await (await driver.prepare(self.bench.shape(PROBE_LIMITS))).boot(self.bench.spec(PROBE_LIMITS))
        stream = await instance.connect()
        assert await stream.receive(16) == b"ok\n"
        await stream.aclose()
        await instance.snapshot(into, keep_running=False)
        await instance.destroy()

    async def goes_on(self, driver: Driver, snapshot: Path) -> bool:
        """Whether what waited for a byte when it was written ends as it should once it is given one."""
        instance = await restore(self.bench, driver, snapshot, PROBE_LIMITS)
        stream = await instance.connect()
        stream.try_send(b"x")
        end = await instance.wait()
        await stream.aclose()
        await instance.destroy()
        return end.reason is ExitReason.EXITED


@pytest.fixture
def builds(bench: Bench, tmp_path: Path) -> Builds:
    return Builds(dataclasses.replace(bench, root=make_tiny_root(tmp_path / "root")), find_runsc())


@pytest.mark.may_skip("this machine's package archive may not have Debian bookworm's runsc")
async def test_a_snapshot_is_restored_by_the_build_that_wrote_it(builds: Builds, tmp_path: Path) -> None:
    old = await asyncio.to_thread(oldrunsc.download, tmp_path / "old")
    if old is None:
        pytest.skip(f"apt-get download runsc={oldrunsc.VERSION} does not work here")
    bench, new, kept = builds.bench, builds.current, runtimes_folder(builds.bench.data_dir)
    builds.current = old
    before = builds.start()
    await builds.write(before, place(bench, "old"))
    # The package is upgraded, and the program that wrote the snapshot is gone from where it was.
    shutil.rmtree(tmp_path / "old")
    builds.current = new
    for driver in (before, builds.start()):
        assert await builds.goes_on(driver, place(bench, "old"))
    await builds.write(driver, place(bench, "new"))
    assert await builds.goes_on(driver, place(bench, "new"))
    # Never by another: a blank that was made for the other build refuses it, by name.
    for made_for, refused, by in (("new", "old", new), ("old", "new", old)):
        prepared = await driver.prepare(bench.shape(PROBE_LIMITS), snapshot=place(bench, made_for))
        with pytest.raises(ConflictError, match=f"another build of runsc .*and this is {by.sha256[:12]}") as mismatch:
            await prepared.restore(place(bench, refused), bench.spec(PROBE_LIMITS))
        assert mismatch.value.code is ErrorCode.SNAPSHOT_UNUSABLE
        await prepared.destroy()
    # Kept as long as something needs it.
    await driver.sweep(())
    assert {folder.name for folder in kept.iterdir()} == {old.sha256, new.sha256}
    shutil.rmtree(place(bench, "old").parent)
    await driver.sweep(())
    assert {folder.name for folder in kept.iterdir()} == {new.sha256}


async def test_a_build_that_was_lost_or_altered_is_not_run(builds: Builds) -> None:
    bench, kept = builds.bench, runtimes_folder(builds.bench.data_dir) / builds.current.sha256 / "runsc"
    await builds.write(builds.start(), place(bench))
    builds.current = dataclasses.replace(builds.current, sha256="0" * 64)  # whatever is installed now
    with kept.open("r+b") as program:
        program.seek(1 << 20)
        program.write(b"another")
    driver = builds.start()
    assert "altered" in driver.restorable(place(bench)).reason
    with pytest.raises(ConflictError, match="altered"):
        await driver.prepare(bench.shape(PROBE_LIMITS), snapshot=place(bench))
    shutil.rmtree(kept.parent)
    assert "not kept" in driver.restorable(place(bench)).reason


async def test_a_sandbox_outlives_the_build_that_it_runs_on(builds: Builds, tmp_path: Path) -> None:
    bench, installed = builds.bench, tmp_path / "installed"
    shutil.copy(builds.current.path, installed)
    builds.current = dataclasses.replace(builds.current, path=installed)
    driver = builds.start()
    instance = await (await driver.prepare(bench.shape(PROBE_LIMITS))).boot(bench.spec(PROBE_LIMITS))
    installed.unlink()
    builds.current = dataclasses.replace(builds.current, path=Path("/bin/true"), sha256=content_sha256(Path("/bin/true")))
    after = builds.start()
    await after.sweep(keep=[instance.ref])
    adopted = await after.adopt(instance.ref)
    await adopted.snapshot(place(bench), keep_running=False)
    await adopted.destroy()
    await instance.destroy()
    assert await builds.goes_on(after, place(bench))
