"""From prepare to the end: booting, the link's bytes, waiting, destroying, pausing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from sandlot.model.errors import SandboxEndedError, UnsupportedError
from sandlot.model.ports import ByteStream, Change, DriverCapability, ExitReason
from sandlot.testing.bench import SMALL, Bench, spun
from sandlot.testing.driver_clean import CleanSuite
from sandlot.testing.traces import traces

_FRAME = bytes(4096)
_BIG_BYTES = 32 * 1024 * 1024
_CHANGES = {
    DriverCapability.CONFIGURE_MEMORY: Change(memory_bytes=2 * SMALL.memory_bytes),
    DriverCapability.CONFIGURE_CPU: Change(cpus=SMALL.cpus / 2),
    DriverCapability.CONFIGURE_PIDS: Change(pids=2 * SMALL.pids),
    DriverCapability.CONFIGURE_DISK: Change(disk_bytes=2 * SMALL.disk_bytes),
}


class LifeSuite(CleanSuite):
    """See the module."""

    # ------------------------------------------------------------------------------------------------------- the probe
    async def test_what_the_probe_denies_is_refused_with_a_reason(self, bench: Bench, tmp_path: Path) -> None:
        driver = bench.start()
        can = await asyncio.to_thread(driver.probe)
        async with bench.sandbox(driver) as subject:
            if not can.can(DriverCapability.SNAPSHOT):
                with pytest.raises(UnsupportedError):
                    await subject.instance.snapshot(tmp_path / "snapshot", keep_running=True)
            for ability, change in _CHANGES.items():
                if not can.can(ability):
                    with pytest.raises(UnsupportedError):
                        await subject.instance.configure(change)
            if not can.can(DriverCapability.PAUSE):
                with pytest.raises(UnsupportedError):
                    await subject.instance.pause()
        if not can.can(DriverCapability.SNAPSHOT):
            prepared = await driver.prepare(bench.shape())
            for refused in (prepared.restore(tmp_path / "snapshot", bench.spec()), prepared.warm()):
                with pytest.raises(UnsupportedError):
                    await refused
            await prepared.destroy()
            verdict = driver.restorable(tmp_path / "snapshot")
            assert (verdict.ok, verdict.reason) == (False, can.why_not(DriverCapability.SNAPSHOT))

    # ------------------------------------------------------------------------------------------------------- booting
    async def test_what_is_written_inside_can_be_run_and_loaded(self, bench: Bench) -> None:
        program = (
            "import ctypes, glob, os, shutil\n"
            "shutil.copy('/bin/echo', '/home/user/echo')\n"
            "shutil.copy(glob.glob('/lib/*/libc.so.6')[0], '/home/user/own.so')\n"
            "print(ctypes.CDLL('/home/user/own.so').abs(-7), flush=True)\n"
            "os.execv('/home/user/echo', ['echo', 'ran'])\n"
        )
        async with bench.sandbox() as subject:
            done = await subject.python(program)
        assert (done.code, done.stdout) == (0, "7\nran\n"), done.stderr

    async def test_sandboxes_share_nothing(self, bench: Bench) -> None:
        driver = bench.start()
        async with bench.sandbox(driver) as one, bench.sandbox(driver) as other:
            assert one.instance.ref != other.instance.ref
            for place in ("/tmp/mine", "/home/user/mine", "/dev/shm/mine"):  # noqa: S108 - inside of the sandbox
                assert (await one.run("sh", "-c", f"echo mine > {place}")).code == 0
                assert (await other.run("test", "-e", place)).code == 1
                assert (await one.run("cat", place)).stdout == "mine\n"

    async def test_many_boot_at_once(self, bench: Bench) -> None:
        driver = bench.start()

        async def one(number: int) -> str:
            async with bench.sandbox(driver) as subject:
                return (await subject.run("echo", str(number))).stdout

        assert await asyncio.gather(*(one(number) for number in range(4))) == [f"{number}\n" for number in range(4)]

    # ------------------------------------------------------------------------------------------------------- the link
    async def test_much_flows_both_ways_at_once(self, bench: Bench) -> None:
        async with bench.sandbox() as subject:
            text = bytes(range(256)) * (_BIG_BYTES // 256)
            count = "import sys; text = sys.stdin.buffer.read(); print(len(text), text == bytes(range(256)) * (len(text) // 256))"
            made = subject.run("dd", "if=/dev/zero", f"bs={_BIG_BYTES}", "count=1", "status=none")
            taken = subject.run("python3", "-c", count, stdin=text)
            told, poured = await asyncio.gather(taken, made)
        assert told.stdout == f"{_BIG_BYTES} True\n"
        assert len(poured.stdout) == _BIG_BYTES

    async def test_a_full_link_refuses_whole_frames_and_wakes_the_writer(self, bench: Bench) -> None:
        driver = bench.start()
        if not (can := await asyncio.to_thread(driver.probe)).can(DriverCapability.PAUSE):
            pytest.skip(can.why_not(DriverCapability.PAUSE))
        instance = await bench.boot(driver)
        stream = await instance.connect()
        await instance.pause()
        sent = 0
        while stream.try_send(_FRAME):
            sent += 1
            assert sent * len(_FRAME) < _BIG_BYTES, "a link that is never full has no bound"
        assert sent > 0
        waiting = asyncio.create_task(stream.wait_writable())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await instance.resume()
        await waiting
        assert stream.try_send(_FRAME)
        await stream.aclose()
        await instance.destroy()

    async def test_a_stream_ends_with_its_sandbox(self, bench: Bench) -> None:
        instance = await bench.boot(bench.start())
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
    async def test_destroying_is_idempotent_and_shared(self, bench: Bench) -> None:
        instance = await bench.boot(bench.start())
        first = asyncio.create_task(instance.destroy())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*(instance.destroy() for _ in range(4)))
        with contextlib.suppress(asyncio.CancelledError):
            await first
        assert traces(bench.data_dir, bench.node) == ()
        await instance.destroy()

    async def test_destroying_while_it_boots(self, bench: Bench) -> None:
        driver = bench.start()
        for delay_s in (0.0, 0.002, 0.02, 0.06, 0.15):
            prepared = await driver.prepare(bench.shape())
            booting = asyncio.create_task(prepared.boot(bench.spec()))
            await asyncio.sleep(delay_s)
            await prepared.destroy()
            with contextlib.suppress(SandboxEndedError):
                instance = await booting
                assert (await instance.wait()).reason is ExitReason.KILLED
            assert traces(bench.data_dir, bench.node) == ()

    async def test_cancelling_any_step_leaves_nothing(self, bench: Bench) -> None:
        driver = bench.start()
        for delay_s in (0.0, 0.001, 0.003, 0.015, 0.03, 0.1, 0.2):
            making = asyncio.create_task(bench.boot(driver))
            await asyncio.sleep(delay_s)
            making.cancel()
            try:
                instance = await making
            except asyncio.CancelledError:
                pass
            else:
                await instance.destroy()
            assert traces(bench.data_dir, bench.node) == ()

    # ------------------------------------------------------------------------------------------------------- pausing
    async def test_a_paused_sandbox_uses_no_time_and_goes_on(self, bench: Bench) -> None:
        driver = bench.start()
        if not (can := await asyncio.to_thread(driver.probe)).can(DriverCapability.PAUSE):
            pytest.skip(can.why_not(DriverCapability.PAUSE))
        async with bench.sandbox(driver) as subject:
            instance = subject.instance
            spinning = asyncio.create_task(subject.run("sh", "-c", "while :; do :; done", timeout_s=None))
            before = (await instance.usage()).cpu_s
            await spun(instance, before + 0.1)
            await instance.pause()
            await instance.pause()
            frozen = (await instance.usage()).cpu_s
            await asyncio.sleep(0.2)
            assert (await instance.usage()).cpu_s == pytest.approx(frozen, abs=0.005)
            await instance.resume()
            await instance.resume()
            await spun(instance, frozen + 0.1)
            assert (await subject.run("echo", "here")).stdout == "here\n"
            spinning.cancel()


async def _read_to_end(stream: ByteStream) -> bool:
    while await stream.receive(65536):
        pass
    return True
