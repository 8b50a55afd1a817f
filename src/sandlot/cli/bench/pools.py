"""The service's pools during a row: filled or empty; afterwards they are restored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sandlot.cli.bench.harness import BenchHarness, RowFailedError
from sandlot.sdk import Limits, PoolInfo, SandlotError

FILL_TIMEOUT_S = 180.0
"""Time for filling a pool, with the snapshot of its template."""
IDLE_TIMEOUT_S = 60.0
POLL_S = 0.05
DEFAULT = Limits()


class Pool:
    """A pool of the run.

    Args:
        harness: The run.
        info: Last known state of the pool.
    """

    def __init__(self, harness: BenchHarness, info: PoolInfo) -> None:
        self._rig = harness
        self._info = info

    async def ready(self, count: int) -> None:
        """Wait until a number of warm sandboxes is ready.

        Raises:
            RowFailedError: The pool was not filled_pool in time.
        """
        await self._until(lambda info: info.ready >= count, f"{count} sandboxes")

    async def set_prepared(self, count: int) -> None:
        """Set the number of prepared sandboxes, and wait until these are ready or gone.

        Raises:
            RowFailedError: The pool was not filled_pool in time.
        """
        self._info = await self._rig.client.pools.update(self._info.id, prepared=count)
        await self._until(lambda info: info.prepared_ready >= count if count else not info.prepared_ready, f"{count} prepared sandboxes")

    async def wait_for_snapshot(self) -> bool:
        """Wait for the template snapshot; False if the driver cannot take one."""
        if not await self._rig.has_capability("snapshot"):
            return False
        await self._until(lambda info: info.snapshot is not None, "the snapshot of its template")
        self._rig.images[f"template {self._info.template}"] = self._info.snapshot.size_bytes if self._info.snapshot else 0
        return True

    async def _until(self, enough: Callable[[PoolInfo], bool], what: str) -> None:
        ends_s = time.monotonic() + FILL_TIMEOUT_S
        while not enough(info := await self._rig.client.pools.get(self._info.id)):
            if time.monotonic() > ends_s:
                raise RowFailedError(f"The pool of {info.template} did not have {what} within {FILL_TIMEOUT_S:.0f} s. {info.error}".strip())
            await asyncio.sleep(POLL_S)
        self._info = info


async def wait_until_idle(harness: BenchHarness) -> None:
    """Wait until the pools start no sandboxes, which would disturb a measurement; not longer than a minute, and not for a pool that fails."""
    ends_s = time.monotonic() + IDLE_TIMEOUT_S
    try:
        while any(_is_filling(each) for each in await harness.client.pools.list()) and time.monotonic() < ends_s:  # noqa: ASYNC110 - the API has no event for it
            await asyncio.sleep(POLL_S)
    except SandlotError:  # only operators can list pools
        return


def _is_filling(pool: PoolInfo) -> bool:
    return not pool.error and (bool(pool.filling) or pool.ready < pool.warm or pool.prepared_ready < pool.prepared)


@asynccontextmanager
async def filled_pool(harness: BenchHarness, template: str, warm: int, limits: Limits = DEFAULT) -> AsyncIterator[Pool]:
    """Have a filled pool while the body runs.

    Args:
        harness: The run.
        template: Template of the pool.
        warm: Number of warm sandboxes.
        limits: Limits of each sandbox; only disk and processes may differ from the defaults.

    Raises:
        SandlotError: The caller may not have pools, or the driver cannot keep warm sandboxes.
        RowFailedError: The pool was not filled_pool in time.
    """
    async with _sized(harness, template, warm, limits) as pool:
        await pool.ready(warm)
        yield pool


@asynccontextmanager
async def empty_pool(harness: BenchHarness, template: str) -> AsyncIterator[Pool]:
    """Have an empty pool while the body runs, with the template snapshot if the driver can take one. Errors as in :func:`filled_pool`."""
    async with _sized(harness, template, 0, DEFAULT) as pool:
        await pool.wait_for_snapshot()
        yield pool


@asynccontextmanager
async def _sized(harness: BenchHarness, template: str, warm: int, limits: Limits) -> AsyncIterator[Pool]:
    """Create or change a pool for the body, and restore or delete it afterwards."""
    pools = harness.client.pools
    isolation = await harness.isolation_name()
    same = [each for each in await pools.list() if (each.template, each.isolation, each.limits) == (template, isolation, limits)]
    before = same[0] if same else None
    if before is None:
        disk, pids = limits.disk_bytes, limits.pids
        pool = await pools.create(template, warm=warm, max=warm, prepared=0, isolation=isolation, disk=disk, pids=pids)
    else:
        pool = await pools.update(before.id, warm=warm, max=warm, prepared=0)
    harness.pools[pool.id] = before
    try:
        yield Pool(harness, pool)
    finally:
        await restore(harness, pool.id)


async def restore(harness: BenchHarness, pool: str) -> None:
    """Restore a pool to its state before the run, or delete a pool that the run created."""
    before = harness.pools.pop(pool)
    if before is None:
        await harness.client.pools.delete(pool)
    else:
        await harness.client.pools.update(pool, warm=before.warm, max=before.max, prepared=before.prepared)


async def restore_all(harness: BenchHarness) -> None:
    """Restore pools after an interrupt."""
    for pool in tuple(harness.pools):
        try:
            await restore(harness, pool)
        except SandlotError:  # another client deleted the pool
            harness.pools.pop(pool, None)
