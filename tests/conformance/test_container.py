"""What is crun's own and no other driver's: how its processes run on the host, and what they share with it."""

# ruff: noqa: ASYNC240, ASYNC110
from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
from pathlib import Path

import pytest

from sandlot.drivers.oci import record as records
from sandlot.drivers.oci.paths import SandboxFolder, sandboxes_folder
from sandlot.drivers.oci.probe import make_tiny_root
from sandlot.host import disk_images
from sandlot.host.cgroup_layout import SOCKET_BYTES
from sandlot.host.cgroups import detect_layout
from sandlot.host.id_ranges import FIRST_ID, FOLDER, IDS, RANGES, IdRanges
from sandlot.images.store import ImageStore
from sandlot.model.errors import HostError
from sandlot.model.executions import Output
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Change, ExitReason, Instance
from sandlot.model.specs import ProcessSpec, User
from sandlot.testing.drivers.harness import SMALL_LIMITS, DriverHarness, connect_sandbox
from sandlot.testing.drivers.leftovers import leftovers
from tests.support.cache import CACHE_DIR
from tests.support.onhost import group, members_of, network_namespaces, processes, status
from tests.support.until import until

KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
ALLOWED_CAPABILITIES = 0x800C05FB
"""CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, SYS_CHROOT, SYS_PTRACE, SETFCAP (capability.h)."""


@pytest.fixture
def harness(tmp_path: Path) -> DriverHarness:
    return DriverHarness("container", root=ImageStore(CACHE_DIR).root("base"), node=new_node_id(), data_dir=tmp_path / "state")


def ids(harness: DriverHarness, instance: Instance) -> range:
    """The sandbox's range of the host's ids."""
    (first,) = (int(link.name) for link in FOLDER.iterdir() if link.is_symlink() and str(link.readlink()).endswith(f"/{harness.node}/{instance.ref}"))
    return range(FIRST_ID + first * IDS, FIRST_ID + (first + 1) * IDS)


