"""Tests of the lifecycle of a sandbox: probe, prepare, boot, connect, pause and destroy, with nothing left on the host."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from sandlot.model.errors import SandboxEndedError, UnsupportedError
from sandlot.model.ports import ByteStream, Change, DriverCapability, ExitReason
from sandlot.testing.drivers.cleanup import CleanupSuite
from sandlot.testing.drivers.harness import SMALL_LIMITS, DriverHarness, wait_for_cpu_time
from sandlot.testing.drivers.leftovers import leftovers

_FRAME = bytes(4096)
_BIG_BYTES = 32 * 1024 * 1024
_CHANGES = {
    DriverCapability.CONFIGURE_MEMORY: Change(memory_bytes=2 * SMALL_LIMITS.memory_bytes),
    DriverCapability.CONFIGURE_CPU: Change(cpus=SMALL_LIMITS.cpus / 2),
    DriverCapability.CONFIGURE_PIDS: Change(pids=2 * SMALL_LIMITS.pids),
    DriverCapability.CONFIGURE_DISK: Change(disk_bytes=2 * SMALL_LIMITS.disk_bytes),
}


class LifecycleSuite(CleanupSuite):
    """Tests of a driver during the lifecycle of a sandbox. Needs a fixture ``harness``."""

    # ------------------------------------------------------------------------------------------------------- the probe
    async def test_missing_capability_raises_unsupported_error(self, harness: DriverHarness, tmp_path: Path) -> None:
        driver = harness.new_driver()
        capabilities = await asyncio.to_thread(driver.probe)
        async with harness.sandbox(driver) as sandbox:
            if not capabilities.can(DriverCapability.SNAPSHOT):
                with pytest.raises(UnsupportedError):
                    await sandbox.instance.snapshot(tmp_path / "snapshot", keep_running=True, headroom_bytes=0)
            for capability, change in _CHANGES.items():
                if not capabilities.can(capability):
                    with pytest.raises(UnsupportedError):
                        await sandbox.instance.configure(change)
            if not capabilities.can(DriverCapability.PAUSE):
                with pytest.raises(UnsupportedError):
                    await sandbox.instance.pause()
        if not capabilities.can(DriverCapability.SNAPSHOT):
            prepared = await driver.prepare(harness.shape())
            for refused in (prepared.restore(tmp_path / "snapshot", harness.spec(), headroom_bytes=0), prepared.warm()):
                with pytest.raises(UnsupportedError):
                    await refused
            await prepared.destroy()
            result = driver.restorable(tmp_path / "snapshot")
            assert (result.ok, result.reason) == (False, capabilities.why_not(DriverCapability.SNAPSHOT))

    # ------------------------------------------------------------------------------------------------------- booting
    async def test_written_files_can_be_executed_and_loaded(self, harness: DriverHarness) -> None:
        program = (
            "import ctypes, glob, os, shutil\n"
            "shutil.copy('/bin/echo', '/home/user/echo')\n"
            "shutil.copy(glob.glob('/lib/*/libc.so.6')[0], '/home/user/own.so')\n"
            "print(ctypes.CDLL('/home/user/own.so').abs(-7), flush=True)\n"
            "os.execv('/home/user/echo', ['echo', 'ran'])\n"
        )
        async with harness.sandbox() as sandbox:
            done = await sandbox.python(program)
        assert (done.exit_code, done.stdout) == (0, "7\nran\n"), done.stderr

    async def test_sandboxes_share_no_files(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()
        async with harness.sandbox(driver) as one, harness.sandbox(driver) as other:
            assert one.instance.ref != other.instance.ref
            for place in ("/tmp/mine", "/home/user/mine", "/dev/shm/mine"):  # noqa: S108 - inside of the sandbox
                assert (await one.run("sh", "-c", f"echo mine > {place}")).exit_code == 0
                assert (await other.run("test", "-e", place)).exit_code == 1
                assert (await one.run("cat", place)).stdout == "mine\n"

    async def test_sandboxes_boot_concurrently(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()

        async def one(number: int) -> str:
            async with harness.sandbox(driver) as sandbox:
                return (await sandbox.run("echo", str(number))).stdout

        assert await asyncio.gather(*(one(number) for number in range(4))) == [f"{number}\n" for number in range(4)]

    # ------------------------------------------------------------------------------------------------------- the link
    async def test_large_input_and_output_pass_concurrently(self, harness: DriverHarness) -> None:
        async with harness.sandbox() as sandbox:
            text = bytes(range(256)) * (_BIG_BYTES // 256)
            count = "import sys; text = sys.stdin.buffer.read(); print(len(text), text == bytes(range(256)) * (len(text) // 256))"
            printing = sandbox.run("dd", "if=/dev/zero", f"bs={_BIG_BYTES}", "count=1", "status=none")
            counting = sandbox.run("python3", "-c", count, stdin=text)
            counted, zeros = await asyncio.gather(counting, printing)
        assert counted.stdout == f"{_BIG_BYTES} True\n"
        assert len(zeros.stdout) == _BIG_BYTES

    async def test_full_link_refuses_whole_frames_until_it_is_writable(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.PAUSE)
        instance = await harness.boot(driver)
        stream = await instance.connect()
        await instance.pause()
        sent = 0
        while stream.try_send(_FRAME):
            sent += 1
            assert sent * len(_FRAME) < _BIG_BYTES, "the link is never full: it has no bound"
        assert sent > 0
        waiting = asyncio.create_task(stream.wait_writable())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await instance.resume()
        await waiting
        assert stream.try_send(_FRAME)
        await stream.aclose()
        await instance.destroy()

    async def test_stream_ends_with_its_sandbox(self, harness: DriverHarness) -> None:
        instance = await harness.boot(harness.new_driver())
        stream = await instance.connect()
        receiving = asyncio.create_task(_read_to_end(stream))
        await asyncio.sleep(0.1)
        await instance.destroy()
        assert await receiving
        with pytest.raises(BrokenPipeError):
            stream.try_send(_FRAME)
        await stream.wait_writable()
        assert await stream.receive(10) == b""
        await stream.aclose()
        with pytest.raises(SandboxEndedError) as ended:
            await instance.connect()
        assert ended.value.fields["reason"] == ExitReason.KILLED

    # ------------------------------------------------------------------------------------------------------- the end
    async def test_destroy_is_idempotent_and_survives_a_cancelled_caller(self, harness: DriverHarness) -> None:
        instance = await harness.boot(harness.new_driver())
        first = asyncio.create_task(instance.destroy())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*(instance.destroy() for _ in range(4)))
        with contextlib.suppress(asyncio.CancelledError):
            await first
        assert leftovers(harness.data_dir, harness.node) == ()
        await instance.destroy()

    async def test_destroy_during_boot_leaves_nothing(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()
        for delay_s in (0.0, 0.002, 0.02, 0.06, 0.15):
            prepared = await driver.prepare(harness.shape())
            booting = asyncio.create_task(prepared.boot(harness.spec()))
            await asyncio.sleep(delay_s)
            await prepared.destroy()
            with contextlib.suppress(SandboxEndedError):
                instance = await booting
                assert (await instance.wait()).reason is ExitReason.KILLED
            assert leftovers(harness.data_dir, harness.node) == ()

    async def test_cancelled_create_leaves_nothing(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()
        for delay_s in (0.0, 0.001, 0.003, 0.015, 0.03, 0.1, 0.2):
            making = asyncio.create_task(harness.boot(driver))
            await asyncio.sleep(delay_s)
            making.cancel()
            try:
                instance = await making
            except asyncio.CancelledError:
                pass
            else:
                await instance.destroy()
            assert leftovers(harness.data_dir, harness.node) == ()

    # ------------------------------------------------------------------------------------------------------- pausing
    async def test_paused_sandbox_uses_no_processor_time_and_continues(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.PAUSE)
        async with harness.sandbox(driver) as sandbox:
            instance = sandbox.instance
            spinning = asyncio.create_task(sandbox.run("sh", "-c", "while :; do :; done", timeout_s=None))
            before = (await instance.usage()).cpu_s
            await wait_for_cpu_time(instance, before + 0.1)
            await instance.pause()
            await instance.pause()
            frozen = (await instance.usage()).cpu_s
            await asyncio.sleep(0.2)
            assert (await instance.usage()).cpu_s == pytest.approx(frozen, abs=0.005)
            await instance.resume()
            await instance.resume()
            await wait_for_cpu_time(instance, frozen + 0.1)
            assert (await sandbox.run("echo", "here")).stdout == "here\n"
            spinning.cancel()


async def _read_to_end(stream: ByteStream) -> bool:
    while await stream.receive(65536):
        pass
    return True
