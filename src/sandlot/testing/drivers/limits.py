"""Tests of the limits of memory, disk, processes and processor time, and of the reported usage."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from sandlot.model.errors import SandboxEndedError
from sandlot.model.ports import DriverCapability, ExitReason
from sandlot.model.specs import MIB, ProcessSpec, User
from sandlot.testing.drivers.harness import SMALL_LIMITS, DriverHarness, wait_for_cpu_time

_ONE_PROCESS_HOG = "held = [bytearray(1 << 20) for _ in range(4096)]"
_DEVICE_FOLDER_HOG = """
import os
for number in range(4096):
    with open(f"/dev/hog-{number}", "wb") as file:
        file.write(bytes(1 << 20))
"""
_SHARED_MEMORY_HOG = """
import os
with open("/dev/shm/hog", "wb") as file:
    for _ in range(4096):
        file.write(bytes(1 << 20))
"""
_FORKS = """
import os, time
made = 0
try:
    while made < 3000:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError as error:
    print("refused after", made, flush=True)
    time.sleep(600)
"""
_SPIN = "import os\nfor _ in range(3):\n    if os.fork() == 0: break\nwhile True: pass"


class LimitsSuite:
    """Tests of enforced limits and reported usage. Needs a fixture ``harness``."""

    # ------------------------------------------------------------------------------------------------------- largest use
    async def test_max_resources_is_an_upper_bound_of_usage(self, harness: DriverHarness) -> None:
        driver = harness.new_driver()
        largest = driver.max_resources(SMALL_LIMITS)
        assert largest.memory_bytes >= SMALL_LIMITS.memory_bytes
        assert largest.disk_bytes >= SMALL_LIMITS.disk_bytes
        assert largest.pids >= SMALL_LIMITS.pids
        of_twice = driver.max_resources(
            replace(SMALL_LIMITS, memory_bytes=2 * SMALL_LIMITS.memory_bytes, disk_bytes=2 * SMALL_LIMITS.disk_bytes, pids=2 * SMALL_LIMITS.pids)
        )
        assert of_twice.memory_bytes - largest.memory_bytes >= SMALL_LIMITS.memory_bytes
        assert of_twice.disk_bytes - largest.disk_bytes >= SMALL_LIMITS.disk_bytes
        assert of_twice.pids - largest.pids >= SMALL_LIMITS.pids
        async with harness.sandbox(driver) as sandbox:
            await sandbox.run("sh", "-c", "for i in 1 2 3 4; do sleep 0.5 & done; head -c 4000000 /dev/urandom > /tmp/x; wait")
            used = await sandbox.instance.usage()
        assert used.memory_peak_bytes <= 1.01 * largest.memory_bytes  # the kernel counts in batches, so the peak may be a little too high
        assert used.disk_bytes <= largest.disk_bytes
        assert 0 < used.pids <= largest.pids

    # ------------------------------------------------------------------------------------------------------- memory
    async def test_programs_see_the_memory_limit_if_the_probe_says_so(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.LIMIT_MEMORY)
        async with harness.sandbox(driver) as sandbox:
            done = await sandbox.run("sh", "-c", "grep MemTotal /proc/meminfo; nproc")
        memory, processors = done.stdout.splitlines()
        shown = int(memory.split()[1]) * 1024 <= SMALL_LIMITS.memory_bytes
        assert shown == driver.probe().can(DriverCapability.SHOW_LIMITS)
        assert int(processors) >= 1

    async def test_exceeded_memory_limit_ends_the_process_or_its_own_sandbox(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.LIMIT_MEMORY)
        async with harness.sandbox(driver) as neighbour:
            for hog in (_ONE_PROCESS_HOG, _DEVICE_FOLDER_HOG, _SHARED_MEMORY_HOG):
                async with harness.sandbox(driver) as sandbox:
                    try:
                        done = await sandbox.python(hog, user=User.ROOT)
                    except SandboxEndedError:
                        end = await sandbox.instance.wait()
                        assert end.reason is ExitReason.OOM, hog
                        assert str(SMALL_LIMITS.memory_bytes // MIB) in end.detail
                    else:
                        assert done.exit_code != 0, hog
                        # Version 1 of cgroups counts memory in batches, so the peak may exceed the limit by a few pages.
                        assert (await sandbox.instance.usage()).memory_peak_bytes <= 1.01 * SMALL_LIMITS.memory_bytes
                assert (await neighbour.run("echo", "unharmed")).stdout == "unharmed\n", hog

    # ------------------------------------------------------------------------------------------------------- disk
    async def test_full_disk_is_an_error_inside_only(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.LIMIT_DISK)
        over = 2 * SMALL_LIMITS.disk_bytes // MIB
        async with harness.sandbox(driver) as sandbox:
            for folder in ("/tmp", "/home/user", "/var/tmp"):  # noqa: S108 - inside of the sandbox
                filled = await sandbox.run("dd", "if=/dev/zero", f"of={folder}/big", "bs=1M", f"count={over}")
                assert filled.exit_code == 1
                assert "No space left on device" in filled.stderr
                size = int((await sandbox.run("stat", "-c", "%s", f"{folder}/big")).stdout)
                assert 0.8 * SMALL_LIMITS.disk_bytes < size <= SMALL_LIMITS.disk_bytes
                used = (await sandbox.instance.usage()).disk_bytes
                assert 0.8 * SMALL_LIMITS.disk_bytes < used <= 1.1 * SMALL_LIMITS.disk_bytes
                assert (await sandbox.run("rm", f"{folder}/big")).exit_code == 0
                again = await sandbox.run("dd", "if=/dev/zero", f"of={folder}/small", "bs=1M", f"count={over // 4}")
                assert again.exit_code == 0, again.stderr
                assert (await sandbox.run("sh", "-c", f"sync; cat {folder}/small | wc -c")).stdout.strip() == str(over // 4 * MIB)
                assert (await sandbox.run("rm", f"{folder}/small")).exit_code == 0

    async def test_large_disk_uses_no_space_until_it_is_written(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.LIMIT_DISK)
        async with harness.sandbox(driver, replace(SMALL_LIMITS, disk_bytes=1024**4)) as sandbox:
            held = sum(file.lstat().st_blocks * 512 for file in (harness.data_dir / "sandboxes").rglob("*"))
            assert held < 256 * MIB
            assert (await sandbox.run("dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", "count=8")).exit_code == 0

    # ------------------------------------------------------------------------------------------------------- processes
    @pytest.mark.parametrize("user", [User.USER, User.ROOT])
    async def test_sandbox_responds_during_a_fork_bomb(self, harness: DriverHarness, user: User) -> None:
        driver = await harness.driver_with(DriverCapability.LIMIT_PIDS)
        limits = replace(SMALL_LIMITS, memory_bytes=1024 * MIB)
        async with harness.sandbox(driver, limits) as sandbox:
            bomb = asyncio.create_task(sandbox.python(_FORKS, user=user, timeout_s=4))
            done = await bomb
            assert done.exit_code != 0
            assert "refused after 3000" not in done.stdout
            assert (await sandbox.run("echo", "still here")).stdout == "still here\n"

    # ------------------------------------------------------------------------------------------------------- processor
    async def test_cpu_limit_bounds_processor_time(self, harness: DriverHarness) -> None:
        driver = await harness.driver_with(DriverCapability.LIMIT_CPU)
        limits = replace(SMALL_LIMITS, cpus=0.5)
        async with harness.sandbox(driver, limits) as sandbox:
            spinning = asyncio.create_task(sandbox.python(_SPIN, timeout_s=None))
            start = (await sandbox.instance.usage()).cpu_s
            await wait_for_cpu_time(sandbox.instance, start + 0.2)
            began_s, before = time.monotonic(), (await sandbox.instance.usage()).cpu_s
            await asyncio.sleep(2)
            used = (await sandbox.instance.usage()).cpu_s - before
            passed_s = time.monotonic() - began_s
            # Only an upper bound is checked, because a busy host gives the sandbox less time. The measurement begins and ends within a period of
            # the quota, and the sandbox may use the whole quota of a period within the part that is measured. This adds up to 0.3 s.
            assert used <= limits.cpus * (passed_s + 0.3)
            spinning.cancel()

    # ------------------------------------------------------------------------------------------------------- usage
    async def test_usage_grows_with_use(self, harness: DriverHarness) -> None:
        async with harness.sandbox() as sandbox:
            before = await sandbox.instance.usage()
            assert before.memory_peak_bytes >= before.memory_bytes > 0
            assert before.cpu_s > 0
            assert before.pids > 0
            await sandbox.run("dd", "if=/dev/urandom", "of=/home/user/file", "bs=1M", "count=20", "iflag=fullblock")
            # Ten processes: gVisor's kernel ends idle tasks of its own at any time, and reuses some of them.
            hold = await sandbox.link.processes.start(_holding(48 * MIB, processes=10))
            async for _ in hold:
                break
            after = await sandbox.instance.usage()
            assert after.cpu_s > before.cpu_s
            assert after.disk_bytes - before.disk_bytes >= 20 * MIB
            assert after.memory_bytes - before.memory_bytes >= 40 * MIB
            assert after.memory_peak_bytes >= after.memory_bytes
            assert after.pids > before.pids


def _holding(size: int, processes: int = 1) -> ProcessSpec:
    program = f"import os, time; held = os.urandom({size}); [os.fork() or time.sleep(600) for _ in range({processes - 1})]; print('held', flush=True)"
    program += "; time.sleep(600)"
    return ProcessSpec(argv=("python3", "-c", program), cwd="/")
