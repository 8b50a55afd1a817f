"""Rows of sandboxes that do nothing."""

from __future__ import annotations

import asyncio
import time

from sandlot.cli.bench.harness import BASE, CODE, PRINT, Rig, good
from sandlot.sdk import AsyncSandbox

MIB = 1 << 20
QUIET_S = 4.0
"""Until what a new sandbox prepares for later is done."""
WINDOW_S = 6.0
QUICK_S = 2.0


async def idle_mib(rig: Rig) -> None:
    """What the control groups of a sandbox say, once it has run a cell and been left alone."""
    for key, template in (("idle_mib_base", BASE), ("idle_mib_code", CODE)):
        if key in rig.samples:
            for _ in range(rig.times(3, 1)):
                box = await _idle(rig, template)
                rig.add_native(key, rig.natives.idle_bytes() / MIB)
                rig.add(key, (await box.usage()).memory_bytes / MIB)
                await rig.kill(box)


async def idle_cpu(rig: Rig) -> None:
    """Processor time of a sandbox that is paused; ``running`` is one that merely has nothing to do."""
    box = await _idle(rig, BASE)
    for _ in range(rig.times(3, 1)):
        rig.add("idle_cpu_pct", await _percent(rig, box), part="running")
    for _ in range(rig.times(3, 1)):
        await box.pause()
        before_s, began_s = rig.natives.idle_cpu_s(), time.perf_counter()
        rig.add("idle_cpu_pct", await _percent(rig, box))
        rig.add_native("idle_cpu_pct", (rig.natives.idle_cpu_s() - before_s) / (time.perf_counter() - began_s) * 100)
    await rig.kill(box)


async def _idle(rig: Rig, template: str) -> AsyncSandbox:
    """A sandbox that has run a cell, and then nothing for a while."""
    box = await rig.create(template)
    good(await box.run_code(PRINT))
    await asyncio.sleep(QUIET_S)
    return box


async def _percent(rig: Rig, box: AsyncSandbox) -> float:
    """Of one core, over a window."""
    before, began_s = await box.usage(), time.perf_counter()
    await asyncio.sleep(QUICK_S if rig.quick else WINDOW_S)
    after = await box.usage()
    return (after.cpu_s - before.cpu_s) / (time.perf_counter() - began_s) * 100
