"""What the rows are measured with: a client, yardsticks, a clock, and a list of all that has to go in the end.

Law: Whatever a run makes bears its label in its metadata or its name, so that :meth:`Rig.clean` finds it, also where the answer that would have
told its id never came.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from sandlot.cli.bench.baselines import Natives
from sandlot.cli.bench.report import Samples
from sandlot.sdk import AsyncClient, AsyncSandbox, CommandResult, Execution, SandlotError

if TYPE_CHECKING:
    from sandlot.sdk import PoolInfo, SnapshotInfo

LABEL = "sandlot-bench"
"""The entry of the metadata that every sandbox of a run has; its value is the run's."""
BASE = "base"
CODE = "code-interpreter"
PRINT = "print(1)"
LIFE_S = 1800.0
"""Of a sandbox of a run, which is ended long before: what a killed run leaves, ends then."""
HIT = "warm"
"""The word of the service's metrics for a sandbox that had waited in a pool."""
POOLED = frozenset({"claim_run_code", "claim_command", "tti_sequential", "tti_staggered", "tti_burst"})
"""Rows that a pool is filled for."""
GONE_PATIENCE_S = 30.0
LOOK_S = 0.2
_CLAIMS = re.compile(r'^sandlot_claims_total\{[^}]*path="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)


class CannotError(Exception):
    """A row cannot be measured here; the message says why, for a person."""


@dataclass(slots=True)
class Rig:
    """One run.

    Args:
        client: Reaches the service.
        natives: The yardsticks.
        label: The run's own.
        isolation: Of its sandboxes; None is the service's default.
        quick: Whether few samples are enough.
    """

    client: AsyncClient
    natives: Natives
    label: str
    isolation: str | None = None
    quick: bool = False
    samples: dict[str, Samples] = field(default_factory=dict)
    sources: dict[str, dict[str, int]] = field(default_factory=dict)
    """How the sandboxes of each row came to be, where the service tells."""
    aside: dict[str, int] = field(default_factory=dict)
    """Of those of the row that is being measured, what is in no figure."""
    images: dict[str, int] = field(default_factory=dict)
    """Bytes of memory images, by what was in the sandbox."""
    found_isolation: str | None = None
    """What its sandboxes are isolated by, once there was one."""
    pools: dict[str, PoolInfo | None] = field(default_factory=dict)
    """What has to be set back: pools by id, and what they were before; None is none."""
    _abilities: dict[str, bool] = field(default_factory=dict)
    _warm: dict[str, AsyncSandbox] = field(default_factory=dict)
    _snapshots: set[str] = field(default_factory=set)

    def times(self, full: int, quick: int = 3) -> int:
        """How many samples."""
        return quick if self.quick else full

    # ----------------------------------------------------------------------------------------------------------- what is measured

    async def create(self, template: str | None = None, **options: Any) -> AsyncSandbox:  # noqa: ANN401 - those of AsyncSandbox.create
        """A sandbox of this run."""
        kept = {LABEL: self.label}
        made = await AsyncSandbox.create(template, client=self.client, isolation=self.isolation, timeout=LIFE_S, metadata=kept, **options)
        self.found_isolation = made.isolation
        return made

    async def isolated_by(self) -> str:
        """What its sandboxes are isolated by; where the service chooses, that is found by making one."""
        if self.isolation is not None:
            return self.isolation
        if self.found_isolation is None:
            await self.kill(await self.create(BASE))
        return self.found_isolation or ""

    async def can(self, ability: str) -> bool:
        """Whether the isolation of its sandboxes has an ability of the service's drivers; True where the service does not tell.

        Args:
            ability: A key of ``DriverInfo.abilities``.
        """
        if not self._abilities:
            name = await self.isolated_by()
            drivers = await self.client.service.capabilities()
            self._abilities = {ability: found.ok for driver in drivers if driver.driver == name for ability, found in driver.abilities.items()}
        return self._abilities.get(ability, True)

    async def room(self, most: int, **options: int) -> int:
        """How many sandboxes like that the node has room for beside one more, so many at most; that many where the service does not tell.

        What one takes is more than its limits; it is found by making one.
        """
        made = await self.made_by() or {}
        try:
            before = await self.client.service.capacity()
            box = await self.create(CODE, **options)
            after = await self.client.service.capacity()
            await self.kill(box)
        except SandlotError:
            return most
        self.aside = grown(made, await self.made_by() or {})
        free = asdict(before.available)
        takes = {name: amount - asdict(before.reserved)[name] for name, amount in asdict(after.reserved).items()}
        fits = [free[name] // taken for name, taken in takes.items() if taken > 0]
        return max(0, int(min(most, before.max_sandboxes - before.sandboxes - 1, *(count - 1 for count in fits))))

    async def warm(self, template: str) -> AsyncSandbox:
        """The sandbox of that template that the run keeps, with all behind it that only the first use of one pays for."""
        if template not in self._warm:
            made = self._warm[template] = await self.create(template)
            good(await made.run_code(PRINT))
            done(await made.commands.run("true"))
        return self._warm[template]

    async def put_away(self) -> None:
        """Remove the sandboxes that the run keeps; what comes next is alone on the machine."""
        while self._warm:
            _, box = self._warm.popitem()
            await self.kill(box)

    async def kill(self, *boxes: AsyncSandbox) -> None:
        """Remove sandboxes of this run."""
        await asyncio.gather(*(self.client.sandboxes.kill(box.id) for box in boxes))

    async def snapshot(self, box: AsyncSandbox) -> SnapshotInfo:
        """Take a snapshot, which :meth:`forget` removes."""
        name = f"{LABEL}-{self.label}-{len(self._snapshots)}"
        self._snapshots.add(name)
        return await box.snapshot(name)

    async def forget(self, snapshot: SnapshotInfo) -> None:
        """Remove a snapshot of this run."""
        await self.client.snapshots.delete(snapshot.id)

    async def image_bytes(self, name: str, box: AsyncSandbox) -> int:
        """How large the memory image of a sandbox is, found once for each name by taking one.

        Args:
            name: What is in the sandbox.
            box: It.
        """
        if name not in self.images:
            taken = await self.snapshot(box)
            self.images[name] = taken.size_bytes
            await self.forget(taken)
        return self.images[name]

    # ------------------------------------------------------------------------------------------------------------------ the clock

    def add(self, key: str, value: float, *, part: str | None = None) -> None:
        """A value of a row, in its unit; of a part of it, where one is named."""
        row = self.samples[key]
        (row.values if part is None else row.parts.setdefault(part, [])).append(value)

    def add_native(self, key: str, value: float) -> None:
        """A value of a row's yardstick, in the row's unit."""
        self.samples[key].native.append(value)

    @contextmanager
    def clock(self, key: str, *, part: str | None = None) -> Iterator[None]:
        """The milliseconds that the body takes, where it does not raise."""
        began_s = time.perf_counter()
        yield
        self.add(key, (time.perf_counter() - began_s) * 1000, part=part)

    async def native(self, key: str, work: Callable[[], Awaitable[object]]) -> None:
        """A turn of a row's yardstick, in milliseconds; one that fails is left out."""
        began_s = time.perf_counter()
        with suppress(OSError, ValueError):
            await work()
            self.add_native(key, (time.perf_counter() - began_s) * 1000)

    async def made_by(self) -> dict[str, int] | None:
        """How many sandboxes have come to be in which way since the service started; None where it does not tell (it tells operators)."""
        try:
            async with self.client.transport.stream("GET", "/metrics", accept="text/plain") as answer:
                text = (await answer.aread()).decode()
        except SandlotError:
            return None
        found: dict[str, int] = {}
        for source, count in _CLAIMS.findall(text):
            found[source] = found.get(source, 0) + int(float(count))
        return found

    def pool_report(self) -> dict[str, Any]:
        """How the sandboxes came to be that were made while a pool was filled for them, and the share that came out of it."""
        made: dict[str, int] = {}
        for key in POOLED & self.sources.keys():
            for source, count in self.sources[key].items():
                made[source] = made.get(source, 0) + count
        total = sum(made.values())
        return {"made_by": made, "hit_rate": made.get(HIT, 0) / total if total else None}

    # -------------------------------------------------------------------------------------------------------------------- the end

    async def clean(self) -> None:
        """Remove all that the run has made, and see that it is gone.

        Raises:
            SandlotError: The service refuses, or does not answer.
        """
        self._warm.clear()
        prefix = f"{LABEL}-{self.label}-"
        if self._snapshots:
            for snapshot in await self.client.snapshots.list():
                if (snapshot.name or "").startswith(prefix):
                    await self.client.snapshots.delete(snapshot.id)
            self._snapshots.clear()
        ends_s = time.monotonic() + GONE_PATIENCE_S
        empty = 0
        while empty < 2 and time.monotonic() < ends_s:  # noqa: PLR2004 - what was asked for a moment ago may be listed a moment later
            left = await self.client.sandboxes.list(metadata={LABEL: self.label})
            for info in left:
                await self.client.sandboxes.kill(info.id)
            empty = 0 if left else empty + 1
            if empty < 2:  # noqa: PLR2004
                await asyncio.sleep(LOOK_S)


def grown(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """By how much counts have grown, where they have. Pure."""
    return {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}


def good(run: Execution) -> Execution:
    """A cell that must do well.

    Raises:
        CannotError: It did not.
    """
    if not run.ok:
        raise CannotError(f"A cell failed: {run.error or run.status}")
    return run


def done(run: CommandResult) -> CommandResult:
    """A command that must do well.

    Raises:
        CannotError: It did not.
    """
    if run.exit_code != 0:
        raise CannotError(f"A command failed with {run.exit_code}: {run.stderr.strip()[-200:]}")
    return run
