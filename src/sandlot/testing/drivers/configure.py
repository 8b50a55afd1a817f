"""Tests of changes to the limits of a live sandbox: limits are raised and lowered, one or several at once, and invalid changes are refused."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from sandlot.model.errors import ConflictError, InvalidRequestError, SandboxEndedError, UnsupportedError
from sandlot.model.executions import Output
from sandlot.model.ports import Change, DriverCapability, ExitReason
from sandlot.model.specs import MIB, ProcessSpec
from sandlot.testing.drivers.harness import SMALL_LIMITS, ConnectedSandbox, DriverHarness, connect_sandbox, wait_for_cpu_time

_HOLD = """
import os, sys, time
held = [bytearray(b"x" * (1 << 20)) for _ in range(int(sys.argv[1]))]
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""
_MORE_MIB = 320
"""Memory in MiB: more than ``SMALL_LIMITS`` allows."""
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
_LIMITS = (DriverCapability.CONFIGURE_MEMORY, DriverCapability.CONFIGURE_CPU, DriverCapability.CONFIGURE_PIDS)
_SPIN = "import os\nfor _ in range(3):\n    if os.fork() == 0: break\nwhile True: pass"


class ConfigureSuite:
    """Tests that change the limits of a live sandbox. Needs a fixture ``harness``."""

    # ------------------------------------------------------------------------------------------------------- memory
    async def test_added_memory_can_be_used_at_once(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.CONFIGURE_MEMORY)
        async with harness.sandbox(driver) as sandbox:
            assert await _fails(sandbox, _MORE_MIB)
        async with harness.sandbox(driver) as sandbox:
            await sandbox.instance.configure(Change(memory_bytes=3 * SMALL_LIMITS.memory_bytes))
            done = await sandbox.python(_HOLD, str(_MORE_MIB), "0")
            assert (done.exit_code, done.stdout) == (0, "held\n"), done.stderr
            assert (await sandbox.instance.usage()).memory_peak_bytes > _MORE_MIB * MIB

    async def test_removed_memory_cannot_be_used(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.CONFIGURE_MEMORY)
        async with harness.sandbox(driver, replace(SMALL_LIMITS, memory_bytes=1024 * MIB)) as sandbox:
            await sandbox.instance.configure(Change(memory_bytes=SMALL_LIMITS.memory_bytes))
            assert await _fails(sandbox, _MORE_MIB)
            with contextlib.suppress(SandboxEndedError):
                # Version 1 of cgroups counts memory in batches, so the peak may exceed the limit by a few pages.
                assert (await sandbox.instance.usage()).memory_peak_bytes <= 1.01 * SMALL_LIMITS.memory_bytes

    async def test_memory_in_use_is_not_removed_and_the_change_is_refused_as_a_whole(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(*_LIMITS)
        async with harness.sandbox(driver, replace(SMALL_LIMITS, memory_bytes=768 * MIB)) as sandbox, _running(sandbox, _MORE_MIB):
            with pytest.raises(ConflictError) as error:
                await sandbox.instance.configure(Change(memory_bytes=SMALL_LIMITS.memory_bytes, cpus=0.05, pids=20))
            assert error.value.fields["field"] == "memory_bytes"
            assert error.value.fields["in_use"] >= _MORE_MIB * MIB
            # The sandbox is alive and still has the old memory limit: another 200 MiB can be used.
            async with _running(sandbox, 200):
                assert (await sandbox.instance.usage()).memory_bytes >= (_MORE_MIB + 200) * MIB

    # ------------------------------------------------------------------------------------------------------- processor
    async def test_cpu_limit_applies_to_running_processes(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.CONFIGURE_CPU)
        async with harness.sandbox(driver) as sandbox:
            spinning = asyncio.create_task(sandbox.python(_SPIN, timeout_s=None))
            await wait_for_cpu_time(sandbox.instance, (await sandbox.instance.usage()).cpu_s + 0.2)
            await sandbox.instance.configure(Change(cpus=0.2))
            began_s, before = time.monotonic(), (await sandbox.instance.usage()).cpu_s
            await asyncio.sleep(1.5)
            used = (await sandbox.instance.usage()).cpu_s - before
            # Only an upper bound is checked, because a busy host gives the sandbox less processor time. After the
            # change, the old limit may still apply for a moment.
            assert used <= 0.2 * (time.monotonic() - began_s + 0.3) + 0.1
            await sandbox.instance.configure(Change(cpus=SMALL_LIMITS.cpus))
            await wait_for_cpu_time(sandbox.instance, before + used + 0.5)
            spinning.cancel()

    # ------------------------------------------------------------------------------------------------------- processes
    async def test_process_limit_is_raised_and_lowered(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.CONFIGURE_PIDS)
        async with harness.sandbox(driver, replace(SMALL_LIMITS, memory_bytes=1024 * MIB)) as sandbox:
            call = await sandbox.link.processes.start(ProcessSpec(argv=("python3", "-c", _FORKS), cwd="/", stdin=True, timeout_s=None))
            output = aiter(call)

            async def made() -> int:
                await call.write(b"\n")
                item = await anext(output)
                assert isinstance(item, Output)
                return int(item.data)

            first = await made()
            assert 0 < first < SMALL_LIMITS.pids
            await sandbox.instance.configure(Change(pids=2 * SMALL_LIMITS.pids))
            await sandbox.link.set_limits(pids=2 * SMALL_LIMITS.pids)
            second = await made()
            assert first + second <= 2 * SMALL_LIMITS.pids
            assert second >= SMALL_LIMITS.pids - 8
            # The guest refuses a limit below the number of running processes.
            with pytest.raises(ConflictError):
                await sandbox.link.set_limits(pids=SMALL_LIMITS.pids)
            assert await made() == 0
            await sandbox.link.processes.signal(call.id, 9)
            await call.aclose()
            while (await sandbox.link.info()).tasks > SMALL_LIMITS.pids // 2:  # noqa: ASYNC110 - the guest has no event for this
                await asyncio.sleep(0.05)
            await sandbox.link.set_limits(pids=SMALL_LIMITS.pids)
            await sandbox.instance.configure(Change(pids=SMALL_LIMITS.pids))
            limit = await sandbox.python("import resource; print(resource.getrlimit(resource.RLIMIT_NPROC)[0])")
            assert limit.stdout == f"{SMALL_LIMITS.pids}\n"

    # ------------------------------------------------------------------------------------------------------- refusals
    async def test_unsupported_change_is_refused_as_a_whole_with_the_reason(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()
        capabilities = await asyncio.to_thread(driver.probe)
        if capabilities.can(DriverCapability.CONFIGURE_DISK):
            pytest.skip("this driver can change the size of a disk")
        async with harness.sandbox(driver) as sandbox:
            with pytest.raises(UnsupportedError) as error:
                await sandbox.instance.configure(Change(memory_bytes=3 * SMALL_LIMITS.memory_bytes, disk_bytes=2 * SMALL_LIMITS.disk_bytes))
            assert capabilities.why_not(DriverCapability.CONFIGURE_DISK) in error.value.message
            await sandbox.instance.configure(Change(disk_bytes=SMALL_LIMITS.disk_bytes))  # the disk has this size already
            assert await _fails(sandbox, _MORE_MIB)

    async def test_limits_out_of_range_are_refused(self, harness: DriverHarness) -> None:
        instance = await harness.boot(harness.new_driver())
        impossible = (Change(memory_bytes=1), Change(cpus=math.nan), Change(cpus=0), Change(pids=0), Change(pids=10**9))
        for change in impossible:
            with pytest.raises(InvalidRequestError):
                await instance.configure(change)
        await instance.destroy()
        for change in impossible:
            with pytest.raises(SandboxEndedError):
                await instance.configure(change)

    async def test_paused_sandbox_is_not_changed(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.CONFIGURE_MEMORY, DriverCapability.PAUSE)
        async with harness.sandbox(driver) as sandbox:
            await sandbox.instance.pause()
            with pytest.raises(ConflictError, match="paused"):
                await sandbox.instance.configure(Change(memory_bytes=2 * SMALL_LIMITS.memory_bytes))
            await sandbox.instance.resume()
            await sandbox.instance.configure(Change(memory_bytes=2 * SMALL_LIMITS.memory_bytes))
            assert (await sandbox.run("echo", "here")).stdout == "here\n"

    async def test_concurrent_changes_are_all_applied(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.CONFIGURE_MEMORY, DriverCapability.CONFIGURE_CPU)
        async with harness.sandbox(driver) as sandbox:
            changes = [Change(memory_bytes=SMALL_LIMITS.memory_bytes + number * MIB) for number in range(20)]
            await asyncio.gather(*(sandbox.instance.configure(change) for change in [*changes, Change(cpus=0.5)]))
            await sandbox.instance.destroy()
            with pytest.raises(SandboxEndedError):
                await sandbox.instance.configure(Change(cpus=1.0))

    # ------------------------------------------------------------------------------------------------------- a restart
    async def test_changed_limits_and_usage_survive_a_restart(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.CONFIGURE_MEMORY, DriverCapability.CONFIGURE_CPU, DriverCapability.ADOPT)
        first = await harness.boot(driver)
        limit = SMALL_LIMITS.memory_bytes + 32 * MIB
        await first.configure(Change(memory_bytes=limit, cpus=0.8))
        before = await first.usage()
        instance = await harness.new_driver().adopt(first.ref)
        async with connect_sandbox(instance) as sandbox:
            async with _running(sandbox, 40):
                after = await instance.usage()
                assert after.cpu_s > before.cpu_s
                assert after.memory_bytes >= before.memory_bytes + 35 * MIB
            await instance.configure(Change(cpus=SMALL_LIMITS.cpus))
            assert await _fails(sandbox, _MORE_MIB)
            with contextlib.suppress(SandboxEndedError):
                await sandbox.link.shutdown()
            end = await instance.wait()
            assert end.reason is ExitReason.EXITED or (end.reason is ExitReason.OOM and str(limit // MIB) in end.detail)
        await instance.destroy()


@asynccontextmanager
async def _running(sandbox: ConnectedSandbox, mib: int) -> AsyncIterator[None]:
    """During the block, run a process that uses ``mib`` MiB of memory."""
    call = await sandbox.link.processes.start(ProcessSpec(argv=("python3", "-c", _HOLD, str(mib), "600"), cwd="/", timeout_s=None))
    item = await anext(aiter(call))
    assert isinstance(item, Output)
    assert item.data == b"held\n", item.data
    try:
        yield
    finally:
        with contextlib.suppress(SandboxEndedError):
            await sandbox.link.processes.signal(call.id, 9)
        await call.aclose()


async def _fails(sandbox: ConnectedSandbox, mib: int) -> bool:
    """Run a program that allocates ``mib`` MiB. Return True if the program fails, or if the sandbox ends for lack of memory."""
    try:
        done = await sandbox.python(_HOLD, str(mib), "0")
    except SandboxEndedError:
        return (await sandbox.instance.wait()).reason is ExitReason.OOM
    return done.exit_code != 0
