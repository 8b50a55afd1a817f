"""What is gVisor's own about snapshots: its builds, its processes after a restore, and a host whose disk is full."""

# ruff: noqa: ASYNC240
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.plan import group_limits
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.oci.paths import SandboxFolder, runtimes_folder, sandboxes_folder
from sandlot.drivers.oci.probe import PROBE_LIMITS, make_tiny_root
from sandlot.drivers.oci.runtime import EngineError, Program, RunningOciRuntime
from sandlot.drivers.oci.snapshots import image_files
from sandlot.drivers.oci.snapshots.command_line import CliEngine
from sandlot.drivers.oci.snapshots.control_socket import ControlEngine
from sandlot.drivers.registry import DriverSettings
from sandlot.host.programs import content_sha256
from sandlot.images.store import ImageStore
from sandlot.model.errors import ConflictError, ErrorCode, HostError, LimitError, SandboxEndedError
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Driver, ExitReason, Instance
from sandlot.model.specs import MIB, Limits, ProcessSpec, User
from sandlot.testing.drivers.harness import SMALL_LIMITS, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot
from sandlot.testing.drivers.leftovers import leftovers, wait_until_empty
from tests.support import oldrunsc
from tests.support.cache import CACHE_DIR
from tests.support.onhost import group, processes, status

Locate = Callable[[], Program]
_MANY_FILES = "import os, sys\nos.makedirs('/home/user/many')\nfor n in range(int(sys.argv[1])): open(f'/home/user/many/{n}', 'w').write('x' * 200)"
_GRAB = """
import os, time
held = [os.urandom(1 << 20) * 150]
print("held", flush=True)
last = time.monotonic()
while time.monotonic() - last < 0.1:
    last = time.monotonic()
    time.sleep(0.01)
while len(held) < 250:
    held.append(os.urandom(1 << 20))
time.sleep(600)
"""
"""Hold 150 MiB, notice the stop of time of a snapshot, and take 250 MiB more at once."""
_HOLD = "import os, sys, time\nheld = os.urandom(1 << 20) * int(sys.argv[1])\nprint('held', flush=True)\ntime.sleep(600)"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[DriverHarness]:
    made = DriverHarness("gvisor", root=ImageStore(CACHE_DIR).root("base"), node=new_node_id(), data_dir=tmp_path / "state")
    yield made
    assert wait_until_empty(lambda: left(made)) == []


@pytest.fixture(params=["control socket", "command line"])
def engine(request: pytest.FixtureRequest) -> Locate:
    """The program, told one way or the other."""
    return lambda: dataclasses.replace(find_runsc(), has_control=request.param == "control socket")


def left(harness: DriverHarness) -> list[str]:
    """What is left of its sandboxes. A test's own mount may be in the private view of another sandbox of this machine, for as long as that lives."""
    return [
        line
        for line in leftovers(harness.data_dir, harness.node)
        if "- tmpfs" not in line and not (line.startswith("process") and is_others(line, harness))
    ]


def is_others(line: str, harness: DriverHarness) -> bool:
    try:
        return f"/{harness.node}/" not in Path("/proc", line.split()[1], "cgroup").read_text()
    except OSError:
        return True


def place(harness: DriverHarness, name: str = "one") -> Path:
    return harness.data_dir / "saved" / name / "image"


async def restore(harness: DriverHarness, driver: Driver, snapshot: Path, limits: Limits = SMALL_LIMITS) -> Instance:
    prepared = await driver.prepare(harness.shape(limits), snapshot=snapshot)
    return await restore_snapshot(driver, prepared, snapshot, harness.spec(limits))


async def test_restored_sandbox_is_confined_like_any_other(harness: DriverHarness) -> None:
    driver = harness.new_driver()
    async with harness.sandbox(driver) as source:
        await source.link.checkpoint(armed=True)
        await take_snapshot(source.instance, place(harness), keep_running=True)
    prepared = await driver.prepare(harness.shape())
    await prepared.warm()
    instance = await restore_snapshot(driver, prepared, place(harness), harness.spec())
    async with connect_sandbox(instance):
        started, members = processes(harness, instance), group(harness, instance).pids()
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
    assert limits_of(harness, instance) == {str(SMALL_LIMITS.memory_bytes), "100000"}
    await instance.destroy()


