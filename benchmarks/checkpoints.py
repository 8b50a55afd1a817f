"""What snapshots cost at the driver's seam: writing one, making a blank warm, going on from one; by the control socket and the command line.

Every variant takes its turn in every round, so that what else the machine does falls on all of them alike. Run it as root:
``python -m benchmarks.checkpoints [--rounds N] [--json]``. The host's clock is read around each step; ``answer`` ends with the first
answer of the guest to whom it was told who it is, which is what a create from a pool's blank consists of.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from sandlot.drivers.oci.driver import OciDriver
from sandlot.drivers.oci.gvisor.runtime import Runsc, find_runsc
from sandlot.drivers.registry import DriverSettings
from sandlot.images.store import ImageStore
from sandlot.link.client import Link
from sandlot.model.ids import new_node_id, new_sandbox_id
from sandlot.model.ports import Instance
from sandlot.model.specs import MIB, Limits, ProcessSpec, RootFs, SandboxSpec, Shape
from sandlot.testing.drivers.harness import restore_snapshot, take_snapshot
from tests.support.cache import CACHE_DIR

LIMITS = Limits(cpus=2.0, memory_bytes=1024 * MIB, disk_bytes=1024 * MIB, pids=256)
IMPORTS = {"base": "", "base + 50 MiB": "held = __import__('os').urandom(50 << 20)", "pandas": "import numpy, pandas"}
ROOTS = {"pandas": "code-interpreter"}
ResultT = TypeVar("ResultT")


class Rounds:
    """Milliseconds by row, and sizes."""

    def __init__(self) -> None:
        self.rows: dict[str, list[float]] = defaultdict(list)
        self.sizes: dict[str, int] = {}

    async def timed(self, row: str, work: Awaitable[ResultT]) -> ResultT:
        """Some work, timed."""
        began_s = time.perf_counter()
        result = await work
        self.rows[row].append((time.perf_counter() - began_s) * 1000)
        return result

    def table(self) -> str:
        """For people."""
        lines = [f"{row:45}{statistics.median(values):8.1f}{min(values):8.1f}{len(values):5}" for row, values in self.rows.items()]
        sizes = [f"{row:45}{size / MIB:8.1f} MiB" for row, size in self.sizes.items()]
        return "\n".join((f"{'ms':45}{'median':>8}{'least':>8}{'n':>5}", *lines, "", *sizes))


class Subject:
    """One root with something running in it, and both ways to it.

    Args:
        name: What it is called in the rows.
        root: Its root file system.
        program: What its process has done before it is written down.
        folder: For this run alone.
    """

    def __init__(self, name: str, root: RootFs, program: str, folder: Path) -> None:
        self.name, self.shape, self.program = name, Shape(root, LIMITS), program
        self.node = new_node_id()
        self._turn = 0
        settings = DriverSettings(self.node, folder / "state")
        self.drivers = {
            "socket": OciDriver("gvisor", settings, Runsc()),
            "cli": OciDriver("gvisor", settings, Runsc(lambda: dataclasses.replace(find_runsc(), has_control=False))),
        }
        self.place = folder / "state" / "saved" / "one" / "image"

    def ways(self) -> list[tuple[str, OciDriver]]:
        """Both ways, the other one first than the time before: what comes first finds a disk that is busy with what was written before it."""
        self._turn += 1
        return sorted(self.drivers.items(), reverse=self._turn // 2 % 2 == 0)

    async def write(self, rounds: Rounds) -> None:
        """Each way of writing it; the last one stays."""
        for way, driver in self.ways():
            instance = await (await driver.prepare(self.shape)).boot(self._spec())
            link = await _woken(instance)
            if self.program:
                call = await link.processes.start(
                    ProcessSpec(argv=("python3", "-c", f"{self.program}\nprint(1, flush=True)\ninput()"), cwd="/", stdin=True)
                )
                async for _ in call:
                    break
            for durable in (True, False):
                shutil.rmtree(self.place, ignore_errors=True)
                row = f"{self.name}: snapshot, {'durable' if durable else 'not synced'} ({way})"
                await link.checkpoint(armed=True)
                rounds.sizes[self.name] = await rounds.timed(row, take_snapshot(instance, self.place, keep_running=True, durable=durable))
                await link.checkpoint(armed=False)
            await link.aclose()
            await instance.destroy()

    async def restore(self, rounds: Rounds) -> None:
        """Each way of going on."""
        for way, driver in self.ways():
            for warm in (True, False):
                blank = await rounds.timed("prepare", driver.prepare(self.shape, snapshot=self.place))
                if warm:
                    await rounds.timed(f"warm ({way})", blank.warm())
                    await asyncio.sleep(0.1)
                began_s = time.perf_counter()
                row = f"{self.name}: {'warm' if warm else 'cold'} restore ({way})"
                instance = await rounds.timed(row, restore_snapshot(driver, blank, self.place, self._spec()))
                link = await _woken(instance)
                rounds.rows[f"{row}, answer"].append((time.perf_counter() - began_s) * 1000)
                await link.aclose()
                await instance.destroy()

    def _spec(self) -> SandboxSpec:
        return SandboxSpec(id=new_sandbox_id(self.node), limits=LIMITS, isolation="gvisor")


async def _woken(instance: Instance) -> Link:
    link = await Link.open(await instance.connect())
    if link.asleep:
        await link.wake(identity=f"sb-{instance.ref}", hostname="bench", env={}, pids=LIMITS.pids, deadline_s=None)
    else:
        await link.processes.list()
    return link


async def main(arguments: list[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    rounds, store, folder = Rounds(), ImageStore(CACHE_DIR), Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    try:
        for name, program in IMPORTS.items():
            subject = Subject(name, store.root(ROOTS.get(name, "base")), program, folder / name.split()[-1])
            try:
                for _ in range(args.rounds):
                    await subject.write(rounds)
                    await subject.restore(rounds)
            finally:
                for driver in subject.drivers.values():
                    await driver.sweep(())
    finally:
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps({"ms": rounds.rows, "bytes": rounds.sizes}) if args.json else rounds.table())
    sys.stdout.write("\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
