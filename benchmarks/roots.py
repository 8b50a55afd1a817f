"""Cost of both kinds of root file systems with gVisor: a folder, which a file server of gVisor reads, and an EROFS image, which its kernel reads.

Both kinds take their turn in every round, and the order changes from round to round. Each row has the median and the least of both, and the median of
the ratios of the rounds. ``CPU`` is the processor time of the whole sandbox, its runtime included. The first programs after a restore are measured in
a sandbox that was restored a moment before. Run ``python -m benchmarks.roots [--rounds N] [--json]`` as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.paired import PairedRows
from sandlot.images.store import ImageStore
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Instance
from sandlot.model.specs import MIB, Limits, RootFs, RootKind
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot
from tests.support.cache import CACHE_DIR

LIMITS = Limits(cpus=2.0, memory_bytes=1024 * MIB, disk_bytes=1024 * MIB, pids=256)
PROGRAMS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "base": {
        "bash -c true": ("bash", "-c", "true"),
        "python3 -c pass": ("python3", "-c", "pass"),
        "node -v": ("node", "-v"),
        "bash -c true, second": ("bash", "-c", "true"),
        "python3 -c pass, second": ("python3", "-c", "pass"),
    },
    "code-interpreter": {
        "import pandas": ("python3", "-c", "import pandas"),
        "import pandas, second": ("python3", "-c", "import pandas"),
        "read 2,000 files": ("sh", "-c", "find /usr/local/lib/python3*/dist-packages -name '*.py' | head -2000 | xargs cat > /dev/null"),
    },
}


class Subject:
    """A template with a root of one kind."""

    def __init__(self, name: str, root: RootFs, folder: Path) -> None:
        self.name = name
        self.variant = 0 if root.kind is RootKind.TREE else 1
        self._harness = DriverHarness("gvisor", root=root, node=new_node_id(), data_dir=folder / "state")
        self._driver = self._harness.new_driver()
        self._snapshot = folder / "state" / "saved" / "image"

    async def prepare(self) -> None:
        """Probe the driver, and write the snapshot from which all rounds restore."""
        await asyncio.to_thread(self._driver.probe)
        async with self._harness.sandbox(self._driver, LIMITS) as sandbox:
            await sandbox.link.checkpoint(armed=True)
            await take_snapshot(sandbox.instance, self._snapshot, keep_running=False)

    async def round(self, rows: PairedRows) -> None:
        """Boot one sandbox, create two from the snapshot, and run programs in the last one."""
        with rows.timed(f"{self.name}: boot, until the guest responds", self.variant):
            prepared = await self._driver.prepare(self._harness.shape(LIMITS))
            instance = await prepared.boot(self._harness.spec(LIMITS))
            async with connect_sandbox(instance, LIMITS) as sandbox:
                await sandbox.link.processes.list()
        rows.add(f"{self.name}: boot, CPU", self.variant, (await instance.usage()).cpu_s * 1000)
        rows.add(f"{self.name}: idle memory, MiB", self.variant, (await instance.usage()).memory_bytes / MIB)
        await instance.destroy()
        for warm in (True, False):
            async with self._restored(rows, warm=warm) as sandbox:
                if warm:
                    continue
                for program, argv in PROGRAMS[self.name].items():
                    with rows.timed(f"{self.name}: {program}", self.variant):
                        result = await sandbox.run(*argv)
                    assert result.exit_code == 0, result

    @asynccontextmanager
    async def _restored(self, rows: PairedRows, *, warm: bool) -> AsyncIterator[ConnectedSandbox]:
        began_s = time.perf_counter()
        prepared = await self._driver.prepare(self._harness.shape(LIMITS), snapshot=self._snapshot)
        if warm:
            await prepared.warm()
            await asyncio.sleep(0.1)
            began_s = time.perf_counter()
        instance: Instance = await restore_snapshot(self._driver, prepared, self._snapshot, self._harness.spec(LIMITS))
        async with connect_sandbox(instance, LIMITS) as sandbox:
            row = "restore of a prepared sandbox" if warm else "create from a snapshot"
            rows.add(f"{self.name}: {row}", self.variant, (time.perf_counter() - began_s) * 1000)
            if not warm:
                rows.add(f"{self.name}: create from a snapshot, CPU", self.variant, (await instance.usage()).cpu_s * 1000)
            yield sandbox
        await instance.destroy()


async def main(arguments: list[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    rows, store, folder = PairedRows("folder", "image"), ImageStore(CACHE_DIR), Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    try:
        for name in PROGRAMS:
            tree = store.root(name)
            subjects = [Subject(name, root, folder / name / root.kind) for root in (tree, store.root_image(name))]
            for subject in subjects:
                await subject.prepare()
            for number in range(args.rounds):
                for subject in subjects if number % 2 else reversed(subjects):
                    await subject.round(rows)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write((json.dumps(rows.rows) if args.json else rows.table()) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
