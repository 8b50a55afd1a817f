"""Cost of both kinds of root file systems with gVisor: a folder, which a file server of gVisor reads, and an EROFS image, which its kernel reads.

Both kinds take their turn in every round, and the order changes from round to round. Each row has the median and the least of both, and the median of
the ratios of the rounds. ``CPU`` is the processor time of the whole sandbox, its runtime included. The first programs after a restore are measured in
a sandbox that was restored a moment before. Run ``python -m benchmarks.roots [--rounds N] [--json]`` as root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from sandlot.images.store import ImageStore, cache_from
from sandlot.model.ids import new_node_id
from sandlot.model.ports import Instance
from sandlot.model.specs import MIB, Limits, RootFs, RootKind
from sandlot.testing.drivers.harness import ConnectedSandbox, DriverHarness, connect_sandbox, restore_snapshot, take_snapshot

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


class Rows:
    """Milliseconds and bytes by row and kind of root."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[RootKind, list[float]]] = defaultdict(lambda: {kind: [] for kind in RootKind})

    def add(self, row: str, kind: RootKind, value: float) -> None:
        """Add one result."""
        self.rows[row][kind].append(value)

    @contextmanager
    def timed(self, row: str, kind: RootKind) -> Iterator[None]:
        """Add the milliseconds that a block takes."""
        began_s = time.perf_counter()
        yield
        self.add(row, kind, (time.perf_counter() - began_s) * 1000)

    def table(self) -> str:
        """Return the results for people."""
        lines = [f"{'':46}{'folder':>16}{'image':>16}{'ratio':>8}{'n':>5}"]
        for row, kinds in self.rows.items():
            tree, image = kinds[RootKind.TREE], kinds[RootKind.IMAGE]
            ratio = statistics.median(after / before for before, after in zip(tree, image, strict=True))
            lines.append(f"{row:46}{_short(tree):>16}{_short(image):>16}{ratio:8.2f}{len(tree):5}")
        return "\n".join(lines)


class Subject:
    """A template with a root of one kind."""

    def __init__(self, name: str, root: RootFs, folder: Path) -> None:
        self.name, self.kind = name, root.kind
        self._harness = DriverHarness("gvisor", root=root, node=new_node_id(), data_dir=folder / "state")
        self._driver = self._harness.new_driver()
        self._snapshot = folder / "state" / "saved" / "image"

    async def prepare(self) -> None:
        """Probe the driver, and write the snapshot from which all rounds restore."""
        await asyncio.to_thread(self._driver.probe)
        async with self._harness.sandbox(self._driver, LIMITS) as sandbox:
            await sandbox.link.checkpoint(armed=True)
            await take_snapshot(sandbox.instance, self._snapshot, keep_running=False)

    async def round(self, rows: Rows) -> None:
        """Boot one sandbox, create two from the snapshot, and run programs in the last one."""
        with rows.timed(f"{self.name}: boot, until the guest responds", self.kind):
            prepared = await self._driver.prepare(self._harness.shape(LIMITS))
            instance = await prepared.boot(self._harness.spec(LIMITS))
            async with connect_sandbox(instance, LIMITS) as sandbox:
                await sandbox.link.processes.list()
        rows.add(f"{self.name}: boot, CPU", self.kind, (await instance.usage()).cpu_s * 1000)
        rows.add(f"{self.name}: idle memory, MiB", self.kind, (await instance.usage()).memory_bytes / MIB)
        await instance.destroy()
        for warm in (True, False):
            async with self._restored(rows, warm=warm) as sandbox:
                if warm:
                    continue
                for program, argv in PROGRAMS[self.name].items():
                    with rows.timed(f"{self.name}: {program}", self.kind):
                        result = await sandbox.run(*argv)
                    assert result.exit_code == 0, result

    @asynccontextmanager
    async def _restored(self, rows: Rows, *, warm: bool) -> AsyncIterator[ConnectedSandbox]:
        began_s = time.perf_counter()
        prepared = await self._driver.prepare(self._harness.shape(LIMITS), snapshot=self._snapshot)
        if warm:
            await prepared.warm()
            await asyncio.sleep(0.1)
            began_s = time.perf_counter()
        instance: Instance = await restore_snapshot(self._driver, prepared, self._snapshot, self._harness.spec(LIMITS))
        async with connect_sandbox(instance, LIMITS) as sandbox:
            row = "restore of a prepared sandbox" if warm else "create from a snapshot"
            rows.add(f"{self.name}: {row}", self.kind, (time.perf_counter() - began_s) * 1000)
            if not warm:
                rows.add(f"{self.name}: create from a snapshot, CPU", self.kind, (await instance.usage()).cpu_s * 1000)
            yield sandbox
        await instance.destroy()


def _short(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f})"


async def main(arguments: list[str]) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(arguments)
    rows, store, folder = Rows(), ImageStore(cache_from(os.environ)), Path(tempfile.mkdtemp(prefix="sandlot-bench-"))
    try:
        for name in PROGRAMS:
            tree = store.root(name)
            subjects = [Subject(name, root, folder / name / root.kind) for root in (tree, store.root_image(name))]
            for subject in subjects:
                await subject.prepare()
            for number in range(asked.rounds):
                for subject in subjects if number % 2 else reversed(subjects):
                    await subject.round(rows)
    finally:
        shutil.rmtree(folder)
    sys.stdout.write((json.dumps(rows.rows) if asked.json else rows.table()) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