def limits_of(harness: DriverHarness, instance: Instance) -> set[str]:
    """The memory and the processor time that its group gets."""
    files = ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us")
    return {(folder / file).read_text().strip() for folder in group(harness, instance).folders for file in files if (folder / file).exists()}


async def test_what_the_service_has_not_read_yet_is_not_lost_to_a_snapshot(harness: DriverHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    # gVisor empties every pipe that it can read when it writes its memory; and a service that does something else meanwhile reads nothing.
    save = ControlEngine.save

    async def alone(engine: ControlEngine, live: RunningOciRuntime, image: Path) -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - nobody else is to run
        saving = threading.Thread(target=lambda: asyncio.run(save(engine, live, image)))
        saving.start()
        saving.join()

    monkeypatch.setattr(ControlEngine, "save", alone)
    driver = harness.new_driver()
    async with harness.sandbox(driver) as source:
        count = "for n in $(seq 1 100); do echo line $n; sleep 0.01; done"
        counting = asyncio.create_task(source.run("sh", "-c", count, user=User.ROOT))
        await asyncio.sleep(0.3)
        await source.link.checkpoint(armed=True)
        await take_snapshot(source.instance, place(harness), keep_running=True)
        await source.link.checkpoint(armed=False)
        assert (await counting).stdout == "".join(f"line {n}\n" for n in range(1, 101))


async def until_small_limits(harness: DriverHarness, instance: Instance) -> None:
    """Wait until the limits that were raised for a snapshot are as recorded: they are lowered in the background if too much memory is in use."""
    while limits_of(harness, instance) != {str(SMALL_LIMITS.memory_bytes), "100000"}:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0.05)


async def test_sandbox_that_uses_nearly_all_of_its_memory_is_saved_and_restored(harness: DriverHarness) -> None:
    driver = harness.new_driver()
    async with harness.sandbox(driver) as source:
        hold = await source.link.processes.start(ProcessSpec(argv=("python3", "-c", _HOLD, "170"), user=User.ROOT, cwd="/", timeout_s=None))
        async for _ in hold:
            break
        await source.link.checkpoint(armed=True)
        await take_snapshot(source.instance, place(harness), keep_running=True)
        await source.link.checkpoint(armed=False)
        # The limit is as it was once what the writing took is given back.
        assert (await source.run("echo", "on")).stdout == "on\n"
        await until_small_limits(harness, source.instance)
    instance = await restore(harness, driver, place(harness))
    async with connect_sandbox(instance) as sandbox:
        held = await sandbox.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -c '^170$'", user=User.ROOT)
        assert held.stdout == "1\n"
        await until_small_limits(harness, instance)
    await instance.destroy()


async def test_what_a_killed_service_lent_for_a_snapshot_is_taken_back(harness: DriverHarness) -> None:
    instance = await harness.boot(harness.new_driver())
    folder = SandboxFolder(sandboxes_folder(harness.data_dir) / instance.ref)
    lent = group_limits(dataclasses.replace(SMALL_LIMITS, memory_bytes=2 * SMALL_LIMITS.memory_bytes, cpus=2.0))
    group(harness, instance).change(lent)
    folder.image.mkdir()
    folder.roomy.touch()
    async with connect_sandbox(instance) as sandbox:
        hold = await sandbox.link.processes.start(ProcessSpec(argv=("python3", "-c", _HOLD, "300"), user=User.ROOT, cwd="/", timeout_s=None))
        async for _ in hold:
            break
    adopted = await harness.new_driver().adopt(instance.ref)
    assert adopted.limits == SMALL_LIMITS
    assert not folder.image.exists()
    assert str(lent.memory_bytes) in limits_of(harness, adopted)
    async with connect_sandbox(adopted) as sandbox:
        assert (await sandbox.run("pkill", "-f", "time.sleep", user=User.ROOT)).exit_code == 0
        while str(SMALL_LIMITS.memory_bytes) not in limits_of(harness, adopted):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    while folder.roomy.exists():  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)
    await adopted.destroy()
    await instance.destroy()


