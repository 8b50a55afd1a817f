"""Rows of pause, hibernation, snapshots and forks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from sandlot.cli.bench import pools
from sandlot.cli.bench.harness import BASE, CODE, PRINT, BenchHarness, RowFailedError, expect_ok, expect_success
from sandlot.sdk import AsyncSandbox, SandlotError

PANDAS = "import numpy, pandas; frame = pandas.DataFrame({'a': range(1000)}); print(1)"
CROWD = 10
WINDOW_S = 0.5
"""Seconds during which a parent is watched without a fork, for comparison."""

LATE_S = 0.2
"""Seconds during which a parent is watched after a fork."""

WATCH = """\
import select, sys, time
last = most = 0.0
while True:
    ready = select.select([0], [], [], 0.0005)[0]
    now = time.time()
    most = max(most, now - last) if last else 0.0
    last = now
    if ready:
        if not sys.stdin.readline():
            break
        print(most * 1000, flush=True)
        most = 0.0
"""
"""Prints, for each line of input, the longest time in milliseconds that the process did not run since the last line. It uses the wall clock, because
the monotonic clock may stop as well (time_namespaces(7), and its counterpart in gVisor)."""


async def pause_resume(harness: BenchHarness) -> None:
    """Measure pause, resume and the first code; each of the three is a part."""
    sandbox = await harness.kept_sandbox(CODE)
    for _ in range(harness.times(50, 5)):
        await harness.native("pause_resume", harness.baselines.stop_and_go)
        with harness.timed("pause_resume"):
            with harness.timed("pause_resume", part="pause"):
                await sandbox.pause()
            with harness.timed("pause_resume", part="resume"):
                await sandbox.resume()
            with harness.timed("pause_resume", part="answer"):
                run = await sandbox.run_code(PRINT)
        expect_ok(run)


async def snapshot(harness: BenchHarness) -> None:
    """Measure a memory snapshot of a running sandbox."""
    async with _live(harness) as sandbox:
        size = await harness.image_bytes("pandas", sandbox)
        for _ in range(harness.times(10)):
            await harness.native("snapshot", partial(harness.baselines.write, size, synced=True))
            with harness.timed("snapshot"):
                taken = await harness.snapshot(sandbox)
            await harness.delete_snapshot(taken)


async def fork_1(harness: BenchHarness) -> None:
    """Measure a fork until it has run code with its parent's data; part ``fork``: the call alone."""
    await _forks(harness, "fork_1", 1, harness.times(15))


async def fork_10(harness: BenchHarness) -> None:
    """Measure ten forks until all have run code."""
    await _forks(harness, "fork_10", CROWD, harness.times(5, 1))


async def fork_parent_stop(harness: BenchHarness) -> None:
    """Measure the longest time that a process of the parent did not run during a fork, by the wall clock inside."""
    async with _live(harness) as sandbox:
        watcher = await sandbox.commands.run(["python3", "-c", WATCH], stdin=True, background=True)
        pieces = watcher.output()

        async def longest_ms() -> float:
            await watcher.send_stdin("\n")
            text = b""
            while not text.endswith(b"\n"):
                text += (await anext(pieces)).data
            return float(text.split()[-1])

        try:
            await longest_ms()
            for _ in range(harness.times(15)):
                await asyncio.sleep(WINDOW_S)
                harness.add_native("fork_parent_stop", await longest_ms())
                children = await sandbox.fork()
                await asyncio.sleep(LATE_S)
                harness.add("fork_parent_stop", await longest_ms())
                await harness.kill(*children)
        finally:
            await pieces.aclose()


async def hibernate(harness: BenchHarness) -> None:
    """Measure hibernation and resumption; part ``code``: of code-interpreter with its kernel; part ``call``: the resume call alone.

    Part ``prepared``: of base while a prepared sandbox waits; for code-interpreter, one waits by default.
    """
    for template, part in ((BASE, None), (CODE, "code")):
        sandbox = await harness.create(template)
        expect_ok(await sandbox.run_code("kept = 1"))
        size = await harness.image_bytes(template, sandbox)
        for _ in range(harness.times(10)):
            if part is None:
                await harness.native("hibernate", partial(harness.baselines.write, size, synced=True))
                await harness.native("wake", partial(harness.baselines.read, size))
            await _hibernate_and_resume(harness, sandbox, part)
        if part is None and await harness.has_capability("snapshot"):
            with suppress(SandlotError):  # only operators have prepared sandboxes
                async with pools.empty_pool(harness, template) as pool:
                    for _ in range(harness.times(10)):
                        await pool.set_prepared(1)
                        await _hibernate_and_resume(harness, sandbox, "prepared")
        await harness.kill(sandbox)


async def _hibernate_and_resume(harness: BenchHarness, sandbox: AsyncSandbox, part: str | None) -> None:
    with harness.timed("hibernate", part=part):
        await sandbox.hibernate()
    await pools.wait_until_idle(harness)
    with harness.timed("wake", part=part):
        with harness.timed("wake", part="call" if part is None else f"{part}, call"):
            await sandbox.resume()
        run = await sandbox.run_code("print(kept)")
    if expect_ok(run).stdout != "1\n":
        raise RowFailedError(f"A resumed sandbox has lost its state: {run.stdout!r}")


async def _forks(harness: BenchHarness, key: str, count: int, times: int) -> None:
    async with _live(harness) as sandbox:
        size = await harness.image_bytes("pandas", sandbox)

        async def copied() -> None:
            await harness.baselines.write(size, synced=False)
            await harness.baselines.read(size, count)

        async def answers(child: AsyncSandbox) -> None:
            if expect_ok(await child.run_code("print(len(frame))")).stdout != "1000\n":
                raise RowFailedError("A fork does not have its parent's data.")

        for _ in range(times):
            await harness.native(key, copied)
            await pools.wait_until_idle(harness)
            children: Sequence[AsyncSandbox] = ()
            try:
                with harness.timed(key):
                    with harness.timed(key, part="fork"):
                        children = await sandbox.fork(count)
                    began_s = time.perf_counter()
                    await asyncio.gather(*(answers(child) for child in children))
                    harness.add(key, (time.perf_counter() - began_s) * 1000, part="answers")
            finally:
                await harness.kill(*children)


@asynccontextmanager
async def _live(harness: BenchHarness) -> AsyncIterator[AsyncSandbox]:
    """Have a sandbox with pandas and data in its kernel while the body runs."""
    sandbox = await harness.create(CODE)
    try:
        expect_ok(await sandbox.run_code(PANDAS))
        expect_success(await sandbox.commands.run("true"))
        yield sandbox
    finally:
        await harness.kill(sandbox)
