"""Written down and restored: what survives, what is shared (nothing), what is refused, and what a failure leaves as it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError
from sandlot.model.ports import Change, Driver, DriverCapability, ExitReason, Instance, PreparedSandbox, ProbeResult
from sandlot.model.specs import MIB, Limits, User
from sandlot.testing.bench import SMALL, Bench, Subject, meet
from sandlot.testing.driver_clean import CleanSuite
from sandlot.testing.driver_limits import able
from sandlot.testing.driver_restart import service_of
from sandlot.testing.survivor import MARK
from sandlot.testing.traces import settled, spent_ticks, traces

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
"""A process of its own with a variable in it, asked over the loopback device."""
_ASK = "import socket, sys\nprint(socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(100).decode())"
_FILES = ("/home/user/kept", "/tmp/kept", "/dev/shm/kept", "/opt/kept")  # noqa: S108 - inside of the sandbox
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
_LONGEST_S = 0.8


class SnapshotSuite(CleanSuite):
    """See the module."""

    async def test_what_was_there_goes_on_in_every_copy_by_itself(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        async with bench.sandbox(driver) as source:
            await _furnish(source)
            assert await _ask(source) == 1
            size = await _write(source, into)
            assert sum(file.stat().st_blocks * 512 for file in into.iterdir()) == size > MIB
            assert {oct(file.stat().st_mode & 0o777) for file in into.iterdir()} == {"0o600"}
            assert into.stat().st_mode & 0o777 == 0o700
            assert driver.restorable(into).ok
            # Its streams and what runs in it go on as if nothing had been.
            assert await _ask(source) == 2
            async with restored(bench, driver, into) as one, restored(bench, driver, into) as other:
                assert len({source.instance.ref, one.instance.ref, other.instance.ref}) == 3
                assert [await _ask(one) for _ in range(3)] == [2, 3, 4]
                assert await _ask(other) == 2
                for place in _FILES:
                    assert (await other.run("cat", place)).stdout == f"{place}\n"
                assert (await one.run("sh", "-c", "echo mine > /home/user/kept; rm /opt/kept; touch /tmp/new", user=User.ROOT)).code == 0
                assert (await other.run("sh", "-c", "cat /home/user/kept /opt/kept; ls /tmp/new")).stdout == "/home/user/kept\n/opt/kept\n"
                assert (await source.run("sh", "-c", "cat /home/user/kept /opt/kept; ls /tmp/new")).stdout == "/home/user/kept\n/opt/kept\n"
                # The source's end is not theirs.
                await source.instance.destroy()
                assert await _ask(one) == 5

    async def test_what_was_restored_is_a_sandbox_like_any_other(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        async with bench.sandbox(driver) as source:
            await _write(source, into)
            await source.instance.destroy()
        instance = await _restore(bench, driver, into)
        async with meet(instance) as subject:
            instance = subject.instance
            assert (await subject.python(_FORKS)).stdout.split()[1:] == ["Resource", "temporarily", "unavailable"]
            full = await subject.run("dd", "if=/dev/zero", "of=/home/user/full", "bs=1M")
            assert "No space left" in full.stderr
            assert (await instance.usage()).disk_bytes > SMALL.disk_bytes // 2
            assert (await subject.run("rm", "/home/user/full")).code == 0
            await instance.pause()
            await instance.resume()
            before = await instance.usage()
            assert before.memory_bytes > 0
            assert before.cpu_s > 0
            await instance.configure(Change(memory_bytes=2 * SMALL.memory_bytes))
            await instance.configure(Change(memory_bytes=SMALL.memory_bytes))
        # As after a restart of the service: the driver before must not be asked again.
        later = bench.start()
        assert await later.sweep(keep=[instance.ref]) == 0
        adopted = await later.adopt(instance.ref)
        async with meet(adopted) as subject:
            assert adopted.limits == SMALL
            again = _place(bench, "again")
            await _write(subject, again)
            with contextlib.suppress(SandboxEndedError):
                await subject.python("held = []\nwhile True: held.append(bytearray(b'x' * (1 << 20)))", user=User.ROOT)
        assert (await _usage_or_end(adopted)) in {ExitReason.OOM, None}
        await adopted.destroy()
        await instance.destroy()
        async with restored(bench, later, again) as subject:
            assert (await subject.run("echo", "on")).stdout == "on\n"

    async def test_state_survives_generation_after_generation(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        instance = await bench.boot(driver)
        async with meet(instance) as subject:
            await _furnish(subject, weight_mib=20)
        for generation in range(_GENERATIONS):
            into = _place(bench, str(generation))
            async with meet(instance) as subject:
                assert await _ask(subject) == generation + 1
                await subject.link.quiesce()
                await instance.snapshot(into, keep_running=False, durable=generation % 2 == 0)
            end = await instance.wait()
            assert end.reason is ExitReason.KILLED
            assert "snapshot" in end.detail
            with pytest.raises(SandboxEndedError):
                await instance.snapshot(_place(bench, "late"), keep_running=True)
            await instance.destroy()
            assert (await instance.wait()) == end
            instance = await _restore(bench, driver, into, warm=generation % 2 == 0)
        async with meet(instance) as subject:
            assert await _ask(subject) == _GENERATIONS + 1
            assert (await subject.run("cat", *_FILES)).stdout == "".join(f"{place}\n" for place in _FILES)
        await instance.destroy()

    async def test_one_that_is_paused_is_written_and_stays_paused(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        async with bench.sandbox(driver) as source:
            await _furnish(source)
            await source.link.checkpoint(armed=True)
            await source.instance.pause()
            await source.instance.snapshot(into, keep_running=True)
            with pytest.raises(ConflictError):
                await source.instance.snapshot(into, keep_running=True)
            before = (await source.instance.usage()).cpu_s
            await asyncio.sleep(0.2)
            assert (await source.instance.usage()).cpu_s == before
            async with restored(bench, driver, into) as copy:
                assert await _ask(copy) == 1
            await source.instance.resume()
            await source.link.checkpoint(armed=False)
            assert await _ask(source) == 1

    async def test_snapshots_at_once_are_taken_one_after_the_other(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.SNAPSHOT)
        async with bench.sandbox(driver) as source:
            await _furnish(source)
            places = [_place(bench, str(number)) for number in range(3)]
            taken = [asyncio.create_task(source.instance.snapshot(place, keep_running=True)) for place in places]
            await source.instance.pause()
            await source.instance.resume()
            await asyncio.gather(*taken)
            assert all(driver.restorable(place).ok for place in places)
            with pytest.raises(ConflictError):
                await source.instance.snapshot(places[0], keep_running=True)
            assert await _ask(source) == 1

    async def test_a_destroyed_one_leaves_no_snapshot_and_a_cancelled_request_neither(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.SNAPSHOT)
        async with bench.sandbox(driver) as source:
            await _furnish(source, weight_mib=50)
            cancelled = asyncio.create_task(source.instance.snapshot(_place(bench, "cancelled"), keep_running=True))
            await asyncio.sleep(0.02)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert not _place(bench, "cancelled").exists()
            assert await _ask(source) == 1
            ended = asyncio.create_task(source.instance.snapshot(_place(bench, "ended"), keep_running=True))
            await asyncio.sleep(0.02)
            await source.instance.destroy()
            with contextlib.suppress(SandboxEndedError):
                await ended
                assert driver.restorable(_place(bench, "ended")).ok
            assert ended.exception() is None or not _place(bench, "ended").exists()

    async def test_what_does_not_fit_is_refused_and_uses_nothing_up(self, bench: Bench, tmp_path: Path) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        larger = replace(SMALL, memory_bytes=2 * SMALL.memory_bytes, disk_bytes=2 * SMALL.disk_bytes, cpus=2.0, pids=2 * SMALL.pids)
        async with bench.sandbox(driver, larger) as source:
            await _write(source, into)
        less = await driver.prepare(bench.shape())
        await _refused(less, bench, into, "MiB of memory")
        instance = await less.boot(bench.spec())
        async with meet(instance) as subject:
            assert (await subject.run("echo", "booted")).stdout == "booted\n"
        await instance.destroy()
        other_root = await driver.prepare(replace(bench.shape(larger), root=replace(bench.root, digest="another")))
        await _refused(other_root, bench, into, "another")
        await other_root.destroy()
        async with restored(bench, driver, into, replace(larger, memory_bytes=3 * SMALL.memory_bytes, cpus=0.5, pids=32)) as subject:
            total = await subject.run("sh", "-c", "grep MemTotal /proc/meminfo")
            assert int(total.stdout.split()[1]) == 3 * SMALL.memory_bytes // 1024
        for name in [file.name for file in into.iterdir()]:
            broken = tmp_path / name
            broken.mkdir()
            for file in into.iterdir():
                (broken / file.name).write_bytes(file.read_bytes()[: 100 if file.name == name else None])
            verdict = driver.restorable(broken)
            assert not verdict.ok
            assert verdict.reason
            prepared = await driver.prepare(bench.shape(larger))
            await _refused(prepared, bench, broken, verdict.reason)
            await prepared.destroy()
            with pytest.raises(ConflictError) as refused:
                await driver.prepare(bench.shape(larger), snapshot=broken)
            assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
        assert not driver.restorable(tmp_path / "nothing").ok

    async def test_a_build_that_is_not_at_hand_is_said_so(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        async with bench.sandbox(driver) as source:
            await _write(source, into)
        (manifest,) = (file for file in into.iterdir() if file.suffix == ".json")
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"runtime_sha256": "0" * 64}))
        verdict = driver.restorable(into)
        assert not verdict.ok
        assert "0" * 12 in verdict.reason
        prepared = await driver.prepare(bench.shape())
        await _refused(prepared, bench, into, "0" * 12)
        await prepared.destroy()

    # ------------------------------------------------------------------------------------------------------- killed services
    async def test_a_service_may_be_killed_at_any_moment_of_a_snapshot_or_a_restore(self, bench: Bench) -> None:
        await able(bench, DriverCapability.SNAPSHOT)
        source = random.Random(bench.node)  # noqa: S311 - moments, not secrets
        for _ in range(_ROUNDS):
            with service_of(bench, "saving") as (service, ref):
                await asyncio.sleep(source.uniform(0, _LONGEST_S))
                service.kill()
                service.wait()
            driver = bench.start()
            await driver.sweep(keep=[ref])
            # Whatever is there is whole, and what was written down goes on.
            written = sorted((bench.data_dir / "saved").glob("*/image"))
            assert _place(bench, "first") in written
            for place in written:
                assert driver.restorable(place) == ProbeResult(ok=True)
            async with restored(bench, driver, source.choice(written)) as subject:
                assert (await subject.run("cat", MARK)).stdout == "left by the service before\n"
            instance = await driver.adopt(ref)
            await instance.resume()
            async with meet(instance) as subject:
                assert (await subject.run("cat", MARK)).stdout == "left by the service before\n"
            await instance.snapshot(_place(bench, "after"), keep_running=False)
            await instance.destroy()
            assert settled(lambda: traces(bench.data_dir, bench.node)) == ()
            for place in (*written, _place(bench, "after")):
                shutil.rmtree(place)

    # ------------------------------------------------------------------------------------------------------- warm ones
    async def test_a_warm_blank_costs_no_time_and_boots_or_is_restored_or_is_destroyed(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        first, second, third = [await driver.prepare(bench.shape()) for _ in range(3)]
        await asyncio.gather(first.warm(), first.warm(), second.warm(), third.warm())
        await first.warm()
        spent = spent_ticks(bench.node)
        await asyncio.sleep(0.5)
        assert spent_ticks(bench.node) == spent > 0
        instance = await first.boot(bench.spec())
        with pytest.raises(ConflictError):
            await first.warm()
        async with meet(instance) as subject:
            await _furnish(subject)
            await _write(subject, into)
        await instance.destroy()
        instance = await second.restore(into, bench.spec())
        for again in (second.boot(bench.spec()), second.restore(into, bench.spec()), second.warm()):
            with pytest.raises(ConflictError):
                await again
        async with meet(instance) as subject:
            assert await _ask(subject) == 1
        await instance.destroy()
        await third.destroy()
        for gone in (third.warm(), third.restore(into, bench.spec()), third.boot(bench.spec())):
            with pytest.raises(SandboxEndedError):
                await gone

    async def test_one_may_be_destroyed_while_it_is_made_warm_or_restored(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        async with bench.sandbox(driver) as source:
            await _write(source, into)
        for pause_s in (0.005, 0.05, 0.1):
            warming, restoring = [await driver.prepare(bench.shape()) for _ in range(2)]
            tasks = [asyncio.create_task(warming.warm()), asyncio.create_task(_started(restoring, bench, into))]
            await asyncio.sleep(pause_s)
            await asyncio.gather(warming.destroy(), restoring.destroy())
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert ended is None or isinstance(ended, SandboxEndedError), ended

    async def test_many_are_restored_at_once(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _place(bench)
        async with bench.sandbox(driver) as source:
            await _furnish(source)
            await _write(source, into)

        async def one() -> int:
            async with restored(bench, driver, into) as subject:
                return await _ask(subject)

        assert await asyncio.gather(*(one() for _ in range(4))) == [1] * 4


@asynccontextmanager
async def restored(bench: Bench, driver: Driver, snapshot: Path, limits: Limits = SMALL) -> AsyncIterator[Subject]:
    """A sandbox that was restored, its guest awake; destroyed at the end."""
    instance = await _restore(bench, driver, snapshot, limits)
    try:
        async with meet(instance, limits) as subject:
            yield subject
    finally:
        await instance.destroy()


async def _restore(bench: Bench, driver: Driver, snapshot: Path, limits: Limits = SMALL, *, warm: bool = False) -> Instance:
    prepared = await driver.prepare(bench.shape(limits), snapshot=snapshot)
    if warm:
        await prepared.warm()
    return await prepared.restore(snapshot, bench.spec(limits))


async def _write(subject: Subject, into: Path) -> int:
    """A snapshot of one that goes on; what is restored from it is asleep."""
    await subject.link.checkpoint(armed=True)
    size = await subject.instance.snapshot(into, keep_running=True)
    await subject.link.checkpoint(armed=False)
    return size


async def _started(prepared: PreparedSandbox, bench: Bench, snapshot: Path) -> None:
    await prepared.restore(snapshot, bench.spec())


async def _refused(prepared: PreparedSandbox, bench: Bench, snapshot: Path, because: str) -> None:
    with pytest.raises(ConflictError) as refused:
        await prepared.restore(snapshot, bench.spec())
    assert refused.value.code is ErrorCode.SNAPSHOT_UNUSABLE
    assert because in refused.value.message


async def _furnish(subject: Subject, weight_mib: int = 1) -> None:
    """Something in every place: files on every kind of file system, and a process with a variable."""
    for place in _FILES:
        assert (await subject.run("sh", "-c", f"echo {place} > {place}; chmod 666 {place}", user=User.ROOT)).code == 0
    done = await subject.python(_COUNTER, _PORT, str(weight_mib), user=User.ROOT)
    assert done.code == 0, done.stderr


async def _ask(subject: Subject) -> int:
    """How often the process was asked, this time included; it checks its memory."""
    done = await subject.python(_ASK, _PORT)
    count, is_whole = done.stdout.split()
    assert is_whole == "1"
    return int(count)


async def _usage_or_end(instance: Instance) -> ExitReason | None:
    """Why it has ended, if it has."""
    try:
        await instance.usage()
    except SandboxEndedError:
        return (await instance.wait()).reason
    return None


def _place(bench: Bench, name: str = "one") -> Path:
    return bench.data_dir / "saved" / name / "image"
