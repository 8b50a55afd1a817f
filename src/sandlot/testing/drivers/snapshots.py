"""Tests of snapshots: contents and independence of restored sandboxes, refusal of unusable snapshots, and failures."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError
from sandlot.model.ports import Change, Driver, DriverCapability, ExitReason, Instance, PreparedSandbox, ProbeResult
from sandlot.model.specs import MIB, Limits, User
from sandlot.testing.drivers.cleanup import CleanupSuite
from sandlot.testing.drivers.crashing_service import MARKER_PATH, MARKER_TEXT, crashing_service
from sandlot.testing.drivers.harness import SMALL_LIMITS, ConnectedSandbox, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot
from sandlot.testing.drivers.leftovers import cpu_ticks, leftovers, wait_until_empty

_PORT = "4711"
_COUNTER = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if os.fork():
    sys.exit()
os.setsid()
for number in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), number)
count, weight = 0, os.urandom(int(sys.argv[2]) << 20)
check = hash(weight)
while True:
    client, _ = server.accept()
    count += 1
    client.sendall(b"%d %d" % (count, hash(weight) == check))
    client.close()
"""
"""Source of a daemon that counts the connections to its port on the loopback device. It responds with the count and 1 if its memory is unchanged."""
_REQUEST = "import socket, sys\nprint(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(100).decode())"
_PATHS = ("/home/user/kept", "/tmp/kept", "/dev/shm/kept", "/opt/kept")  # noqa: S108 - inside of the sandbox
_FORKS = """
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError as error:
    print(made, error.strerror)
"""
_GENERATIONS = 3
_ROUNDS = 2
_MAX_DELAY_S = 0.8
"""Longest time in seconds from the start of the crashing service to its kill."""


