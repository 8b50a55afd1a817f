"""Tests of driver behaviours that need no real kernel. The in-memory driver passes these tests too.

``DriverHarness.open_driver`` opens the driver under test. To test the in-memory driver, pass a function that calls ``MemoryDriver.restart`` and
returns the same driver. The other modules of this package test what only real drivers do: enforce limits, isolate sandboxes and leave nothing on the
host.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandlot.link.client import Link
from sandlot.model.errors import ConflictError, NotFoundError, SandboxEndedError, SandlotError
from sandlot.model.ports import DriverCapability, ExitReason
from sandlot.testing.drivers.harness import SMALL_LIMITS, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot


class DriverContractSuite:
    """Tests that every driver must pass. Name your subclass ``Test...``, and define a fixture ``harness`` in the subclass."""

    async def test_probe_reports_each_capability_or_the_reason_why_it_is_missing(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()
        capabilities = await asyncio.to_thread(driver.probe)
        assert capabilities.driver == driver.name
        assert capabilities.runtime
        assert capabilities.can(DriverCapability.BOOT), capabilities.why_not(DriverCapability.BOOT)
        assert [capability for capability in DriverCapability if not capabilities.can(capability) and not capabilities.why_not(capability)] == []
        assert driver.fingerprint() == driver.fingerprint()
        assert driver.max_resources(SMALL_LIMITS).memory_bytes >= SMALL_LIMITS.memory_bytes

    async def test_prepared_sandbox_starts_once(self, harness: DriverHarness) -> None:
        prepared = await harness.new_driver().prepare(harness.shape())
        instance = await prepared.boot(harness.spec())
        with pytest.raises(ConflictError):
            await prepared.boot(harness.spec())
        async with connect_sandbox(instance) as sandbox:
            assert (await sandbox.run("sh", "-c", "echo out; echo err >&2; exit 3")).exit_code == 3
        await instance.destroy()
        with pytest.raises(SandboxEndedError) as ended:
            await instance.connect()
        assert ended.value.fields["reason"] == ExitReason.KILLED
        assert (await instance.wait()).reason is ExitReason.KILLED

    async def test_destroyed_prepared_sandbox_does_not_start(self, harness: DriverHarness) -> None:
        prepared = await harness.new_driver().prepare(harness.shape())
        await asyncio.gather(prepared.destroy(), prepared.destroy())
        with pytest.raises(SandlotError):
            await prepared.boot(harness.spec())

    async def test_one_connection_at_a_time_and_any_number_in_turn(self, harness: DriverHarness) -> None:
        instance = await harness.boot(harness.new_driver())
        for number in range(2):
            async with connect_sandbox(instance) as sandbox:
                assert (await sandbox.run("echo", str(number))).stdout == f"{number}\n"
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

    async def test_guest_that_shuts_down_has_exited(self, harness: DriverHarness) -> None:
        async with harness.sandbox() as sandbox:
            waiting = [asyncio.create_task(sandbox.instance.wait()) for _ in range(2)]
            cancelled = asyncio.create_task(sandbox.instance.wait())
            await asyncio.sleep(0)
            cancelled.cancel()
            await sandbox.link.shutdown()
            assert {exit_.reason for exit_ in await asyncio.gather(*waiting)} == {ExitReason.EXITED}
            for method in (sandbox.instance.usage, sandbox.instance.pause, sandbox.instance.resume, sandbox.instance.connect):
                with pytest.raises(SandlotError):
                    await method()
        assert (await sandbox.instance.wait()).reason is ExitReason.EXITED, "destroy does not change the reason of the end"

    async def test_resume_of_a_running_sandbox_does_nothing(self, harness: DriverHarness) -> None:
        async with harness.sandbox() as sandbox:
            await sandbox.instance.resume()  # a service resumes every sandbox that it adopts, whether the driver can pause or not
            assert (await sandbox.run("echo", "on")).stdout == "on\n"

    async def test_link_of_a_paused_sandbox_is_bounded_and_continues(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.PAUSE)
        instance = await harness.boot(driver)
        async with connect_sandbox(instance) as sandbox:
            await instance.pause()
            await instance.pause()
            call = asyncio.create_task(sandbox.run("echo", "late"))
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

    async def test_live_sandbox_is_adopted_by_the_next_service_and_others_are_swept(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.ADOPT)
        instances = [await harness.boot(driver) for _ in range(2)]
        kept, other = instances
        async with connect_sandbox(kept) as sandbox:
            await sandbox.link.files.write("/tmp/mark", b"kept")  # noqa: S108 - inside of the sandbox
        after = harness.new_driver()
        with pytest.raises(NotFoundError):
            await after.adopt("no-such-ref")
        adopted = await after.adopt(kept.ref)
        assert adopted.ref == kept.ref
        assert await after.sweep(keep=[other.ref]) == 0
        assert await after.sweep(keep=()) == 1
        async with connect_sandbox(adopted) as sandbox:
            assert (await sandbox.run("cat", "/tmp/mark")).stdout == "kept"  # noqa: S108
        await adopted.destroy()
        assert await after.sweep(keep=()) == 0


class SnapshotContractSuite:
    """Tests that every driver that supports snapshots must pass, in addition to :class:`DriverContractSuite`."""

    async def test_snapshot_restores_files_and_variables_any_number_of_times(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _folder(harness)
        async with harness.sandbox(driver) as sandbox:
            await sandbox.link.files.write("/home/user/file", b"saved")
            await sandbox.link.checkpoint(armed=True)
            assert await take_snapshot(sandbox.instance, into, keep_running=True) > 0
            await sandbox.link.checkpoint(armed=False)
            await sandbox.link.files.write("/home/user/file", b"later")
            with pytest.raises(ConflictError):
                await take_snapshot(sandbox.instance, into, keep_running=True)
            assert (await sandbox.run("cat", "/home/user/file")).stdout == "later"
        assert driver.restorable(into).ok
        for _ in range(2):
            prepared = await driver.prepare(harness.shape(), snapshot=into)
            await prepared.warm()
            instance = await restore_snapshot(driver, prepared, into, harness.spec())
            link = await Link.open(await instance.connect())
            assert link.asleep
            await link.aclose()
            async with connect_sandbox(instance) as sandbox:
                assert (await sandbox.run("cat", "/home/user/file")).stdout == "saved"
                await sandbox.link.files.write("/home/user/file", b"of this one")
            await instance.destroy()

    async def test_snapshot_that_ends_the_sandbox_is_complete(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _folder(harness)
        async with harness.sandbox(driver) as sandbox:
            await sandbox.link.files.write("/home/user/file", b"all")
            await sandbox.link.quiesce()
            await take_snapshot(sandbox.instance, into, keep_running=False)
            with pytest.raises(SandboxEndedError):
                await sandbox.instance.usage()
        async with harness.restored_sandbox(driver, into) as sandbox:
            assert (await sandbox.run("cat", "/home/user/file")).stdout == "all"

    async def test_unusable_snapshot_is_refused_and_the_prepared_sandbox_can_still_be_restored(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _folder(harness)
        async with harness.sandbox(driver) as sandbox:
            await sandbox.link.checkpoint(armed=True)
            await take_snapshot(sandbox.instance, into, keep_running=True)
        assert not driver.restorable(into.parent / "missing").ok
        prepared = await driver.prepare(harness.shape())
        with pytest.raises(ConflictError) as refused:
            await restore_snapshot(driver, prepared, into.parent / "missing", harness.spec())
        assert refused.value.code == "snapshot_unusable"
        async with connect_sandbox(await restore_snapshot(driver, prepared, into, harness.spec())) as sandbox:
            assert (await sandbox.run("true")).exit_code == 0
        await prepared.destroy()

    async def test_headroom_of_a_snapshot_and_a_restore_is_withdrawn(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _folder(harness)
        async with harness.sandbox(driver) as sandbox:
            needed = await sandbox.instance.snapshot_headroom()
            assert 0 <= needed.least_bytes <= needed.most_bytes
            await sandbox.link.checkpoint(armed=True)
            await sandbox.instance.snapshot(into, keep_running=True, headroom_bytes=needed.least_bytes)
            await sandbox.link.checkpoint(armed=False)
            assert sandbox.instance.headroom_bytes <= needed.least_bytes
            await sandbox.instance.wait_headroom_withdrawn()
            assert sandbox.instance.headroom_bytes == 0
            assert (await sandbox.run("echo", "on")).stdout == "on\n"
        needed = await driver.restore_headroom(into, SMALL_LIMITS)
        assert 0 <= needed.least_bytes <= needed.most_bytes
        prepared = await driver.prepare(harness.shape(), snapshot=into)
        instance = await prepared.restore(into, harness.spec(), headroom_bytes=needed.least_bytes)
        async with connect_sandbox(instance) as sandbox:
            assert instance.headroom_bytes <= needed.least_bytes
            await instance.wait_headroom_withdrawn()
            assert instance.headroom_bytes == 0
            assert (await sandbox.run("echo", "on")).stdout == "on\n"
        await instance.destroy()

    async def test_ended_sandbox_has_no_headroom(self, harness: DriverHarness) -> None:
        driver, into = await harness.driver_with(DriverCapability.SNAPSHOT), _folder(harness)
        async with harness.sandbox(driver) as sandbox:
            await take_snapshot(sandbox.instance, into, keep_running=False)
            await sandbox.instance.wait_headroom_withdrawn()
            assert sandbox.instance.headroom_bytes == 0
            with pytest.raises(SandboxEndedError):
                await sandbox.instance.snapshot_headroom()
        await sandbox.instance.wait_headroom_withdrawn()
        assert sandbox.instance.headroom_bytes == 0


def _folder(harness: DriverHarness) -> Path:
    folder = harness.data_dir / "saved" / "one"
    folder.mkdir(parents=True)
    return folder / "image"
