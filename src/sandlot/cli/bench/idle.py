"""Rows of idle sandboxes."""

from __future__ import annotations

import asyncio
import time

from sandlot.cli.bench.harness import BASE, CODE, PRINT, BenchHarness, expect_ok
from sandlot.sdk import AsyncSandbox

MIB = 1 << 20
QUIET_S = 4.0
"""Seconds until a new sandbox has prepared its spare kernel."""
WINDOW_S = 6.0
QUICK_S = 2.0


async def idle_mib(harness: BenchHarness) -> None:
    """Measure the memory of the control groups of an idle sandbox that has run code."""
    for key, template in (("idle_mib_base", BASE), ("idle_mib_code", CODE)):
        if key in harness.samples:
            for _ in range(harness.times(3, 1)):
                sandbox = await _idle(harness, template)
                harness.add_native(key, harness.baselines.idle_bytes() / MIB)
                harness.add(key, (await sandbox.usage()).memory_bytes / MIB)
                await harness.kill(sandbox)


async def idle_cpu(harness: BenchHarness) -> None:
    """Measure the CPU time of a paused sandbox; part ``running``: of an idle one."""
    sandbox = await _idle(harness, BASE)
    for _ in range(harness.times(3, 1)):
        harness.add("idle_cpu_pct", await _percent(harness, sandbox), part="running")
    for _ in range(harness.times(3, 1)):
        await sandbox.pause()
        before_s, began_s = harness.baselines.idle_cpu_s(), time.perf_counter()
        harness.add("idle_cpu_pct", await _percent(harness, sandbox))
        harness.add_native("idle_cpu_pct", (harness.baselines.idle_cpu_s() - before_s) / (time.perf_counter() - began_s) * 100)
    await harness.kill(sandbox)


async def _idle(harness: BenchHarness, template: str) -> AsyncSandbox:
    """Create a sandbox, run code and wait until it is idle."""
    sandbox = await harness.create(template)
    expect_ok(await sandbox.run_code(PRINT))
    await asyncio.sleep(QUIET_S)
    return sandbox


async def _percent(harness: BenchHarness, sandbox: AsyncSandbox) -> float:
    """Return the CPU time of a sandbox over a window, in percent of one core."""
    before, began_s = await sandbox.usage(), time.perf_counter()
    await asyncio.sleep(QUICK_S if harness.quick else WINDOW_S)
    after = await sandbox.usage()
    return (after.cpu_s - before.cpu_s) / (time.perf_counter() - began_s) * 100