class SnapshotSuite(CleanupSuite):
    """Tests of snapshots and restored sandboxes. Needs a fixture ``harness``."""

    async def test_copies_continue_independently(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _snapshot_path(harness)
        async with harness.sandbox(driver) as source:
            await _fill(source)
            assert await _count_requests(source) == 1
            size = await _save(source, into)
            assert sum(file.stat().st_blocks * 512 for file in into.iterdir()) == size > MIB
            assert {oct(file.stat().st_mode & 0o777) for file in into.iterdir()} == {"0o600"}
            assert into.stat().st_mode & 0o777 == 0o700
            assert driver.restorable(into).ok
            # The source sandbox, its link and its processes continue after the snapshot.
            assert await _count_requests(source) == 2
            async with harness.restored_sandbox(driver, into) as one, harness.restored_sandbox(driver, into) as other:
                assert len({source.instance.ref, one.instance.ref, other.instance.ref}) == 3
                assert [await _count_requests(one) for _ in range(3)] == [2, 3, 4]
                assert await _count_requests(other) == 2
                for path in _PATHS:
                    assert (await other.run("cat", path)).stdout == f"{path}\n"
                assert (await one.run("sh", "-c", "echo mine > /home/user/kept; rm /opt/kept; touch /tmp/new", user=User.ROOT)).exit_code == 0
                assert (await other.run("sh", "-c", "cat /home/user/kept /opt/kept; ls /tmp/new")).stdout == "/home/user/kept\n/opt/kept\n"
                assert (await source.run("sh", "-c", "cat /home/user/kept /opt/kept; ls /tmp/new")).stdout == "/home/user/kept\n/opt/kept\n"
                # The restored copies continue after the source sandbox is destroyed.
                await source.instance.destroy()
                assert await _count_requests(one) == 5

    async def test_restored_sandbox_is_like_any_other(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(
            DriverCapability.SNAPSHOT, DriverCapability.PAUSE, DriverCapability.CONFIGURE_MEMORY, DriverCapability.ADOPT
        )
        into = _snapshot_path(harness)
        async with harness.sandbox(driver) as source:
            await _save(source, into)
            await source.instance.destroy()
        instance = await _restore(harness, driver, into)
        async with connect_sandbox(instance) as sandbox:
            instance = sandbox.instance
            assert (await sandbox.python(_FORKS)).stdout.split()[1:] == ["Resource", "temporarily", "unavailable"]
            full = await sandbox.run("dd", "if=/dev/zero", "of=/home/user/full", "bs=1M")
            assert "No space left" in full.stderr
            assert (await instance.usage()).disk_bytes > SMALL_LIMITS.disk_bytes // 2
            assert (await sandbox.run("rm", "/home/user/full")).exit_code == 0
            await instance.pause()
            await instance.resume()
            before = await instance.usage()
            assert before.memory_bytes > 0
            assert before.cpu_s > 0
            await instance.configure(Change(memory_bytes=2 * SMALL_LIMITS.memory_bytes))
            await instance.configure(Change(memory_bytes=SMALL_LIMITS.memory_bytes))
        # A new driver simulates a restart of the service. The first driver must therefore not be used again.
        later = harness.new_driver()
        assert await later.sweep(keep=[instance.ref]) == 0
        adopted = await later.adopt(instance.ref)
        async with connect_sandbox(adopted) as sandbox:
            assert adopted.limits == SMALL_LIMITS
            again = _snapshot_path(harness, "again")
            await _save(sandbox, again)
            with contextlib.suppress(SandboxEndedError):
                await sandbox.python("held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))", user=User.ROOT)
        assert (await _exit_reason(adopted)) in {ExitReason.OOM, None}
        await adopted.destroy()
        await instance.destroy()
        async with harness.restored_sandbox(later, again) as sandbox:
            assert (await sandbox.run("echo", "on")).stdout == "on\n"

    async def test_state_survives_generation_after_generation(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _snapshot_path(harness)
        instance = await harness.boot(driver)
        async with connect_sandbox(instance) as sandbox:
            await _fill(sandbox, weight_mib=20)
        for generation in range(_GENERATIONS):
            into = _snapshot_path(harness, str(generation))
            async with connect_sandbox(instance) as sandbox:
                assert await _count_requests(sandbox) == generation + 1
                await sandbox.link.quiesce()
                await take_snapshot(instance, into, keep_running=False, durable=generation % 2 == 0)
            end = await instance.wait()
            assert end.reason is ExitReason.KILLED
            assert "snapshot" in end.detail
            with pytest.raises(SandboxEndedError):
                await take_snapshot(instance, _snapshot_path(harness, "late"), keep_running=True)
            await instance.destroy()
            assert (await instance.wait()) == end
            instance = await _restore(harness, driver, into, warm=generation % 2 == 0)
        async with connect_sandbox(instance) as sandbox:
            assert await _count_requests(sandbox) == _GENERATIONS + 1
            assert (await sandbox.run("cat", *_PATHS)).stdout == "".join(f"{path}\n" for path in _PATHS)
        await instance.destroy()

    async def test_snapshot_of_a_paused_sandbox_leaves_it_paused(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT, DriverCapability.PAUSE), _snapshot_path(harness)
        async with harness.sandbox(driver) as source:
            await _fill(source)
            await source.link.checkpoint(armed=True)
            await source.instance.pause()
            await take_snapshot(source.instance, into, keep_running=True)
            with pytest.raises(ConflictError):
                await take_snapshot(source.instance, into, keep_running=True)
            before = (await source.instance.usage()).cpu_s
            await asyncio.sleep(0.2)
            assert (await source.instance.usage()).cpu_s == before
            async with harness.restored_sandbox(driver, into) as copy:
                assert await _count_requests(copy) == 1
            await source.instance.resume()
            await source.link.checkpoint(armed=False)
            assert await _count_requests(source) == 1

    async def test_concurrent_snapshots_are_taken_in_turn(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.SNAPSHOT, DriverCapability.PAUSE)
        async with harness.sandbox(driver) as source:
            await _fill(source)
            paths = [_snapshot_path(harness, str(number)) for number in range(3)]
            taken = [asyncio.create_task(take_snapshot(source.instance, path, keep_running=True)) for path in paths]
            await source.instance.pause()
            await source.instance.resume()
            await asyncio.gather(*taken)
            assert all(driver.restorable(path).ok for path in paths)
            with pytest.raises(ConflictError):
                await take_snapshot(source.instance, paths[0], keep_running=True)
            assert await _count_requests(source) == 1

    async def test_destroyed_sandbox_or_cancelled_request_leaves_no_partial_snapshot(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.SNAPSHOT)
        async with harness.sandbox(driver) as source:
            await _fill(source, weight_mib=50)
            cancelled = asyncio.create_task(take_snapshot(source.instance, _snapshot_path(harness, "cancelled"), keep_running=True))
            await asyncio.sleep(0.02)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert not _snapshot_path(harness, "cancelled").exists()
            assert await _count_requests(source) == 1
            ended = asyncio.create_task(take_snapshot(source.instance, _snapshot_path(harness, "ended"), keep_running=True))
            await asyncio.sleep(0.02)
            await source.instance.destroy()
            with contextlib.suppress(SandboxEndedError):
                await ended
                assert driver.restorable(_snapshot_path(harness, "ended")).ok
            assert ended.exception() is None or not _snapshot_path(harness, "ended").exists()

    async def test_unusable_snapshot_is_refused_and_the_prepared_sandbox_stays_usable(self, harness: DriverHarness, tmp_path: Path) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT, DriverCapability.SHOW_LIMITS), _snapshot_path(harness)
        larger = replace(
            SMALL_LIMITS, memory_bytes=2 * SMALL_LIMITS.memory_bytes, disk_bytes=2 * SMALL_LIMITS.disk_bytes, cpus=2.0, pids=2 * SMALL_LIMITS.pids
        )
        async with harness.sandbox(driver, larger) as source:
            await _save(source, into)
        smaller = await driver.prepare(harness.shape())
        await _assert_restore_is_refused(driver, smaller, harness, into, "memory")
        instance = await smaller.boot(harness.spec())
        async with connect_sandbox(instance) as sandbox:
            assert (await sandbox.run("echo", "booted")).stdout == "booted\n"
        await instance.destroy()
        other_root = await driver.prepare(replace(harness.shape(larger), root=replace(harness.root, digest="another")))
        await _assert_restore_is_refused(driver, other_root, harness, into, "another")
        await other_root.destroy()
        async with harness.restored_sandbox(driver, into, replace(larger, memory_bytes=3 * SMALL_LIMITS.memory_bytes, cpus=0.5, pids=32)) as sandbox:
            total = await sandbox.run("sh", "-c", "grep MemTotal /proc/meminfo")
            assert int(total.stdout.split()[1]) == 3 * SMALL_LIMITS.memory_bytes // 1024
        for name in [file.name for file in into.iterdir()]:
            broken = tmp_path / name
            broken.mkdir()
            for file in into.iterdir():
                (broken / file.name).write_bytes(file.read_bytes()[: 100 if file.name == name else None])
            result = driver.restorable(broken)
            assert not result.ok
            assert result.reason
            prepared = await driver.prepare(harness.shape(larger))
            await _assert_restore_is_refused(driver, prepared, harness, broken, result.reason)
            await prepared.destroy()
            with pytest.raises(ConflictError) as refused:
                await driver.prepare(harness.shape(larger), snapshot=broken)
            assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
        assert not driver.restorable(tmp_path / "missing").ok

    # ------------------------------------------------------------------------------------------------------- a killed service
    async def test_service_may_be_killed_during_a_snapshot_or_a_restore(self, harness: DriverHarness) -> None:
        await harness.driver_with(DriverCapability.SNAPSHOT, DriverCapability.PAUSE, DriverCapability.ADOPT)
        delays = random.Random(harness.node)  # noqa: S311 - delays, not secrets
        for _ in range(_ROUNDS):
            with crashing_service(harness, "snapshots") as (service, ref):
                await asyncio.sleep(delays.uniform(0, _MAX_DELAY_S))
                service.kill()
                service.wait()
            driver = harness.new_driver()
            await driver.sweep(keep=[ref])
            # Every snapshot folder that the killed service left is complete and can be restored.
            written = sorted((harness.data_dir / "saved").glob("*/image"))
            assert _snapshot_path(harness, "first") in written
            for path in written:
                assert driver.restorable(path) == ProbeResult(ok=True)
            async with harness.restored_sandbox(driver, delays.choice(written)) as sandbox:
                assert (await sandbox.run("cat", MARKER_PATH)).stdout == MARKER_TEXT
            instance = await driver.adopt(ref)
            await instance.resume()
            async with connect_sandbox(instance) as sandbox:
                assert (await sandbox.run("cat", MARKER_PATH)).stdout == MARKER_TEXT
            await take_snapshot(instance, _snapshot_path(harness, "after"), keep_running=False)
            await instance.destroy()
            assert wait_until_empty(lambda: leftovers(harness.data_dir, harness.node)) == ()
            for path in (*written, _snapshot_path(harness, "after")):
                shutil.rmtree(path)

    # ------------------------------------------------------------------------------------------------------- warm sandboxes
    async def test_warmed_sandbox_uses_no_processor_time_and_can_be_booted_restored_or_destroyed(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _snapshot_path(harness)
        first, second, third = [await driver.prepare(harness.shape()) for _ in range(3)]
        await asyncio.gather(first.warm(), first.warm(), second.warm(), third.warm())
        await first.warm()
        spent = cpu_ticks(harness.node)
        await asyncio.sleep(0.5)
        assert cpu_ticks(harness.node) == spent > 0
        instance = await first.boot(harness.spec())
        with pytest.raises(ConflictError):
            await first.warm()
        async with connect_sandbox(instance) as sandbox:
            await _fill(sandbox)
            await _save(sandbox, into)
        await instance.destroy()
        instance = await restore_snapshot(driver, second, into, harness.spec())
        for again in (second.boot(harness.spec()), restore_snapshot(driver, second, into, harness.spec()), second.warm()):
            with pytest.raises(ConflictError):
                await again
        async with connect_sandbox(instance) as sandbox:
            assert await _count_requests(sandbox) == 1
        await instance.destroy()
        await third.destroy()
        for gone in (third.warm(), restore_snapshot(driver, third, into, harness.spec()), third.boot(harness.spec())):
            with pytest.raises(SandboxEndedError):
                await gone

    async def test_destroy_during_warm_or_restore_leaves_nothing(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _snapshot_path(harness)
        async with harness.sandbox(driver) as source:
            await _save(source, into)
        for pause_s in (0.005, 0.05, 0.1):
            warming, restoring = [await driver.prepare(harness.shape()) for _ in range(2)]
            tasks = [asyncio.create_task(warming.warm()), asyncio.create_task(_restore_prepared(driver, restoring, harness, into))]
            await asyncio.sleep(pause_s)
            await asyncio.gather(warming.destroy(), restoring.destroy())
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert ended is None or isinstance(ended, SandboxEndedError), ended

    async def test_sandboxes_are_restored_concurrently(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _snapshot_path(harness)
        async with harness.sandbox(driver) as source:
            await _fill(source)
            await _save(source, into)

        async def restore_and_count() -> int:
            async with harness.restored_sandbox(driver, into) as sandbox:
                return await _count_requests(sandbox)

        assert await asyncio.gather(*(restore_and_count() for _ in range(4))) == [1] * 4


async def _restore(harness: DriverHarness, driver: Driver, snapshot: Path, limits: Limits = SMALL_LIMITS, *, warm: bool = False) -> Instance:
    prepared = await driver.prepare(harness.shape(limits), snapshot=snapshot)
    if warm:
        await prepared.warm()
    return await restore_snapshot(driver, prepared, snapshot, harness.spec(limits))


async def _save(sandbox: ConnectedSandbox, into: Path) -> int:
    """Take a snapshot of a sandbox and return the snapshot's size in bytes. The sandbox keeps running.

    The guest of a sandbox that is restored from the snapshot is asleep.
    """
    await sandbox.link.checkpoint(armed=True)
    size = await take_snapshot(sandbox.instance, into, keep_running=True)
    await sandbox.link.checkpoint(armed=False)
    return size


async def _restore_prepared(driver: Driver, prepared: PreparedSandbox, harness: DriverHarness, snapshot: Path) -> None:
    await restore_snapshot(driver, prepared, snapshot, harness.spec())


async def _assert_restore_is_refused(driver: Driver, prepared: PreparedSandbox, harness: DriverHarness, snapshot: Path, reason: str) -> None:
    with pytest.raises(ConflictError) as refused:
        await restore_snapshot(driver, prepared, snapshot, harness.spec())
    assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
    assert reason in refused.value.message


async def _fill(sandbox: ConnectedSandbox, weight_mib: int = 1) -> None:
    """Write a file into each file system of the sandbox, and start a daemon that counts the connections to its port.

    Args:
        sandbox: Sandbox to fill.
        weight_mib: Memory in MiB that the daemon fills with random bytes.
    """
    for path in _PATHS:
        assert (await sandbox.run("sh", "-c", f"echo {path} > {path}; chmod 666 {path}", user=User.ROOT)).exit_code == 0
    done = await sandbox.python(_COUNTER, _PORT, str(weight_mib), user=User.ROOT)
    assert done.exit_code == 0, done.stderr


async def _count_requests(sandbox: ConnectedSandbox) -> int:
    """Connect to the counting daemon, check that the daemon's memory is unchanged, and return its number of connections, this one included."""
    done = await sandbox.python(_REQUEST, _PORT)
    count, is_whole = done.stdout.split()
    assert is_whole == "1"
    return int(count)


async def _exit_reason(instance: Instance) -> ExitReason | None:
    """Return the reason why a sandbox has ended; None if the sandbox is alive."""
    try:
        await instance.usage()
    except SandboxEndedError:
        return (await instance.wait()).reason
    return None


def _snapshot_path(harness: DriverHarness, name: str = "one") -> Path:
    return harness.data_dir / "saved" / name / "image"
