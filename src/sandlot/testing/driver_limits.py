"""What a sandbox may use: memory, disk, processes, processor time; and what it is said to have used."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from sandlot.model.errors import SandboxEndedError
from sandlot.model.ports import Driver, DriverCapability, ExitReason
from sandlot.model.specs import MIB, ProcessSpec, User
from sandlot.testing.bench import SMALL, Bench, spun

_ONE_PROCESS_HOG = "held = [bytearray(1 << 20) for _ in range(4096)]"
_NOBODYS_HOG = """
import os
for number in range(4096):
    with open(f"/dev/hog-{number}", "wb") as file:
        file.write(bytes(1 << 20))
"""
_SHARED_HOG = """
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
    """See the module."""

    # --------------------------------------------------------------------------------------------------- what it takes
    async def test_what_a_sandbox_is_said_to_take_is_never_less_than_what_it_uses(self, bench: Bench) -> None:
        driver = bench.start()
        takes = driver.max_resources(SMALL)
        assert (takes.memory_bytes >= SMALL.memory_bytes, takes.disk_bytes >= SMALL.disk_bytes, takes.pids >= SMALL.pids) == (True, True, True)
        larger = driver.max_resources(replace(SMALL, memory_bytes=2 * SMALL.memory_bytes, disk_bytes=2 * SMALL.disk_bytes, pids=2 * SMALL.pids))
        assert larger.memory_bytes - takes.memory_bytes >= SMALL.memory_bytes
        assert larger.disk_bytes - takes.disk_bytes >= SMALL.disk_bytes
        assert larger.pids - takes.pids >= SMALL.pids
        async with bench.sandbox(driver) as subject:
            await subject.run("sh", "-c", "for i in 1 2 3 4; do sleep 0.5 & done; head -c 4000000 /dev/urandom > /tmp/x; wait")
            used = await subject.instance.usage()
        assert used.memory_peak_bytes <= 1.01 * takes.memory_bytes  # the kernel charges in batches
        assert used.disk_bytes <= takes.disk_bytes
        assert 0 < used.pids <= takes.pids

    # ------------------------------------------------------------------------------------------------------- memory
    async def test_the_memory_limit_is_what_is_seen_inside(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.LIMIT_MEMORY)
        async with bench.sandbox(driver) as subject:
            done = await subject.run("sh", "-c", "grep MemTotal /proc/meminfo; nproc")
        memory, processors = done.stdout.splitlines()
        shown = int(memory.split()[1]) * 1024 <= SMALL.memory_bytes
        assert shown == driver.probe().can(DriverCapability.SHOW_LIMITS)
        assert int(processors) >= 1

    async def test_a_memory_hog_ends_itself_or_its_own_sandbox(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.LIMIT_MEMORY)
        async with bench.sandbox(driver) as neighbour:
            for hog in (_ONE_PROCESS_HOG, _NOBODYS_HOG, _SHARED_HOG):
                async with bench.sandbox(driver) as subject:
                    try:
                        done = await subject.python(hog, user=User.ROOT)
                    except SandboxEndedError:
                        end = await subject.instance.wait()
                        assert end.reason is ExitReason.OOM, hog
                        assert str(SMALL.memory_bytes // MIB) in end.detail
                    else:
                        assert done.code != 0, hog
                        # Version 1 counts in batches, and may be a few pages over.
                        assert (await subject.instance.usage()).memory_peak_bytes <= 1.01 * SMALL.memory_bytes
                assert (await neighbour.run("echo", "unharmed")).stdout == "unharmed\n", hog

    # ------------------------------------------------------------------------------------------------------- disk
    async def test_a_full_disk_is_an_error_inside_and_nothing_more(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.LIMIT_DISK)
        over = 2 * SMALL.disk_bytes // MIB
        async with bench.sandbox(driver) as subject:
            for folder in ("/tmp", "/home/user", "/var/tmp"):  # noqa: S108 - inside of the sandbox
                filled = await subject.run("dd", "if=/dev/zero", f"of={folder}/big", "bs=1M", f"count={over}")
                assert filled.code == 1
                assert "No space left on device" in filled.stderr
                size = int((await subject.run("stat", "-c", "%s", f"{folder}/big")).stdout)
                assert 0.8 * SMALL.disk_bytes < size <= SMALL.disk_bytes
                used = (await subject.instance.usage()).disk_bytes
                assert 0.8 * SMALL.disk_bytes < used <= 1.1 * SMALL.disk_bytes
                assert (await subject.run("rm", f"{folder}/big")).code == 0
                again = await subject.run("dd", "if=/dev/zero", f"of={folder}/small", "bs=1M", f"count={over // 4}")
                assert again.code == 0, again.stderr
                assert (await subject.run("sh", "-c", f"sync; cat {folder}/small | wc -c")).stdout.strip() == str(over // 4 * MIB)
                assert (await subject.run("rm", f"{folder}/small")).code == 0

    async def test_more_disk_than_this_costs_nothing_until_it_is_used(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.LIMIT_DISK)
        async with bench.sandbox(driver, replace(SMALL, disk_bytes=1024**4)) as subject:
            held = sum(file.lstat().st_blocks * 512 for file in (bench.data_dir / "sandboxes").rglob("*"))
            assert held < 256 * MIB
            assert (await subject.run("dd", "if=/dev/zero", "of=/home/user/big", "bs=1M", "count=8")).code == 0

    # ------------------------------------------------------------------------------------------------------- processes
    @pytest.mark.parametrize("user", [User.USER, User.ROOT])
    async def test_a_fork_bomb_leaves_the_sandbox_answering(self, bench: Bench, user: User) -> None:
        driver = await able(bench, DriverCapability.LIMIT_PIDS)
        limits = replace(SMALL, memory_bytes=1024 * MIB)
        async with bench.sandbox(driver, limits) as subject:
            bomb = asyncio.create_task(subject.python(_FORKS, user=user, timeout_s=4))
            done = await bomb
            assert done.code != 0
            assert "refused after 3000" not in done.stdout
            assert (await subject.run("echo", "still here")).stdout == "still here\n"

    # ------------------------------------------------------------------------------------------------------- processor
    async def test_processors_are_shared_as_limited(self, bench: Bench) -> None:
        driver = await able(bench, DriverCapability.LIMIT_CPU)
        limits = replace(SMALL, cpus=0.5)
        async with bench.sandbox(driver, limits) as subject:
            spinning = asyncio.create_task(subject.python(_SPIN, timeout_s=None))
            start = (await subject.instance.usage()).cpu_s
            await spun(subject.instance, start + 0.2)
            began_s, before = time.monotonic(), (await subject.instance.usage()).cpu_s
            await asyncio.sleep(2)
            used = (await subject.instance.usage()).cpu_s - before
            passed_s = time.monotonic() - began_s
            # An upper bound: a busy host gives less, and a quota may be used up at both ends of the time looked at.
            assert used <= limits.cpus * (passed_s + 0.3)
            spinning.cancel()

    # ------------------------------------------------------------------------------------------------------- usage
    async def test_usage_follows_what_is_used(self, bench: Bench) -> None:
        async with bench.sandbox() as subject:
            before = await subject.instance.usage()
            assert before.memory_peak_bytes >= before.memory_bytes > 0
            assert before.cpu_s > 0
            assert before.pids > 0
            await subject.run("dd", "if=/dev/urandom", "of=/home/user/file", "bs=1M", "count=20", "iflag=fullblock")
            hold = await subject.link.processes.start(_holding(48 * MIB))
            async for _ in hold:
                break
            after = await subject.instance.usage()
            assert after.cpu_s > before.cpu_s
            assert after.disk_bytes - before.disk_bytes >= 20 * MIB
            assert after.memory_bytes - before.memory_bytes >= 40 * MIB
            assert after.memory_peak_bytes >= after.memory_bytes
            assert after.pids > before.pids


def _holding(size: int) -> ProcessSpec:
    program = f"import os, time; held = os.urandom({size}); print('held', flush=True); time.sleep(600)"
    return ProcessSpec(argv=("python3", "-c", program), cwd="/")


async def able(bench: Bench, ability: DriverCapability) -> Driver:
    """A driver with an ability; a test of one without it is skipped, and says why."""
    driver = bench.start()
    can = await asyncio.to_thread(driver.probe)
    if not can.can(ability):
        pytest.skip(can.why_not(ability))
    return driver
