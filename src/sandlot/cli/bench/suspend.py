"""Rows of sandboxes that rest, are kept, and come of one another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

from sandlot.cli.bench import pools
from sandlot.cli.bench.harness import BASE, CODE, PRINT, CannotError, Rig, done, good
from sandlot.sdk import AsyncSandbox, SandlotError

PANDAS = "import numpy, pandas; frame = pandas.DataFrame({'a': range(1000)}); print(1)"
CROWD = 10
WINDOW_S = 0.5
"""How long a parent is watched without a fork, for comparison."""

LATE_S = 0.2
"""How long after a fork its parent is still watched."""

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
"""Tells, for each line that it reads, the longest time in milliseconds that it stood still since the line before. By the clock on the wall, because
the monotonic one may stand still as well (time_namespaces(7), and the like of it in gVisor)."""


async def pause_resume(rig: Rig) -> None:
    """Freeze, thaw, and an answer; each of the three is a part as well."""
    box = await rig.warm(CODE)
    for _ in range(rig.times(50, 5)):
        await rig.native("pause_resume", rig.natives.stop_and_go)
        with rig.clock("pause_resume"):
            with rig.clock("pause_resume", part="pause"):
                await box.pause()
            with rig.clock("pause_resume", part="resume"):
                await box.resume()
            with rig.clock("pause_resume", part="answer"):
                run = await box.run_code(PRINT)
        good(run)


async def snapshot(rig: Rig) -> None:
    """A memory snapshot of a sandbox that goes on."""
    async with _live(rig) as box:
        size = await rig.image_bytes("pandas", box)
        for _ in range(rig.times(10)):
            await rig.native("snapshot", partial(rig.natives.write, size, synced=True))
            with rig.clock("snapshot"):
                taken = await rig.snapshot(box)
            await rig.forget(taken)


async def fork_1(rig: Rig) -> None:
    """One child, which answers with what its parent had; ``fork`` is the call alone."""
    await _forks(rig, "fork_1", 1, rig.times(15))


async def fork_10(rig: Rig) -> None:
    """Ten children, until all have answered."""
    await _forks(rig, "fork_10", CROWD, rig.times(5, 1))


async def fork_parent_stop(rig: Rig) -> None:
    """The longest time that a process of the parent did not run during a fork, by the clock on the wall as it sees it."""
    async with _live(rig) as box:
        watcher = await box.commands.run(["python3", "-c", WATCH], stdin=True, background=True)
        pieces = watcher.output()

        async def longest_ms() -> float:
            await watcher.send_stdin("\n")
            text = b""
            while not text.endswith(b"\n"):
                text += (await anext(pieces)).data
            return float(text.split()[-1])

        try:
            await longest_ms()
            for _ in range(rig.times(15)):
                await asyncio.sleep(WINDOW_S)
                rig.add_native("fork_parent_stop", await longest_ms())
                children = await box.fork()
                await asyncio.sleep(LATE_S)
                rig.add("fork_parent_stop", await longest_ms())
                await rig.kill(*children)
        finally:
            await pieces.aclose()


async def hibernate(rig: Rig) -> None:
    """To the disk and back; ``code`` is of code-interpreter with its kernel, ``call`` of a wake the call without the answer.

    ``blank`` is of base where a blank waits for it; for code-interpreter one waits by default.
    """
    for template, part in ((BASE, None), (CODE, "code")):
        box = await rig.create(template)
        good(await box.run_code("kept = 1"))
        size = await rig.image_bytes(template, box)
        for _ in range(rig.times(10)):
            if part is None:
                await rig.native("hibernate", partial(rig.natives.write, size, synced=True))
                await rig.native("wake", partial(rig.natives.read, size))
            await _sleeps_and_wakes(rig, box, part)
        if part is None and await rig.can("snapshot"):
            with suppress(SandlotError):  # pools are the operator's
                async with pools.drained(rig, template) as pool:
                    for _ in range(rig.times(10)):
                        await pool.blank(1)
                        await _sleeps_and_wakes(rig, box, "blank")
        await rig.kill(box)


async def _sleeps_and_wakes(rig: Rig, box: AsyncSandbox, part: str | None) -> None:
    with rig.clock("hibernate", part=part):
        await box.hibernate()
    await pools.settled(rig)
    with rig.clock("wake", part=part):
        with rig.clock("wake", part="call" if part is None else f"{part}, call"):
            await box.resume()
        run = await box.run_code("print(kept)")
    if good(run).stdout != "1\n":
        raise CannotError(f"A sandbox woke without its state: {run.stdout!r}")


async def _forks(rig: Rig, key: str, count: int, times: int) -> None:
    async with _live(rig) as box:
        size = await rig.image_bytes("pandas", box)

        async def copied() -> None:
            await rig.natives.write(size, synced=False)
            await rig.natives.read(size, count)

        async def answers(child: AsyncSandbox) -> None:
            if good(await child.run_code("print(len(frame))")).stdout != "1000\n":
                raise CannotError("A child has not what its parent had.")

        for _ in range(times):
            await rig.native(key, copied)
            await pools.settled(rig)
            children: Sequence[AsyncSandbox] = ()
            try:
                with rig.clock(key):
                    with rig.clock(key, part="fork"):
                        children = await box.fork(count)
                    began_s = time.perf_counter()
                    await asyncio.gather(*(answers(child) for child in children))
                    rig.add(key, (time.perf_counter() - began_s) * 1000, part="answers")
            finally:
                await rig.kill(*children)


@asynccontextmanager
async def _live(rig: Rig) -> AsyncIterator[AsyncSandbox]:
    """A sandbox of code-interpreter that has pandas imported and data in it."""
    box = await rig.create(CODE)
    try:
        good(await box.run_code(PANDAS))
        done(await box.commands.run("true"))
        yield box
    finally:
        await rig.kill(box)
