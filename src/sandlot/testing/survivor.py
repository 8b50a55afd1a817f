"""A program for the suites: a service that dies. It drives a real driver until somebody kills it with SIGKILL.

``python -m sandlot.testing.survivor MODE DRIVER NODE DATA_DIR ROOT DIGEST`` with a mode of

- ``live``: boot one sandbox, leave a file in it, print its ref, wait.
- ``blank``: prepare one, print ``ready``, wait.
- ``churn``: prepare, boot and destroy without end, several at once; print ``ready`` at the start.
- ``saving``: boot one and print its ref; then write it down without end, paused and not, and restore, write down and end copies of it.
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path

from sandlot.model.ids import NodeId
from sandlot.model.specs import RootFs
from sandlot.testing.bench import Bench, meet

MARK = "/tmp/mark"  # noqa: S108 - inside of the sandbox
_AT_ONCE = 3


async def live(bench: Bench) -> None:
    """One sandbox that outlives us."""
    instance = await bench.boot(bench.start())
    async with meet(instance) as subject:
        done = await subject.run("sh", "-c", f"echo left by the service before > {MARK}")
    _say(instance.ref if done.code == 0 else done.stderr)
    await asyncio.Event().wait()


async def blank(bench: Bench) -> None:
    """One that was only prepared."""
    prepared = await bench.start().prepare(bench.shape())
    _say("ready")
    await asyncio.Event().wait()
    await prepared.destroy()


async def churn(bench: Bench) -> None:
    """Every step of a life is going on at any moment."""
    driver = bench.start()

    async def lives() -> None:
        while True:
            prepared = await driver.prepare(bench.shape())
            instance = await prepared.boot(bench.spec())
            await instance.destroy()

    _say("ready")
    await asyncio.gather(*(lives() for _ in range(_AT_ONCE)))


async def saving(bench: Bench) -> None:
    """Every step of a snapshot and of a restore is going on at any moment."""
    driver, saved = bench.start(), bench.data_dir / "saved"
    source, first = await bench.boot(driver), saved / "first" / "image"
    async with meet(source) as subject:
        await subject.run("sh", "-c", f"echo left by the service before > {MARK}")
        await subject.link.checkpoint(armed=True)
        await source.snapshot(first, keep_running=True)

    async def sources() -> None:
        for number in count():
            if number % 2:
                await source.pause()
            await source.snapshot(saved / f"source-{number}" / "image", keep_running=True, durable=number % 3 == 0)
            await source.resume()

    async def copies(lane: int) -> None:
        for number in count():
            prepared = await driver.prepare(bench.shape(), snapshot=first)
            if (lane + number) % 2:
                await prepared.warm()
            instance = await prepared.restore(first, bench.spec())
            await instance.snapshot(saved / f"copy-{lane}-{number}" / "image", keep_running=False, durable=False)
            await instance.destroy()

    _say(source.ref)
    await asyncio.gather(sources(), *(copies(lane) for lane in range(_AT_ONCE - 1)))


def main(arguments: list[str]) -> None:
    """Do what the mode says."""
    mode, driver, node, data_dir, root, digest = arguments
    bench = Bench(driver, RootFs(Path(root), digest), NodeId(node), Path(data_dir))
    asyncio.run({"live": live, "blank": blank, "churn": churn, "saving": saving}[mode](bench))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
