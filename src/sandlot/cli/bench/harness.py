"""Client, baselines, clock and cleanup of a run.

Invariant: every sandbox and snapshot of a run has its label in the metadata or the name, so that :meth:`BenchHarness.clean` finds it, also if the
response with its id was lost.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sandlot.cli.bench.baselines import NativeBaselines
from sandlot.cli.bench.report import Samples
from sandlot.sdk import AsyncClient, AsyncSandbox, CommandResult, Execution, SandlotError

if TYPE_CHECKING:
    from sandlot.sdk import PoolInfo, SnapshotInfo

LABEL = "sandlot-bench"
"""Metadata key of every sandbox of a run; its value is the label of the run."""
BASE = "base"
CODE = "code-interpreter"
PRINT = "print(1)"
TIMEOUT_S = 1800.0
"""Timeout of the sandboxes; a run ends them long before. It ends sandboxes of a killed run."""
HIT = "warm"
"""Start path of a sandbox from a pool in the service's metrics."""
POOLED = frozenset({"claim_run_code", "claim_command", "tti_sequential", "tti_staggered", "tti_burst"})
"""Rows with a filled pool."""
CLEANUP_TIMEOUT_S = 30.0
POLL_S = 0.2
_CLAIMS = re.compile(r'^sandlot_claims_total\{[^}]*path="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)


class RowFailedError(Exception):
    """A row cannot be measured here, for the reason in the message."""


@dataclass(slots=True)
class BenchHarness:
    """One run.

    Args:
        client: Client of the service.
        baselines: Native operations.
        label: Label of the run.
        isolation: Driver of the sandboxes; None for the service's default.
        quick: Take few samples.
    """

    client: AsyncClient
    baselines: NativeBaselines
    label: str
    isolation: str | None = None
    quick: bool = False
    samples: dict[str, Samples] = field(default_factory=dict)
    sources: dict[str, dict[str, int]] = field(default_factory=dict)
    """Number of sandboxes by start path for each row, if the service reports it."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Part of the start paths of the current row that is in no figure."""
    images: dict[str, int] = field(default_factory=dict)
    """Size of memory images in bytes, by the content of the sandbox."""
    found_isolation: str | None = None
    """Driver of the sandboxes, once there was one."""
    pools: dict[str, PoolInfo | None] = field(default_factory=dict)
    """Pools to restore, by id, as they were before; None for a pool that the run created."""
    _abilities: dict[str, bool] = field(default_factory=dict)
    _kept: dict[str, AsyncSandbox] = field(default_factory=dict)
    _snapshots: set[str] = field(default_factory=set)

    def times(self, full: int, quick: int = 3) -> int:
        """Return the number of samples."""
        return quick if self.quick else full

    # Sandboxes and snapshots.

    async def create(self, template: str | None = None, **options: Any) -> AsyncSandbox:  # noqa: ANN401 - options of AsyncSandbox.create
        """Create a sandbox of this run."""
        kept = {LABEL: self.label}
        made = await AsyncSandbox.create(template, client=self.client, isolation=self.isolation, timeout=TIMEOUT_S, metadata=kept, **options)
        self.found_isolation = made.isolation
        return made

    async def isolation_name(self) -> str:
        """Return the driver of the sandboxes; if the service chooses it, it is found by creating a sandbox."""
        if self.isolation is not None:
            return self.isolation
        if self.found_isolation is None:
            await self.kill(await self.create(BASE))
        return self.found_isolation or ""

    async def has_capability(self, ability: str) -> bool:
        """Return True if the driver of the sandboxes has a capability, a key of ``DriverInfo.abilities``, or if the service does not report it."""
        if not self._abilities:
            name = await self.isolation_name()
            drivers = await self.client.service.capabilities()
            self._abilities = {ability: found.ok for driver in drivers if driver.driver == name for ability, found in driver.abilities.items()}
        return self._abilities.get(ability, True)

    async def free_slots(self, most: int, **options: int) -> int:
        """Return the number of sandboxes that the node has room for besides one more, at most ``most``; ``most`` if the service does not say.

        A sandbox reserves more than its limits; the amount is found by creating one.
        """
        made = await self.start_paths() or {}
        try:
            before = await self.client.service.capacity()
            sandbox = await self.create(CODE, **options)
            after = await self.client.service.capacity()
            await self.kill(sandbox)
        except SandlotError:
            return most
        self.excluded = increase(made, await self.start_paths() or {})
        free = asdict(before.available)
        takes = {name: amount - asdict(before.reserved)[name] for name, amount in asdict(after.reserved).items()}
        fits = [free[name] // taken for name, taken in takes.items() if taken > 0]
        return max(0, int(min(most, before.max_sandboxes - before.sandboxes - 1, *(count - 1 for count in fits))))

    async def kept_sandbox(self, template: str) -> AsyncSandbox:
        """Return the kept sandbox of a template. The costs of a first use were paid when it was created."""
        if template not in self._kept:
            made = self._kept[template] = await self.create(template)
            expect_ok(await made.run_code(PRINT))
            expect_success(await made.commands.run("true"))
        return self._kept[template]

    async def end_kept_sandboxes(self) -> None:
        """End the kept sandboxes, so that the next step has the machine for itself."""
        while self._kept:
            _, sandbox = self._kept.popitem()
            await self.kill(sandbox)

    async def kill(self, *sandboxes: AsyncSandbox) -> None:
        """End sandboxes of this run."""
        await asyncio.gather(*(self.client.sandboxes.kill(sandbox.id) for sandbox in sandboxes))

    async def snapshot(self, sandbox: AsyncSandbox) -> SnapshotInfo:
        """Take a snapshot, which :meth:`delete_snapshot` deletes."""
        name = f"{LABEL}-{self.label}-{len(self._snapshots)}"
        self._snapshots.add(name)
        return await sandbox.snapshot(name)

    async def delete_snapshot(self, snapshot: SnapshotInfo) -> None:
        """Delete a snapshot of this run."""
        await self.client.snapshots.delete(snapshot.id)

    async def image_bytes(self, name: str, sandbox: AsyncSandbox) -> int:
        """Return the size of a sandbox's memory image, found once for each name by taking a snapshot.

        Args:
            name: Content of the sandbox.
            sandbox: The sandbox.
        """
        if name not in self.images:
            taken = await self.snapshot(sandbox)
            self.images[name] = taken.size_bytes
            await self.delete_snapshot(taken)
        return self.images[name]

    # Samples.

    def add(self, key: str, value: float, *, part: str | None = None) -> None:
        """Add a value of a row, or of a part of it, in the unit of the row."""
        row = self.samples[key]
        (row.values if part is None else row.parts.setdefault(part, [])).append(value)

    def add_native(self, key: str, value: float) -> None:
        """Add a value of the native operation of a row, in the unit of the row."""
        self.samples[key].native.append(value)

    @contextmanager
    def timed(self, key: str, *, part: str | None = None) -> Iterator[None]:
        """Add the duration of the body in milliseconds, unless it raises."""
        began_s = time.perf_counter()
        yield
        self.add(key, (time.perf_counter() - began_s) * 1000, part=part)

    async def native(self, key: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do the native operation of a row once and add its duration in milliseconds; a failed operation is left out."""
        began_s = time.perf_counter()
        with suppress(OSError, ValueError):
            await work()
            self.add_native(key, (time.perf_counter() - began_s) * 1000)

    async def start_paths(self) -> dict[str, int] | None:
        """Return the number of sandboxes by start path since the service started; None if the caller is not an operator."""
        try:
            async with self.client.transport.stream("GET", "/metrics", accept="text/plain") as response:
                text = (await response.aread()).decode()
        except SandlotError:
            return None
        found: dict[str, int] = {}
        for source, count in _CLAIMS.findall(text):
            found[source] = found.get(source, 0) + int(float(count))
        return found

    def pool_report(self) -> dict[str, Any]:
        """Return the start paths of the sandboxes of rows with a filled pool, and the share that came from the pool."""
        made: dict[str, int] = {}
        for key in POOLED & self.sources.keys():
            for source, count in self.sources[key].items():
                made[source] = made.get(source, 0) + count
        total = sum(made.values())
        return {"made_by": made, "hit_rate": made.get(HIT, 0) / total if total else None}

    # Cleanup.

    async def clean(self) -> None:
        """Delete all sandboxes and snapshots of the run, and wait until they are gone.

        Raises:
            SandlotError: The service refuses or does not respond.
        """
        self._kept.clear()
        prefix = f"{LABEL}-{self.label}-"
        if self._snapshots:
            for snapshot in await self.client.snapshots.list():
                if (snapshot.name or "").startswith(prefix):
                    await self.client.snapshots.delete(snapshot.id)
            self._snapshots.clear()
        ends_s = time.monotonic() + CLEANUP_TIMEOUT_S
        empty = 0
        while empty < 2 and time.monotonic() < ends_s:  # noqa: PLR2004 - a create request in progress may be listed later
            left = await self.client.sandboxes.list(metadata={LABEL: self.label})
            for info in left:
                await self.client.sandboxes.kill(info.id)
            empty = 0 if left else empty + 1
            if empty < 2:  # noqa: PLR2004
                await asyncio.sleep(POLL_S)


def increase(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """Return the counts that have increased, with their increase."""
    return {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}


def expect_ok(run: Execution) -> Execution:
    """Return a successful execution.

    Raises:
        RowFailedError: The execution failed.
    """
    if not run.ok:
        raise RowFailedError(f"Code failed: {run.error or run.status}")
    return run


def expect_success(run: CommandResult) -> CommandResult:
    """Return the result of a successful command.

    Raises:
        RowFailedError: The command failed.
    """
    if run.exit_code != 0:
        raise RowFailedError(f"A command failed with {run.exit_code}: {run.stderr.strip()[-200:]}")
    return run