@pytest.fixture
def small_disk(harness: DriverHarness) -> Iterator[Path]:
    """A state directory on a file system of its own."""
    harness.data_dir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m,mode=0700", "tmpfs", harness.data_dir], check=True)
    yield harness.data_dir
    subprocess.run(["umount", harness.data_dir], check=True)


async def test_snapshot_on_a_full_disk_is_refused_and_the_sandbox_continues(harness: DriverHarness, small_disk: Path, engine: Locate) -> None:
    driver = OciDriver("gvisor", DriverSettings(harness.node, harness.data_dir), Runsc(engine))
    limits = dataclasses.replace(SMALL_LIMITS, disk_bytes=16 * MIB)
    async with harness.sandbox(driver, limits) as source:
        await source.run("sh", "-c", "echo kept > /home/user/file")
        free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
        with (small_disk / "filler").open("wb") as filler:
            filler.write(bytes(free - 4 * MIB))
        for keep_running in (True, False):
            with pytest.raises(LimitError, match="disk of the host is full") as full:
                await take_snapshot(source.instance, place(harness), keep_running=keep_running)
            assert "SANDLOT_DATA_DIR" in full.value.hint
            assert not place(harness).exists()
            assert (await source.run("cat", "/home/user/file")).stdout == "kept\n"
        assert sorted(file.name for file in (harness.data_dir / "sandboxes" / source.instance.ref).glob("image*")) == []
        (small_disk / "filler").unlink()
        await source.link.checkpoint(armed=True)
        await take_snapshot(source.instance, place(harness), keep_running=False)
    instance = await restore(harness, driver, place(harness), limits)
    async with connect_sandbox(instance, limits) as sandbox:
        assert (await sandbox.run("cat", "/home/user/file")).stdout == "kept\n"
    await instance.destroy()


