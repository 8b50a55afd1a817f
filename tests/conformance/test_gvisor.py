"""What is runsc's own and no other driver's: how its processes run on the host, and what their ends are taken for."""

# ruff: noqa: ASYNC240, ASYNC110
from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.plan import group_limits
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.oci.paths import SandboxFolder, sandboxes_folder
from sandlot.drivers.registry import DriverSettings
from sandlot.host import disk_images
from sandlot.host.programs import content_sha256
from sandlot.images.store import ImageStore
from sandlot.model.errors import HostError, SandboxEndedError
from sandlot.model.faults import Fault
from sandlot.model.ids import new_node_id
from sandlot.model.ports import ExitReason
from sandlot.model.specs import User
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox
from sandlot.testing.drivers.leftovers import leftovers
from tests.support.cache import CACHE_DIR
from tests.support.onhost import group, processes, status

NOBODY = 65534
_HOG = "number = 0\nwhile True:\n    open(f'/dev/hog-{number}', 'wb').write(bytes(1 << 20))\n    number += 1"
_MAP = """
import mmap, os
os.ftruncate(fd := os.open("/home/user/map", os.O_RDWR | os.O_CREAT), 256 << 20)
area = mmap.mmap(fd, 256 << 20)
for at in range(0, 256 << 20, 4096):
    area[at] = 1
"""


def harness_in(folder: Path) -> DriverHarness:
    return DriverHarness("gvisor", root=ImageStore(CACHE_DIR).root("base"), node=new_node_id(), data_dir=folder / "state")


@pytest.fixture
def harness(tmp_path: Path) -> DriverHarness:
    return harness_in(tmp_path)


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[DriverHarness, ConnectedSandbox]]:
    """One sandbox for tests that only look at it."""
    harness = harness_in(tmp_path_factory.mktemp("shared"))
    async with harness.sandbox() as sandbox:
        yield harness, sandbox


