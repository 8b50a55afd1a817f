"""The limits of a sandbox that runs, changed: up, down, together, and not at all."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from sandlot.link.types import Output
from sandlot.model.errors import ConflictError, InvalidRequestError, SandboxEndedError, UnsupportedError
from sandlot.model.ports import Change, DriverCapability, ExitReason
from sandlot.model.specs import MIB, ProcessSpec
from sandlot.testing.bench import SMALL, Bench, Subject, meet, spun
from sandlot.testing.driver_limits import able

_HOLD = """
import os, sys, time
held = [bytearray(b"x" * (1 << 20)) for _ in range(int(sys.argv[1]))]
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""
_MORE_MIB = 320
"""More than ``SMALL`` allows."""
_FORKS = r"""
import os, sys, time
for _ in sys.stdin:
    made = 0
    try:
        while made < 200:
            if os.fork() == 0:
                time.sleep(600)
            made += 1
    except OSError:
        pass
    os.write(1, b"%d\n" % made)
"""
_SPIN = "import os\nfor _ in range(3):\n    if os.fork() == 0: break\nwhile True: pass"


class ConfigureSuite:
    """See the module."""

    # ------------------------------------------------------------------------------------------------------- memory
    async def test_a_program_that_was_too_large_runs_once_memory_was_added(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_MEMORY)
        async with bench.sandbox(driver) as subject:
            assert await _fails(subject, _MORE_MIB)
        async with bench.sandbox(driver) as subject:
            await subject.instance.configure(Change(memory_bytes=3 * SMALL.memory_bytes))
            done = await subject.python(_HOLD, str(_MORE_MIB), "0")
            assert (done.code, done.stdout) == (0, "held\n"), done.stderr
            assert (await subject.instance.usage()).memory_peak_bytes > _MORE_MIB * MIB

    async def test_memory_that_was_taken_away_is_not_to_be_had(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_MEMORY)
        async with bench.sandbox(driver, replace(SMALL, memory_bytes=1024 * MIB)) as subject:
            await subject.instance.configure(Change(memory_bytes=SMALL.memory_bytes))
            assert await _fails(subject, _MORE_MIB)
            with contextlib.suppress(SandboxEndedError):
                # Version 1 counts in batches, and may be a few pages over.
                assert (await subject.instance.usage()).memory_peak_bytes <= 1.01 * SMALL.memory_bytes

    async def test_memory_in_use_is_not_taken_away_and_nothing_is_changed(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_MEMORY)
        async with bench.sandbox(driver, replace(SMALL, memory_bytes=768 * MIB)) as subject, _running(subject, _MORE_MIB):
            with pytest.raises(ConflictError) as refused:
                await subject.instance.configure(Change(memory_bytes=SMALL.memory_bytes, cpus=0.05, pids=20))
            assert refused.value.fields["field"] == "memory_bytes"
            assert refused.value.fields["in_use"] >= _MORE_MIB * MIB
            # It lives, and has what it had.
            async with _running(subject, 200):
                assert (await subject.instance.usage()).memory_bytes >= (_MORE_MIB + 200) * MIB

    # ------------------------------------------------------------------------------------------------------- processor
    async def test_processor_time_is_taken_away_while_it_is_used(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_CPU)
        async with bench.sandbox(driver) as subject:
            spinning = asyncio.create_task(subject.python(_SPIN, timeout_s=None))
            await spun(subject.instance, (await subject.instance.usage()).cpu_s + 0.2)
            await subject.instance.configure(Change(cpus=0.2))
            began_s, before = time.monotonic(), (await subject.instance.usage()).cpu_s
            await asyncio.sleep(1.5)
            used = (await subject.instance.usage()).cpu_s - before
            # An upper bound: a busy host gives less, and what was left of a period may be used up at its beginning.
            assert used <= 0.2 * (time.monotonic() - began_s + 0.3) + 0.1
            await subject.instance.configure(Change(cpus=SMALL.cpus))
            await spun(subject.instance, before + used + 0.5)
            spinning.cancel()

    # ------------------------------------------------------------------------------------------------------- processes
    async def test_processes_are_allowed_and_refused_as_the_limit_moves(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_PIDS)
        async with bench.sandbox(driver, replace(SMALL, memory_bytes=1024 * MIB)) as subject:
            call = await subject.link.processes.start(ProcessSpec(argv=("python3", "-c", _FORKS), cwd="/", stdin=True, timeout_s=None))
            output = aiter(call)

            async def made() -> int:
                await call.write(b"\n")
                item = await anext(output)
                assert isinstance(item, Output)
                return int(item.data)

            first = await made()
            assert 0 < first < SMALL.pids
            await subject.instance.configure(Change(pids=2 * SMALL.pids))
            await subject.link.set_limits(pids=2 * SMALL.pids)
            second = await made()
            assert first + second <= 2 * SMALL.pids
            assert second >= SMALL.pids - 8
            # Down again: not while they run; the guest says so, and where its processes are the host's, the driver as well.
            with pytest.raises(ConflictError):
                await subject.link.set_limits(pids=SMALL.pids)
            assert await made() == 0
            await subject.link.processes.signal(call.id, 9)
            await call.aclose()
            while (await subject.link.info()).tasks > SMALL.pids // 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
            await subject.link.set_limits(pids=SMALL.pids)
            await subject.instance.configure(Change(pids=SMALL.pids))
            limit = await subject.python("import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])")
            assert limit.stdout == f"{SMALL.pids}\n"

    # ------------------------------------------------------------------------------------------------------- refusals
    async def test_what_cannot_be_changed_says_why_and_changes_nothing_else(self, bench: Bench) -> None:
        driver = bench.start()
        can = await asyncio.to_thread(driver.probe)
        if can.can(DriverCapability.CONFIGURE_DISK):
            pytest.skip("this driver changes disks as well")
        async with bench.sandbox(driver) as subject:
            with pytest.raises(UnsupportedError) as refused:
                await subject.instance.configure(Change(memory_bytes=3 * SMALL.memory_bytes, disk_bytes=2 * SMALL.disk_bytes))
            assert can.why_not(DriverCapability.CONFIGURE_DISK) in refused.value.message
            await subject.instance.configure(Change(disk_bytes=SMALL.disk_bytes))  # it is so already
            assert await _fails(subject, _MORE_MIB)

    async def test_what_no_sandbox_could_have_is_refused(self, bench: Bench) -> None:
        instance = await bench.boot(bench.start())
        impossible = (Change(memory_bytes=1), Change(cpus=math.nan), Change(cpus=0), Change(pids=0), Change(pids=10**9))
        for change in impossible:
            with pytest.raises(InvalidRequestError):
                await instance.configure(change)
        await instance.destroy()
        for change in impossible:
            with pytest.raises(SandboxEndedError):
                await instance.configure(change)

    async def test_a_paused_one_is_resumed_first(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_MEMORY)
        if not (can := await asyncio.to_thread(driver.probe)).can(DriverCapability.PAUSE):
            pytest.skip(can.why_not(DriverCapability.PAUSE))
        async with bench.sandbox(driver) as subject:
            await subject.instance.pause()
            with pytest.raises(ConflictError, match="paused"):
                await subject.instance.configure(Change(memory_bytes=2 * SMALL.memory_bytes))
            await subject.instance.resume()
            await subject.instance.configure(Change(memory_bytes=2 * SMALL.memory_bytes))
            assert (await subject.run("echo", "here")).stdout == "here\n"

    async def test_two_changes_at_once_are_both_made(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_MEMORY)
        async with bench.sandbox(driver) as subject:
            changes = [Change(memory_bytes=SMALL.memory_bytes + number * MIB) for number in range(20)]
            await asyncio.gather(*(subject.instance.configure(change) for change in [*changes, Change(cpus=0.5)]))
            await subject.instance.destroy()
            with pytest.raises(SandboxEndedError):
                await subject.instance.configure(Change(cpus=1.0))

    # ------------------------------------------------------------------------------------------------------- a restart
    async def test_changed_limits_and_usage_are_right_after_a_restart(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.CONFIGURE_MEMORY)
        if not (can := await asyncio.to_thread(driver.probe)).can(DriverCapability.ADOPT):
            pytest.skip(can.why_not(DriverCapability.ADOPT))
        first = await bench.boot(driver)
        limit = SMALL.memory_bytes + 32 * MIB
        await first.configure(Change(memory_bytes=limit, cpus=0.8))
        before = await first.usage()
        instance = await bench.start().adopt(first.ref)
        async with meet(instance) as subject:
            async with _running(subject, 40):
                after = await instance.usage()
                assert after.cpu_s > before.cpu_s
                assert after.memory_bytes >= before.memory_bytes + 35 * MIB
            await instance.configure(Change(cpus=SMALL.cpus))
            assert await _fails(subject, _MORE_MIB)
            with contextlib.suppress(SandboxEndedError):
                await subject.link.shutdown()
            end = await instance.wait()
            assert end.reason is ExitReason.EXITED or (end.reason is ExitReason.OOM and str(limit // MIB) in end.detail)
        await instance.destroy()


@asynccontextmanager
async def _running(subject: Subject, mib: int) -> AsyncIterator[None]:
    """Something that holds so much memory meanwhile."""
    call = await subject.link.processes.start(ProcessSpec(argv=("python3", "-c", _HOLD, str(mib), "600"), cwd="/", timeout_s=None))
    item = await anext(aiter(call))
    assert isinstance(item, Output)
    assert item.data == b"held\n", item.data
    try:
        yield
    finally:
        with contextlib.suppress(SandboxEndedError):
            await subject.link.processes.signal(call.id, 9)
        await call.aclose()


async def _fails(subject: Subject, mib: int) -> bool:
    """Whether a program that holds so much memory comes to nothing, and be it that it takes the sandbox along."""
    try:
        done = await subject.python(_HOLD, str(mib), "0")
    except SandboxEndedError:
        return (await subject.instance.wait()).reason is ExitReason.OOM
    return done.code != 0