async def test_what_the_runtime_refuses_leaves_the_sandbox_as_it_was(harness: DriverHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ControlEngine.save

    async def save(self: ControlEngine, live: RunningOciRuntime, image: Path) -> None:
        await real(self, live, image)
        raise EngineError("encoding error at object x")

    async with harness.sandbox() as source:
        with monkeypatch.context() as patched:
            patched.setattr(ControlEngine, "save", save)
            for is_paused, keep_running in itertools.product((True, False), repeat=2):
                if is_paused:
                    await source.instance.pause()
                with pytest.raises(HostError, match="encoding error at object x"):
                    await take_snapshot(source.instance, place(harness), keep_running=keep_running)
                assert group(harness, source.instance).is_frozen() == is_paused
                await source.instance.resume()
                assert (await source.run("echo", "on")).stdout == "on\n"
        assert not place(harness).exists()
        folder = SandboxFolder(sandboxes_folder(harness.data_dir) / source.instance.ref)
        assert not folder.image.exists()
        assert not folder.refreeze.exists()


async def test_snapshot_whose_memory_the_runtime_truncated_is_refused_and_the_sandbox_continues(
    harness: DriverHarness, engine: Locate, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = OciDriver("gvisor", DriverSettings(harness.node, harness.data_dir), Runsc(engine))

    def truncating(save: Callable[[Any, RunningOciRuntime, Path], Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
        async def save_less(self: object, running: RunningOciRuntime, image: Path) -> None:
            await save(self, running, image)
            os.truncate(image / "pages.img", (image / "pages.img").stat().st_size - MIB)

        return save_less

    async with harness.sandbox(driver) as source:
        await source.run("sh", "-c", "echo kept > /home/user/file")
        with monkeypatch.context() as patched:
            for each in (ControlEngine, CliEngine):
                patched.setattr(each, "save", truncating(each.save))
            for keep_running in (True, False):
                with pytest.raises(HostError, match=r"bytes of pages\.img instead of .*The sandbox continues"):
                    await take_snapshot(source.instance, place(harness), keep_running=keep_running)
                assert not place(harness).exists()
                assert (await source.run("cat", "/home/user/file")).stdout == "kept\n"
        await source.link.checkpoint(armed=True)
        await take_snapshot(source.instance, place(harness), keep_running=False)
    assert image_files.check_memory(place(harness)), "this release's format is known"


async def test_second_snapshot_right_after_the_first_has_its_own_headroom(harness: DriverHarness) -> None:
    limits, driver = dataclasses.replace(SMALL_LIMITS, disk_bytes=256 * MIB), harness.new_driver()
    async with harness.sandbox(driver, limits) as source:
        made = await source.python(_MANY_FILES, "25000")
        assert made.exit_code == 0, made.stderr
        for name in ("first", "second"):
            await source.link.checkpoint(armed=True)
            await take_snapshot(source.instance, place(harness, name), keep_running=True)
            await source.link.checkpoint(armed=False)
        assert (await source.run("sh", "-c", "ls /home/user/many | wc -l")).stdout == "25000\n"
    instance = await restore(harness, driver, place(harness, "second"), limits)
    async with connect_sandbox(instance, limits) as sandbox:
        assert (await sandbox.run("sh", "-c", "ls /home/user/many | wc -l")).stdout == "25000\n"
    await instance.destroy()


async def test_tenant_that_takes_the_headroom_of_a_snapshot_keeps_no_more_than_it_has(harness: DriverHarness) -> None:
    driver = harness.new_driver()
    async with harness.sandbox(driver) as source:
        hold = await source.link.processes.start(ProcessSpec(argv=("python3", "-c", _GRAB), user=User.ROOT, cwd="/", timeout_s=None))
        async for _ in hold:
            break
        await source.link.checkpoint(armed=True)
        with contextlib.suppress(SandboxEndedError):  # the tenant took more than there was
            await take_snapshot(source.instance, place(harness), keep_running=True)
        steps = [source.instance.headroom_bytes]
        for _ in range(100):
            await asyncio.sleep(0.02)
            steps.append(source.instance.headroom_bytes)
        assert steps == sorted(steps, reverse=True)


async def test_a_snapshot_may_appear_on_another_file_system(harness: DriverHarness, small_disk: Path) -> None:
    del small_disk
    driver, beside = harness.new_driver(), harness.data_dir.parent / "saved" / "image"
    async with harness.sandbox(driver) as source:
        await take_snapshot(source.instance, beside, keep_running=False)
    assert driver.restorable(beside).ok
    assert [file.name for file in beside.parent.iterdir()] == ["image"]
    assert {oct(file.stat().st_mode & 0o777) for file in beside.iterdir()} == {"0o600"}


# ------------------------------------------------------------------------------------------------------------- builds


@dataclasses.dataclass
class Builds:
    """A driver whose runtime is replaced under it, as a package is, and a root with nothing but the probe's program."""

    harness: DriverHarness
    current: Program

    def start(self) -> OciDriver:
        return OciDriver("gvisor", DriverSettings(self.harness.node, self.harness.data_dir), oldrunsc.EitherRunsc(lambda: self.current))

    async def write(self, driver: Driver, into: Path) -> None:
        instance = await (await driver.prepare(self.harness.shape(PROBE_LIMITS))).boot(self.harness.spec(PROBE_LIMITS))
        stream = await instance.connect()
        assert await stream.receive(16) == b"ok\n"
        await stream.aclose()
        await take_snapshot(instance, into, keep_running=False)
        await instance.destroy()

    async def goes_on(self, driver: Driver, snapshot: Path) -> bool:
        """Whether what waited for a byte when it was written ends as it should once it is given one."""
        instance = await restore(self.harness, driver, snapshot, PROBE_LIMITS)
        stream = await instance.connect()
        stream.try_send(b"x")
        end = await instance.wait()
        await stream.aclose()
        await instance.destroy()
        return end.reason is ExitReason.EXITED


@pytest.fixture
def builds(harness: DriverHarness, tmp_path: Path) -> Builds:
    return Builds(dataclasses.replace(harness, root=make_tiny_root(tmp_path / "root")), find_runsc())


@pytest.mark.may_skip("this machine's package archive may not have Debian bookworm's runsc")
async def test_snapshot_is_restored_by_the_build_that_wrote_it(builds: Builds, tmp_path: Path) -> None:
    old = await asyncio.to_thread(oldrunsc.download, tmp_path / "old")
    if old is None:
        pytest.skip(f"apt-get download runsc={oldrunsc.VERSION} does not work here")
    harness, new, kept = builds.harness, builds.current, runtimes_folder(builds.harness.data_dir)
    builds.current = old
    before = builds.start()
    await builds.write(before, place(harness, "old"))
    # The package is upgraded, and the program that wrote the snapshot is gone from where it was.
    shutil.rmtree(tmp_path / "old")
    builds.current = new
    for driver in (before, builds.start()):
        assert await builds.goes_on(driver, place(harness, "old"))
    await builds.write(driver, place(harness, "new"))
    assert await builds.goes_on(driver, place(harness, "new"))
    # Never by another: a blank that was made for the other build refuses it, by name.
    for made_for, refused, by in (("new", "old", new), ("old", "new", old)):
        prepared = await driver.prepare(harness.shape(PROBE_LIMITS), snapshot=place(harness, made_for))
        with pytest.raises(ConflictError, match=f"another build of runsc .*but this sandbox uses build {by.sha256[:12]}") as mismatch:
            await restore_snapshot(driver, prepared, place(harness, refused), harness.spec(PROBE_LIMITS))
        assert mismatch.value.code is ErrorCode.SNAPSHOT_UNUSABLE
        await prepared.destroy()
    # Kept as long as something needs it.
    await driver.sweep(())
    assert {folder.name for folder in kept.glob("[!.]*")} == {old.sha256, new.sha256}
    shutil.rmtree(place(harness, "old").parent)
    await driver.sweep(())
    assert {folder.name for folder in kept.glob("[!.]*")} == {new.sha256}


async def test_lost_or_altered_build_is_not_run(builds: Builds) -> None:
    harness, kept = builds.harness, runtimes_folder(builds.harness.data_dir) / builds.current.sha256 / "runsc"
    await builds.write(builds.start(), place(harness))
    builds.current = dataclasses.replace(builds.current, sha256="0" * 64)  # whatever is installed now
    with kept.open("r+b") as program:
        program.seek(1 << 20)
        program.write(b"another")
    driver = builds.start()
    assert "altered" in driver.restorable(place(harness)).reason
    with pytest.raises(ConflictError, match="altered"):
        await driver.prepare(harness.shape(PROBE_LIMITS), snapshot=place(harness))
    shutil.rmtree(kept.parent)
    assert "not kept" in driver.restorable(place(harness)).reason


async def test_a_sandbox_outlives_the_build_that_it_runs_on(builds: Builds, tmp_path: Path) -> None:
    harness, installed = builds.harness, tmp_path / "installed"
    shutil.copy(builds.current.path, installed)
    builds.current = dataclasses.replace(builds.current, path=installed)
    driver = builds.start()
    instance = await (await driver.prepare(harness.shape(PROBE_LIMITS))).boot(harness.spec(PROBE_LIMITS))
    installed.unlink()
    builds.current = dataclasses.replace(builds.current, path=Path("/bin/true"), sha256=content_sha256(Path("/bin/true")))
    after = builds.start()
    await after.sweep(keep=[instance.ref])
    adopted = await after.adopt(instance.ref)
    await take_snapshot(adopted, place(harness), keep_running=False)
    await adopted.destroy()
    await instance.destroy()
    assert await builds.goes_on(after, place(harness))
