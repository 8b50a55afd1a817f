"""Rows of creates: from a pool, restored, booted, concurrent and sequential."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from sandlot.cli.bench import pools
from sandlot.cli.bench.harness import BASE, CODE, PRINT, BenchHarness, RowFailedError, expect_ok, expect_success
from sandlot.sdk import AsyncSandbox, Limits, SandlotError

CROWD = 20
"""Number of sandboxes of a burst and of a ramp."""
SLIM = Limits(disk_bytes=1 << 30, pids=128)
"""Limits of the sandboxes of a burst or ramp: 20 with the default disk and process limits are more than many hosts have."""
SLIM_OPTIONS = {"disk": SLIM.disk_bytes, "pids": SLIM.pids}
"""The same limits as options of a create."""
FEW = 2
STAGGER_S = 0.2
"""Seconds between two creates of a ramp. computesdk/benchmarks (2026-03) has 200 ms, and 100 sandboxes, more than a small host holds."""
WARM = 6
"""Size of the pool from which one sandbox is taken at a time."""
CLIENTS = 4
RUN = 20
"""Number of sandboxes over which a rate is measured; with fewer, single sandboxes would dominate."""
NODE = "node -v"


async def create_cold(harness: BenchHarness) -> None:
    """Measure creates that boot: each has a different memory limit, so that neither a pool nor a template snapshot fits."""
    for turn in range(harness.times(15)):
        await harness.native("create_cold", harness.baselines.python)
        with harness.timed("create_cold"):
            sandbox = await harness.create(BASE, memory=f"{ODD_MIB + turn}M")
        await harness.kill(sandbox)


ODD_MIB = 701


async def claim_run_code(harness: BenchHarness) -> None:
    """Measure creates from a filled pool until code has run; part ``create``: the create alone."""
    async with pools.filled_pool(harness, CODE, WARM) as pool:
        for _ in range(harness.times(40, 5)):
            await harness.native("claim_run_code", harness.baselines.python)
            await pool.ready(WARM)
            with harness.timed("claim_run_code"):
                with harness.timed("claim_run_code", part="create"):
                    sandbox = await harness.create(CODE)
                run = await sandbox.run_code(PRINT)
            expect_ok(run)
            await harness.kill(sandbox)


async def claim_command(harness: BenchHarness) -> None:
    """Measure creates from a filled pool until a command has run; part ``inside``: the time that the guest took."""
    async with pools.filled_pool(harness, CODE, WARM) as pool:
        for _ in range(harness.times(40, 5)):
            await harness.native("claim_command", harness.baselines.shell)
            await pool.ready(WARM)
            with harness.timed("claim_command"):
                sandbox = await harness.create(CODE)
                run = await sandbox.commands.run("true")
            harness.add("claim_command", expect_success(run).duration_s * 1000, part="inside")
            await harness.kill(sandbox)


async def tti_sequential(harness: BenchHarness) -> None:
    """Measure sequential creates until a command has run."""
    async with pools.filled_pool(harness, CODE, WARM) as pool:
        for _ in range(harness.times(50, 5)):
            await _native_node(harness, "tti_sequential")
            await pool.ready(WARM)
            sandbox = await _interactive(harness, "tti_sequential")
            if sandbox is not None:
                await harness.kill(sandbox)


async def tti_staggered(harness: BenchHarness) -> None:
    """Measure a ramp of creates; part ``all``: from the first request to the last response."""
    await _crowd(harness, "tti_staggered", harness.times(CROWD, 5), harness.times(2, 1), STAGGER_S)


async def tti_burst(harness: BenchHarness) -> None:
    """Measure concurrent creates; part ``all``: from the first request to the last response; part ``code``: with code instead of a command."""
    await _crowd(harness, "tti_burst", harness.times(CROWD, 5), harness.times(5, 1), 0, harness.times(3, 1))


async def restore_base(harness: BenchHarness) -> None:
    """Measure creates from the template snapshot, with an empty pool."""
    await _restores(harness, "restore_base", BASE)


async def restore_code(harness: BenchHarness) -> None:
    """Measure creates from the template snapshot with a kernel."""
    await _restores(harness, "restore_code", CODE)


async def creates_per_s(harness: BenchHarness) -> None:
    """Measure the rate at which four clients create and end sandboxes."""
    lasts_s = 3.0 if harness.quick else 15.0
    row = harness.samples["creates_per_s"]

    async def one() -> None:
        try:
            await harness.kill(await harness.create(BASE))
        except SandlotError as error:
            row.failed += 1
            row.why = error.message

    async with pools.empty_pool(harness, BASE):
        for rate in await _rates(harness.baselines.python, min(lasts_s, 5)):
            harness.add_native("creates_per_s", rate)
        for rate in await _rates(one, lasts_s):
            harness.add("creates_per_s", rate)


async def _rates(work: Callable[[], Awaitable[None]], lasts_s: float) -> list[float]:
    """Return rates per second of some work by four concurrent clients, each over :data:`RUN` consecutive completions."""
    began_s = time.perf_counter()
    ends_s: list[float] = [0.0]

    async def client() -> None:
        while time.perf_counter() - began_s < lasts_s:
            await work()
            ends_s.append(time.perf_counter() - began_s)

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    run = min(RUN, len(ends_s) - 1)
    return [run / (last - first) for first, last in zip(ends_s, ends_s[run:], strict=False)]


async def _restores(harness: BenchHarness, key: str, template: str) -> None:
    """Measure restores without and, as a part, with a prepared sandbox."""
    async with pools.empty_pool(harness, template) as pool:
        size = harness.images.get(f"template {template}")
        if size is None:
            raise RowFailedError("This driver cannot take a snapshot of the template. See create_cold for creates without one.")
        for _ in range(harness.times(20)):
            await harness.native(key, partial(harness.baselines.read, size))
            await _restore(harness, key, template, None)
        for _ in range(harness.times(10)):
            await pool.set_prepared(1)
            await _restore(harness, key, template, "prepared")
        await pool.set_prepared(0)


async def _restore(harness: BenchHarness, key: str, template: str, part: str | None) -> None:
    with harness.timed(key, part=part):
        with harness.timed(key, part="create" if part is None else f"{part}, create"):
            sandbox = await harness.create(template)
        run = await sandbox.run_code(PRINT)
    expect_ok(run)
    await harness.kill(sandbox)


async def _crowd(harness: BenchHarness, key: str, count: int, rounds: int, apart_s: float, code_rounds: int = 0) -> None:
    await harness.end_kept_sandboxes()
    async with pools.empty_pool(harness, CODE):  # the pool's sandboxes would use the room of three or more of these
        count = await harness.free_slots(count, **SLIM_OPTIONS)
        if count < FEW:
            raise RowFailedError(f"The node has room for only {count} sandboxes.")
        await _crowds(harness, key, count, rounds, apart_s, code_rounds)


async def _crowds(harness: BenchHarness, key: str, count: int, rounds: int, apart_s: float, code_rounds: int) -> None:
    async with pools.filled_pool(harness, CODE, count, SLIM) as pool:

        async def one(number: int) -> AsyncSandbox | None:
            await asyncio.sleep(number * apart_s)
            return await _interactive(harness, key, **SLIM_OPTIONS)

        for _ in range(rounds):
            if not apart_s:
                await asyncio.gather(*(_native_node(harness, key) for _ in range(count)))
            else:
                await _native_node(harness, key)
            await pool.ready(count)
            with harness.timed(key, part="all"):
                sandboxes = await asyncio.gather(*(one(number) for number in range(count)))
            await harness.kill(*(sandbox for sandbox in sandboxes if sandbox is not None))
        for _ in range(code_rounds):
            await pool.ready(count)
            with harness.timed(key, part="code, all"):
                coded = await asyncio.gather(*(_coded(harness, key, **SLIM_OPTIONS) for _ in range(count)))
            await harness.kill(*coded)


async def _coded(harness: BenchHarness, key: str, **options: int) -> AsyncSandbox:
    with harness.timed(key, part="code"):
        sandbox = await harness.create(CODE, **options)
        run = await sandbox.run_code(PRINT)
    expect_ok(run)
    return sandbox


async def _interactive(harness: BenchHarness, key: str, **options: int) -> AsyncSandbox | None:
    """Create a sandbox and run Node.js in it; a failure is counted and gives None."""
    try:
        with harness.timed(key):
            with harness.timed(key, part="create"):
                sandbox = await harness.create(CODE, **options)
            run = await sandbox.commands.run(NODE)
    except SandlotError as error:
        harness.samples[key].failed += 1
        harness.samples[key].why = error.message
        return None
    if not expect_success(run).stdout.startswith("v"):
        raise RowFailedError(f"{NODE} printed {run.stdout!r}.")
    return sandbox


async def _native_node(harness: BenchHarness, key: str) -> None:
    if harness.baselines.node is not None:
        node = harness.baselines.node
        await harness.native(key, partial(harness.baselines.spawn, node, "-v"))
