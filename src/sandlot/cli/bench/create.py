"""Rows of sandboxes that are made: out of a pool, restored, from nothing, many at once, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from sandlot.cli.bench import pools
from sandlot.cli.bench.harness import BASE, CODE, PRINT, CannotError, Rig, done, good
from sandlot.sdk import AsyncSandbox, Limits, SandlotError

CROWD = 20
"""Sandboxes of a burst, and of a ramp."""
SLIM = Limits(disk_bytes=1 << 30, pids=128)
"""Of those in a crowd: 20 with the disk and the processes that are the default are more than many hosts have."""
ASKED = {"disk": SLIM.disk_bytes, "pids": SLIM.pids}
"""The same, as a create asks for it."""
FEW = 2
STAGGER_S = 0.2
"""Between two of a ramp. The methodology of computesdk/benchmarks (2026-03): 200 ms, and 100 sandboxes, which is more than one small host holds."""
WARM = 6
"""Of the pool from which one is taken at a time."""
CLIENTS = 4
RUN = 20
"""Sandboxes over which a rate is taken: fewer would tell of single ones."""
NODE = "node -v"


async def create_cold(rig: Rig) -> None:
    """Each of a size that no other has, so that neither a pool nor a snapshot of its template fits: it boots."""
    for turn in range(rig.times(15)):
        await rig.native("create_cold", rig.natives.python)
        with rig.clock("create_cold"):
            box = await rig.create(BASE, memory=f"{ODD_MIB + turn}M")
        await rig.kill(box)


ODD_MIB = 701


async def claim_run_code(rig: Rig) -> None:
    """Taken out of a pool that has some, one at a time; ``create`` is the call alone."""
    async with pools.filled(rig, CODE, WARM) as pool:
        for _ in range(rig.times(40, 5)):
            await rig.native("claim_run_code", rig.natives.python)
            await pool.ready(WARM)
            with rig.clock("claim_run_code"):
                with rig.clock("claim_run_code", part="create"):
                    box = await rig.create(CODE)
                run = await box.run_code(PRINT)
            good(run)
            await rig.kill(box)


async def claim_command(rig: Rig) -> None:
    """The same with a command; ``inside`` is what the guest itself took for it."""
    async with pools.filled(rig, CODE, WARM) as pool:
        for _ in range(rig.times(40, 5)):
            await rig.native("claim_command", rig.natives.shell)
            await pool.ready(WARM)
            with rig.clock("claim_command"):
                box = await rig.create(CODE)
                run = await box.commands.run("true")
            rig.add("claim_command", done(run).duration_s * 1000, part="inside")
            await rig.kill(box)


async def tti_sequential(rig: Rig) -> None:
    """From the request until a command has been answered, one after the other."""
    async with pools.filled(rig, CODE, WARM) as pool:
        for _ in range(rig.times(50, 5)):
            await _native_node(rig, "tti_sequential")
            await pool.ready(WARM)
            box = await _interactive(rig, "tti_sequential")
            if box is not None:
                await rig.kill(box)


async def tti_staggered(rig: Rig) -> None:
    """A ramp; ``all`` is from the first request to the last answer."""
    await _crowd(rig, "tti_staggered", rig.times(CROWD, 5), rig.times(2, 1), STAGGER_S)


async def tti_burst(rig: Rig) -> None:
    """All at once; ``all`` is from the first request to the last answer, ``code`` the same with a cell instead of the command."""
    await _crowd(rig, "tti_burst", rig.times(CROWD, 5), rig.times(5, 1), 0, rig.times(3, 1))


async def restore_base(rig: Rig) -> None:
    """A pool that has none: out of the snapshot of the template, as far as the service keeps one."""
    await _restores(rig, "restore_base", BASE)


async def restore_code(rig: Rig) -> None:
    """The same with the whole kernel."""
    await _restores(rig, "restore_code", CODE)


async def creates_per_s(rig: Rig) -> None:
    """Four clients make sandboxes and remove them, for a while."""
    lasts_s = 3.0 if rig.quick else 15.0
    row = rig.samples["creates_per_s"]

    async def one() -> None:
        try:
            await rig.kill(await rig.create(BASE))
        except SandlotError as error:
            row.failed += 1
            row.why = error.message

    async with pools.drained(rig, BASE):
        for rate in await _rates(rig.natives.python, min(lasts_s, 5)):
            rig.add_native("creates_per_s", rate)
        for rate in await _rates(one, lasts_s):
            rig.add("creates_per_s", rate)


async def _rates(work: Callable[[], Awaitable[None]], lasts_s: float) -> list[float]:
    """How often a second some work is done by four at a time, over each run of so many that ended one after the other."""
    began_s = time.perf_counter()
    ends_s: list[float] = [0.0]

    async def client() -> None:
        while time.perf_counter() - began_s < lasts_s:
            await work()
            ends_s.append(time.perf_counter() - began_s)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    run = min(RUN, len(ends_s) - 1)
    return [run / (last - first) for first, last in zip(ends_s, ends_s[run:], strict=False)]


async def _restores(rig: Rig, key: str, template: str) -> None:
    """With nothing prepared, and as a part with a blank sandbox that waits for any snapshot."""
    async with pools.drained(rig, template) as pool:
        size = rig.images.get(f"template {template}")
        if size is None:
            raise CannotError(
                "There is no snapshot of the template to restore: this isolation cannot take one. create_cold is what such a create takes."
            )
        for _ in range(rig.times(20)):
            await rig.native(key, partial(rig.natives.read, size))
            await _restore(rig, key, template, None)
        for _ in range(rig.times(10)):
            await pool.blank(1)
            await _restore(rig, key, template, "blank")
        await pool.blank(0)


async def _restore(rig: Rig, key: str, template: str, part: str | None) -> None:
    with rig.clock(key, part=part):
        with rig.clock(key, part="create" if part is None else f"{part}, create"):
            box = await rig.create(template)
        run = await box.run_code(PRINT)
    good(run)
    await rig.kill(box)


async def _crowd(rig: Rig, key: str, count: int, rounds: int, apart_s: float, code_rounds: int = 0) -> None:
    await rig.put_away()
    async with pools.drained(rig, CODE):  # what waits there takes the room of three of these, or of more as it grows
        count = await rig.room(count, **ASKED)
        if count < FEW:
            raise CannotError(f"The node has room for {count} sandboxes now: too few for a crowd.")
        await _crowds(rig, key, count, rounds, apart_s, code_rounds)


async def _crowds(rig: Rig, key: str, count: int, rounds: int, apart_s: float, code_rounds: int) -> None:
    async with pools.filled(rig, CODE, count, SLIM) as pool:

        async def one(number: int) -> AsyncSandbox | None:
            await asyncio.sleep(number * apart_s)
            return await _interactive(rig, key, **ASKED)

        for _ in range(rounds):
            if not apart_s:
                await asyncio.gather(*(_native_node(rig, key) for _ in range(count)))
            else:
                await _native_node(rig, key)
            await pool.ready(count)
            with rig.clock(key, part="all"):
                boxes = await asyncio.gather(*(one(number) for number in range(count)))
            await rig.kill(*(box for box in boxes if box is not None))
        for _ in range(code_rounds):
            await pool.ready(count)
            with rig.clock(key, part="code, all"):
                coded = await asyncio.gather(*(_coded(rig, key, **ASKED) for _ in range(count)))
            await rig.kill(*coded)


async def _coded(rig: Rig, key: str, **options: int) -> AsyncSandbox:
    with rig.clock(key, part="code"):
        box = await rig.create(CODE, **options)
        run = await box.run_code(PRINT)
    good(run)
    return box


async def _interactive(rig: Rig, key: str, **options: int) -> AsyncSandbox | None:
    """One sandbox from its request until Node.js has answered; None where it failed, which is counted."""
    try:
        with rig.clock(key):
            with rig.clock(key, part="create"):
                box = await rig.create(CODE, **options)
            run = await box.commands.run(NODE)
    except SandlotError as error:
        rig.samples[key].failed += 1
        rig.samples[key].why = error.message
        return None
    if not done(run).stdout.startswith("v"):
        raise CannotError(f"{NODE} said {run.stdout!r}")
    return box


async def _native_node(rig: Rig, key: str) -> None:
    if rig.natives.node is not None:
        node = rig.natives.node
        await rig.native(key, partial(rig.natives.spawn, node, "-v"))