async def test_processes_are_confined_on_the_host(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        waiting = asyncio.create_task(sandbox.run("sleep", "600", user=User.ROOT))
        started = processes(harness, sandbox.instance)
        while len(members := group(harness, sandbox.instance).pids() - {started.keeper.pid}) < 2:
            await asyncio.sleep(0.01)
        own = ids(harness, sandbox.instance)
        assert (own.start - FIRST_ID) // IDS < RANGES
        for pid in members:
            facts, proc = status(pid), Path(f"/proc/{pid}")
            assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")
            for name in ("Uid", "Gid"):
                assert all(int(number) in own for number in facts[name].split())
            for name in ("CapPrm", "CapEff", "CapBnd"):
                assert int(facts[name], 16) & ~ALLOWED_CAPABILITIES == 0
            assert (facts["CapInh"], facts["CapAmb"]) == ("0" * 16, "0" * 16)
            assert int((proc / "oom_score_adj").read_text()) >= 900
            assert {(proc / "ns" / kind).readlink() for kind in KINDS}.isdisjoint(Path("/proc/self/ns", kind).readlink() for kind in KINDS)
            assert (proc / "uid_map").read_text().split() == ["0", str(own.start), str(IDS)]
            assert "Max core file size        1                    1" in (proc / "limits").read_text()
        waiting.cancel()


async def test_network_namespace_and_card_end_with_killed_processes(harness: DriverHarness) -> None:
    cards = socket.if_nameindex()
    prepared = await harness.new_driver().prepare(harness.shape())
    ((stage, of_stage),) = members_of(harness.data_dir).items()
    async with harness.sandbox() as sandbox:
        keeper, first = processes(harness, sandbox.instance).keeper.pid, processes(harness, sandbox.instance).sandbox.pid
        own = Path(f"/proc/{first}/ns/net").readlink()
        assert own == Path(f"/proc/{keeper}/ns/net").readlink()
        assert len({own, of_stage, Path("/proc/self/ns/net").readlink()}) == 3
        assert socket.if_nameindex() == cards
        for pid in (stage, keeper, first):
            os.kill(pid, signal.SIGKILL)
        await sandbox.instance.wait()
    await prepared.destroy()

    while network_namespaces() & {own, of_stage}:
        await asyncio.sleep(0.01)
    assert socket.if_nameindex() == cards


async def test_nothing_of_the_runtime_is_left_once_it_runs(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        started = processes(harness, sandbox.instance)
        children = Path(f"/proc/{started.keeper.pid}/task/{started.keeper.pid}/children")
        # What it leaves of itself may end a moment later.
        await until(lambda: children.read_text().split() == [str(started.sandbox.pid)])


async def test_host_ids_are_unique_and_returned(harness: DriverHarness) -> None:
    async with harness.sandbox() as one, harness.sandbox() as other:
        assert ids(harness, one.instance).start != ids(harness, other.instance).start
    assert not any(f"/{harness.node}/" in owner for owner in IdRanges().owners())


async def test_host_lists_no_mount_and_one_loop_device(harness: DriverHarness) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    async with harness.sandbox() as sandbox:
        assert Path("/proc/self/mountinfo").read_text() == before
        image = SandboxFolder(sandboxes_folder(harness.data_dir) / sandbox.instance.ref).disk_image
        assert list(disk_images.loops_below(harness.data_dir).values()) == [image]


async def test_containers_cannot_change_the_shared_root(harness: DriverHarness) -> None:
    shared = harness.root.require_tree() / "etc" / "debian_version"
    before = shared.stat()
    text = shared.read_text()
    async with harness.sandbox() as one, harness.sandbox() as other:
        done = await one.run("sh", "-c", "echo mine > /etc/debian_version && chown user /etc/debian_version && rm /etc/passwd", user=User.ROOT)
        assert done.exit_code == 0, done.stderr
        assert (await other.run("cat", "/etc/debian_version", "/etc/passwd")).stdout.startswith(text)
        (number, device) = ((await other.run("stat", "-c", "%u %D", "/etc/debian_version")).stdout).split()
        assert number == "0"
        assert device
    after = shared.stat()
    assert shared.read_text() == text
    assert (after.st_ino, after.st_uid, after.st_mtime_ns, after.st_ctime_ns, after.st_nlink) == (
        before.st_ino,
        before.st_uid,
        before.st_mtime_ns,
        before.st_ctime_ns,
        before.st_nlink,
    )
    assert (harness.root.require_tree() / "etc" / "passwd").exists()


async def test_sandbox_has_its_own_boot_id_and_host_name(harness: DriverHarness) -> None:
    async with harness.sandbox() as one, harness.sandbox() as other:
        seen = [(await sandbox.run("cat", "/proc/sys/kernel/random/boot_id")).stdout for sandbox in (one, one, other)]
        refused = await one.run("sh", "-c", "echo x > /proc/sys/kernel/random/boot_id || hostname x", user=User.ROOT)
    assert seen[0] == seen[1]
    assert len({seen[0], seen[2], Path("/proc/sys/kernel/random/boot_id").read_text()}) == 3
    assert refused.exit_code != 0


async def test_system_calls_that_affect_the_whole_host_do_nothing(harness: DriverHarness) -> None:
    """A queue for asynchronous files is none that this kernel has; to write back everything is done by doing nothing, well or not."""
    program = (
        "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); os.sync(); open('/tmp/x', 'wb').close(); "
        "os.fsync(os.open('/tmp/x', os.O_RDWR)); print(libc.syscall(206, 1, ctypes.byref(ctypes.c_ulong())), ctypes.get_errno(), libc.syncfs(-1))"
    )
    async with harness.sandbox() as sandbox:
        for user in (User.USER, User.ROOT):
            done = await sandbox.run("python3", "-c", program, user=user)
            assert (done.exit_code, done.stdout) == (0, "-1 38 0\n"), done.stderr


FILLED_SOCKETS = """
import socket
held, listener = [], socket.create_server(("127.0.0.1", 0))
for number in range(100):
    kind = socket.SOCK_STREAM if number % 2 else socket.SOCK_DGRAM
    sending, receiving = socket.socket(socket.AF_INET, kind), socket.socket(socket.AF_INET, kind)
    for end in (sending, receiving):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
    try:
        if kind == socket.SOCK_DGRAM:
            receiving.bind(("127.0.0.1", 0))
            sending.connect(receiving.getsockname())
        else:
            sending.settimeout(1)
            sending.connect(listener.getsockname())
            receiving = listener.accept()[0]
        sending.setblocking(False)
        for _ in range(2000):
            sending.send(bytes(8000))
    except OSError:
        pass
    held.append((sending, receiving))
print("held", len(held), flush=True)
"""


async def test_socket_buffers_are_bounded(harness: DriverHarness) -> None:
    """Version 1 of control groups counts the buffers of TCP and UDP apart from the memory, and bounds them only if a limit is set."""
    async with harness.sandbox() as sandbox:
        done = await sandbox.run("python3", "-c", FILLED_SOCKETS)
        assert done.stdout == "held 100\n", done.stderr
        if detect_layout().version == 1:
            name = "memory.kmem.tcp.max_usage_in_bytes"
            (most_bytes,) = (int((folder / name).read_text()) for folder in group(harness, sandbox.instance).folders if (folder / name).exists())
            # A socket that is nearly empty may exceed the limit by a few packets.
            assert SOCKET_BYTES // 2 < most_bytes < SOCKET_BYTES + 8 * 1024**2
        waits = await sandbox.run("cat", "/proc/sys/net/ipv4/tcp_max_tw_buckets")
        assert waits.stdout == "4096\n"


async def test_its_first_process_ends_all_of_it_and_by_nothing_but_a_kill(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        first = processes(harness, sandbox.instance).sandbox.pid
        # pid_namespaces(7): of signals that it has no handler for, the first process of a namespace gets those alone that cannot be handled.
        os.kill(first, signal.SIGSEGV)
        assert (await sandbox.run("echo", "here")).stdout == "here\n"
        os.kill(first, signal.SIGKILL)
        assert (await sandbox.instance.wait()).reason is ExitReason.CRASHED
        while group(harness, sandbox.instance).pids():
            await asyncio.sleep(0.01)


async def test_it_goes_on_without_its_keeper_and_keeps_its_ids(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        before = ids(harness, sandbox.instance)
        os.kill(processes(harness, sandbox.instance).keeper.pid, signal.SIGKILL)
        assert (await sandbox.run("echo", "here")).stdout == "here\n"
        async with harness.sandbox() as other:
            assert ids(harness, other.instance).start != before.start
        assert ids(harness, sandbox.instance) == before


async def test_limits_that_cannot_be_written_down_are_not_changed(harness: DriverHarness) -> None:
    async with harness.sandbox() as sandbox:
        folder = SandboxFolder(sandboxes_folder(harness.data_dir) / sandbox.instance.ref)
        (limit,) = (found for each in group(harness, sandbox.instance).folders if (found := each / "pids.max").exists())
        before, in_the_way = limit.read_text(), folder.record.with_suffix(".new")
        in_the_way.mkdir()
        with pytest.raises(HostError, match="could not be recorded"):
            await sandbox.instance.configure(Change(pids=100))
        assert limit.read_text() == before
        in_the_way.rmdir()
        await sandbox.instance.configure(Change(pids=100))
        assert limit.read_text() != before


async def test_a_change_that_cannot_be_finished_after_a_restart_leaves_what_holds(harness: DriverHarness) -> None:
    driver = harness.new_driver()
    limits = dataclasses.replace(SMALL_LIMITS, pids=128)
    instance = await harness.boot(driver, limits)
    place = SandboxFolder(sandboxes_folder(harness.data_dir) / instance.ref).record
    record = records.read(place)
    assert record is not None
    async with connect_sandbox(instance, limits) as sandbox:
        many = "import threading, time\nfor _ in range(100): threading.Thread(target=time.sleep, args=(600,)).start()\nprint('up', flush=True)"
        call = await sandbox.link.processes.start(ProcessSpec(argv=("python3", "-c", many), cwd="/", timeout_s=None))
        async for item in call:
            if isinstance(item, Output):
                break
        # Fewer than are there: a service that asked for it was killed before the kernel refused.
        records.write(place, dataclasses.replace(record, limits=dataclasses.replace(record.limits, pids=16)))
        adopted = await harness.new_driver().adopt(instance.ref)
        assert records.read(place) == record
    await adopted.destroy()
    assert leftovers(harness.data_dir, harness.node) == ()


async def test_a_root_without_a_guest_says_what_the_runtime_said(harness: DriverHarness, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    empty = dataclasses.replace(harness, root=dataclasses.replace(harness.root, tree=tmp_path / "empty"))
    with pytest.raises(HostError, match=r"crun could not start the sandbox: .*bin/first"):
        await empty.boot(empty.new_driver())
    assert leftovers(harness.data_dir, harness.node) == ()


async def test_an_image_cannot_make_the_runtime_wait(harness: DriverHarness, tmp_path: Path) -> None:
    root = make_tiny_root(tmp_path / "root")
    (root.require_tree() / "etc").mkdir()
    for name in ("passwd", "group"):
        os.mkfifo(root.require_tree() / "etc" / name)
    waiting = dataclasses.replace(harness, root=root)
    async with asyncio.timeout(60):
        instance = await waiting.boot(waiting.new_driver())
        stream = await instance.connect()
        assert await stream.receive(16) == b"ok\n"
        await stream.aclose()
        await instance.destroy()


async def test_a_program_that_was_removed_harms_no_sandbox_that_runs(harness: DriverHarness) -> None:
    driver = harness.new_driver()
    instance = await harness.boot(driver)
    async with connect_sandbox(instance) as sandbox:
        assert (await sandbox.run("echo", "here")).stdout == "here\n"
    restarted = harness.new_driver()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", "/nowhere")
        adopted = await restarted.adopt(instance.ref)
        async with connect_sandbox(adopted) as sandbox:
            assert (await sandbox.run("echo", "here")).stdout == "here\n"
            assert (await adopted.usage()).disk_bytes > 0
        await adopted.destroy()
    assert leftovers(harness.data_dir, harness.node) == ()
