"""The contract of a driver that needs no real kernel: what every driver does alike, the in-memory one included.

``Bench.open_driver`` makes the driver under test. For a driver in memory it returns the same object after ``MemoryDriver.restart``. The other
suites of this package add what only a real driver can show: limits that hold, walls, and a host on which nothing is left.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.link.client import Link
from sandlot.model.errors import ConflictError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.ports import Driver, DriverCapability, ExitReason
from sandlot.testing.bench import SMALL, Bench, Subject, meet
from sandlot.testing.driver_limits import able


class DriverContractSuite:
    """Subclass it, name the class ``Test…`` and give it a ``bench`` fixture."""

    async def test_probe_names_every_ability_or_the_reason_that_it_is_missing(self, bench: Bench) -> None:
        driver = bench.start()
        can = await asyncio.to_thread(driver.probe)
        assert can.driver == driver.name
        assert can.runtime
        assert can.can(DriverCapability.BOOT), can.why_not(DriverCapability.BOOT)
        assert [ability for ability in DriverCapability if not can.can(ability) and not can.why_not(ability)] == []
        assert driver.fingerprint() == driver.fingerprint()
        assert driver.max_resources(SMALL).memory_bytes >= SMALL.memory_bytes

    async def test_prepared_sandbox_starts_once(self, bench: Bench) -> None:
        prepared = await bench.start().prepare(bench.shape())
        instance = await prepared.boot(bench.spec())
        with pytest.raises(ConflictError):
            await prepared.boot(bench.spec())
        async with meet(instance) as subject:
            assert (await subject.run("sh", "-c", "echo out; echo err >&2; exit 3")).code == 3
        await instance.destroy()
        with pytest.raises(SandboxEndedError) as ended:
            await instance.connect()
        assert ended.value.fields["reason"] == ExitReason.KILLED
        assert (await instance.wait()).reason is ExitReason.KILLED

    async def test_destroyed_prepared_sandbox_does_not_start(self, bench: Bench) -> None:
        prepared = await bench.start().prepare(bench.shape())
        await asyncio.gather(prepared.destroy(), prepared.destroy())
        with pytest.raises(SandlotError):
            await prepared.boot(bench.spec())

    async def test_one_connection_at_a_time_and_any_number_in_turn(self, bench: Bench) -> None:
        instance = await bench.boot(bench.start())
        for number in range(2):
            async with meet(instance) as subject:
                assert (await subject.run("echo", str(number))).stdout == f"{number}\n"
        stream = await instance.connect()
        with pytest.raises(ConflictError):
            await instance.connect()
        await stream.aclose()
        await stream.aclose()
        stream = await instance.connect()
        receiving = asyncio.create_task(stream.receive(10))
        await instance.destroy()
        assert await receiving == b""
        with pytest.raises(BrokenPipeError):
            stream.try_send(bytes(10))
        await stream.wait_writable()
        await stream.aclose()

    async def test_guest_that_shuts_down_has_exited(self, bench: Bench) -> None:
        async with bench.sandbox() as subject:
            waiting = [asyncio.create_task(subject.instance.wait()) for _ in range(2)]
            cancelled = asyncio.create_task(subject.instance.wait())
            await asyncio.sleep(0)
            cancelled.cancel()
            await subject.link.shutdown()
            assert {exit_.reason for exit_ in await asyncio.gather(*waiting)} == {ExitReason.EXITED}
            for method in (subject.instance.usage, subject.instance.pause, subject.instance.resume, subject.instance.connect):
                with pytest.raises(SandlotError):
                    await method()
        assert (await subject.instance.wait()).reason is ExitReason.EXITED, "destroying it does not change why it ended"

    async def test_paused_sandbox_takes_no_frames_beyond_its_buffer_and_goes_on(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.PAUSE)
        instance = await bench.boot(driver)
        async with meet(instance) as subject:
            await instance.pause()
            await instance.pause()
            call = asyncio.create_task(subject.run("echo", "late"))
            await asyncio.wait({call}, timeout=0.05)
            assert not call.done()
            await instance.resume()
            await instance.resume()
            assert (await call).stdout == "late\n"
        stream = await instance.connect()
        await instance.pause()
        sent = 0
        while stream.try_send(bytes(4096)):
            sent += 1
            assert sent < 1000, "the link of a paused sandbox has no bound"
        assert sent > 0
        await stream.aclose()
        await instance.destroy()
        assert (await instance.wait()).reason is ExitReason.KILLED

    async def test_live_sandbox_is_adopted_by_the_next_service_and_strays_are_swept(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.ADOPT)
        instances = [await bench.boot(driver) for _ in range(2)]
        kept, stray = instances
        async with meet(kept) as subject:
            await subject.link.files.write("/tmp/mark", b"kept")  # noqa: S108 - inside of the sandbox
        after = bench.start()
        with pytest.raises(NotFoundError):
            await after.adopt("no-such-ref")
        adopted = await after.adopt(kept.ref)
        assert adopted.ref == kept.ref
        assert await after.sweep(keep=[stray.ref]) == 0
        assert await after.sweep(keep=()) == 1
        async with meet(adopted) as subject:
            assert (await subject.run("cat", "/tmp/mark")).stdout == "kept"  # noqa: S108
        await adopted.destroy()
        assert await after.sweep(keep=()) == 0


class SnapshotContractSuite:
    """Contract of a driver that has snapshots; mix it in beside :class:`DriverContractSuite`."""

    async def test_snapshot_restores_files_and_variables_any_number_of_times(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _folder(bench)
        async with bench.sandbox(driver) as subject:
            await subject.link.files.write("/home/user/file", b"saved")
            await subject.link.checkpoint(armed=True)
            assert await subject.instance.snapshot(into, keep_running=True) > 0
            await subject.link.checkpoint(armed=False)
            await subject.link.files.write("/home/user/file", b"later")
            with pytest.raises(ConflictError):
                await subject.instance.snapshot(into, keep_running=True)
            assert (await subject.run("cat", "/home/user/file")).stdout == "later"
        assert driver.restorable(into).ok
        for _ in range(2):
            prepared = await driver.prepare(bench.shape(), snapshot=into)
            await prepared.warm()
            instance = await prepared.restore(into, bench.spec())
            link = await Link.open(await instance.connect())
            assert link.asleep
            await link.aclose()
            async with meet(instance) as subject:
                assert (await subject.run("cat", "/home/user/file")).stdout == "saved"
                await subject.link.files.write("/home/user/file", b"of this one")
            await instance.destroy()

    async def test_snapshot_that_ends_the_sandbox_holds_all_of_it(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _folder(bench)
        async with bench.sandbox(driver) as subject:
            await subject.link.files.write("/home/user/file", b"all")
            await subject.link.quiesce()
            await subject.instance.snapshot(into, keep_running=False)
            with pytest.raises(SandboxEndedError):
                await subject.instance.usage()
        async with _restored(bench, driver, into) as subject:
            assert (await subject.run("cat", "/home/user/file")).stdout == "all"

    async def test_snapshot_that_does_not_fit_is_refused_and_nothing_is_used_up(self, bench: Bench) -> None:
        driver, into = await able(bench, DriverCapability.SNAPSHOT), _folder(bench)
        async with bench.sandbox(driver) as subject:
            await subject.link.checkpoint(armed=True)
            await subject.instance.snapshot(into, keep_running=True)
        assert not driver.restorable(into.parent / "missing").ok
        prepared = await driver.prepare(bench.shape())
        with pytest.raises(ConflictError) as refused:
            await prepared.restore(into.parent / "missing", bench.spec())
        assert refused.value.code == "snapshot_unusable"
        async with meet(await prepared.restore(into, bench.spec())) as subject:
            assert (await subject.run("true")).code == 0
        await prepared.destroy()


class _restored:  # noqa: N801 - used like a function
    """A restored sandbox with its guest awake; destroyed in the end."""

    def __init__(self, bench: Bench, driver: Driver, snapshot: Path) -> None:
        self._bench = bench
        self._driver = driver
        self._snapshot = snapshot

    async def __aenter__(self) -> Subject:
        prepared = await self._driver.prepare(self._bench.shape(), snapshot=self._snapshot)
        self._instance = await prepared.restore(self._snapshot, self._bench.spec())
        self._meeting = meet(self._instance)
        return await self._meeting.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._meeting.__aexit__(None, None, None)
        await self._instance.destroy()


def _folder(bench: Bench) -> Path:
    folder = bench.data_dir / "saved" / "one"
    folder.mkdir(parents=True)
    return folder / "image"