def cores(pid: int) -> list[str]:
    (line,) = (line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max core file size"))
    return line.split()[4:6]


async def test_processes_are_confined_on_the_host(shared: tuple[DriverHarness, ConnectedSandbox]) -> None:
    harness, sandbox = shared
    started, members = processes(harness, sandbox.instance), group(harness, sandbox.instance).pids()
    assert {started.sandbox.pid, started.keeper.pid} <= members
    for pid in members - {started.keeper.pid}:
        facts, proc = status(pid), Path(f"/proc/{pid}")
        assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
        # Short of memory, the kernel takes the sandbox's own kernel, and with it all of it: never one process that it runs code in.
        assert int((proc / "oom_score_adj").read_text()) in ({1000} if pid == started.sandbox.pid else {1, 1000})
        assert (proc / "environ").read_bytes() == b""
        assert {(proc / "ns" / kind).readlink() for kind in ("mnt", "net", "ipc", "uts")}.isdisjoint(
            Path("/proc/self/ns", kind).readlink() for kind in ("mnt", "net", "ipc", "uts")
        )
        assert cores(pid) == ["1", "1"]
    kernel = status(started.sandbox.pid)
    assert set(kernel["Uid"].split()) == {str(NOBODY)}
    assert int(kernel["CapEff"], 16) == 0
    assert sorted(path.name for path in Path(f"/proc/{started.sandbox.pid}/root").iterdir()) == ["etc", "proc"]


async def test_host_lists_no_mount_and_one_loop_device(harness: DriverHarness) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    async with harness.sandbox() as sandbox:
        assert Path("/proc/self/mountinfo").read_text() == before
        image = SandboxFolder(sandboxes_folder(harness.data_dir) / sandbox.instance.ref).disk_image
        assert list(disk_images.loops_below(harness.data_dir).values()) == ([] if find_runsc().limits_disk else [image])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_signal_to_its_kernel_is_told_from_an_exit(harness: DriverHarness, number: signal.Signals) -> None:
    async with harness.sandbox() as sandbox:
        os.kill(processes(harness, sandbox.instance).sandbox.pid, number)
        end = await sandbox.instance.wait()
        assert (end.reason, end.fault) == (ExitReason.CRASHED, Fault.LOST)
        assert end.detail
        # Nothing of it goes on without its kernel.
        while group(harness, sandbox.instance).pids():
            await asyncio.sleep(0.01)
    assert await sandbox.instance.wait() == end


async def test_a_panic_of_its_kernel_is_a_crash_and_quoted(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        members = group(harness, sandbox.instance)
        (limit,) = (folder / "pids.max" for folder in members.folders if (folder / "pids.max").exists())
        limit.write_text(str(members.usage().pids + 2))
        with pytest.raises(SandboxEndedError):
            await sandbox.run("sh", "-c", "for n in 1 2 3 4 5 6 7 8; do sleep 60 & done; wait")
        end = await sandbox.instance.wait()
        assert end.reason is ExitReason.CRASHED
        # Which of its threads is the one too many decides who gives up: the sentry, or the Go runtime below it.
        assert "panic: " in end.detail or "runtime: failed to create new OS thread" in end.detail


async def test_it_goes_on_without_its_keeper(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        os.kill(processes(harness, sandbox.instance).keeper.pid, signal.SIGKILL)
        assert (await sandbox.run("echo", "here")).stdout == "here\n"
        assert (await sandbox.instance.usage()).pids > 0
        os.kill(processes(harness, sandbox.instance).sandbox.pid, signal.SIGKILL)
        end = await sandbox.instance.wait()
        assert (end.reason, end.detail) == (ExitReason.CRASHED, "the sandbox has ended, and its exit code is unknown")


async def test_memory_that_is_no_processs_takes_the_sandbox(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        with pytest.raises(SandboxEndedError):
            await sandbox.python(_HOG, user=User.ROOT)
        end = await sandbox.instance.wait()
        assert (end.reason, end.fault) == (ExitReason.OOM, Fault.LIMIT)


async def test_a_disk_that_is_filled_through_a_map_harms_its_process_only(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        try:
            done = await sandbox.python(_MAP)
        except SandboxEndedError:
            assert (await sandbox.instance.wait()).reason is ExitReason.DISK
        else:
            assert done.exit_code != 0
            assert (await sandbox.run("echo", "here")).stdout == "here\n"


async def test_a_guests_complaints_are_kept_for_the_operator(shared: tuple[DriverHarness, ConnectedSandbox]) -> None:
    harness, sandbox = shared
    done = await sandbox.run("sh", "-c", "echo written to the log of the guest > /proc/1/fd/2", user=User.ROOT)
    assert done.exit_code == 0, done.stderr
    log = SandboxFolder(sandboxes_folder(harness.data_dir) / sandbox.instance.ref).path / "guest.log"
    while "written to the log of the guest" not in log.read_text():
        await asyncio.sleep(0.01)


async def test_a_state_directory_may_have_a_long_path(harness: DriverHarness, tmp_path: Path) -> None:
    far = dataclasses.replace(harness, data_dir=tmp_path / ("long" * 30) / "with spaces" / "state")
    async with far.sandbox() as sandbox:
        assert (await sandbox.run("echo", "here")).stdout == "here\n"
    assert leftovers(far.data_dir, far.node) == ()


async def test_a_root_that_is_not_there_is_refused_before_anything_is_made(harness: DriverHarness, tmp_path: Path) -> None:
    lost = dataclasses.replace(harness, root=dataclasses.replace(harness.root, tree=tmp_path / "nothing"))
    with pytest.raises(Exception, match="does not exist"):
        await lost.boot(lost.new_driver())
    assert leftovers(harness.data_dir, harness.node) == ()


async def test_a_root_without_a_guest_says_what_the_runtime_said(harness: DriverHarness, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = dataclasses.replace(harness, root=dataclasses.replace(harness.root, tree=tmp_path / "empty"))
    with pytest.raises(HostError, match=r"could not start the sandbox: .*bin/first"):
        await empty.boot(empty.new_driver())
    assert leftovers(harness.data_dir, harness.node) == ()


async def test_a_runtime_that_limits_the_disk_itself_gets_a_folder(harness: DriverHarness, tmp_path: Path) -> None:
    # Debian's does not know `size=`: a wrapper takes it away again, so that the rest of that way is run.
    real = find_runsc()
    wrapper = tmp_path / "runsc"
    strip = 'for word; do shift; case "$word" in --overlay2=*) word="${word%,size=*}";; esac; set -- "$@" "$word"; done'
    wrapper.write_text(f'#!/bin/sh\n{strip}\nexec {real.path} "$@"\n')
    wrapper.chmod(0o755)
    program = dataclasses.replace(real, path=wrapper, sha256=content_sha256(wrapper), limits_disk=True)
    driver = OciDriver("gvisor", DriverSettings(harness.node, harness.data_dir), Runsc(lambda: program))
    instance = await harness.boot(driver)
    async with connect_sandbox(instance) as sandbox:
        assert (await sandbox.run("dd", "if=/dev/zero", "of=/home/user/file", "bs=1M", "count=8")).exit_code == 0
        assert (await instance.usage()).disk_bytes >= 8 << 20
        assert disk_images.loops_below(harness.data_dir) == {}
    await instance.destroy()
    assert leftovers(harness.data_dir, harness.node) == ()


async def test_recorded_change_of_a_killed_service_is_finished(harness: DriverHarness) -> None:
    instance = await harness.boot(harness.new_driver())
    place = SandboxFolder(sandboxes_folder(harness.data_dir) / instance.ref).record
    record = records.read(place)
    assert record is not None
    records.write(place, dataclasses.replace(record, limits=dataclasses.replace(record.limits, memory_bytes=300 << 20, pids=100)))
    adopted = await harness.new_driver().adopt(instance.ref)
    limits = [
        (folder / file).read_text().strip()
        for folder in group(harness, instance).folders
        for file in ("memory.limit_in_bytes", "memory.max", "pids.max")
        if (folder / file).exists()
    ]
    assert sorted(limits) == sorted([str(300 << 20), str(group_limits(dataclasses.replace(record.limits, pids=100)).pids)])
    await adopted.destroy()
    assert leftovers(harness.data_dir, harness.node) == ()
