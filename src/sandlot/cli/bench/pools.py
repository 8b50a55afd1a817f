"""The service's pools, as a run needs them: filled, or with nothing in them; afterwards they are what they were before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sandlot.cli.bench.harness import CannotError, Rig
from sandlot.sdk import Limits, PoolInfo, SandlotError

PATIENCE_S = 180.0
"""For a pool to be filled, the snapshot of its template included."""
SETTLE_S = 60.0
LOOK_S = 0.05
DEFAULT = Limits()


class Pool:
    """The pool of a template with the limits that a sandbox has by default.

    Args:
        rig: The run.
        info: As it was last told.
    """

    def __init__(self, rig: Rig, info: PoolInfo) -> None:
        self._rig = rig
        self._info = info

    async def ready(self, count: int) -> None:
        """Wait until so many of it wait to be taken.

        Raises:
            CannotError: They do not come.
        """
        await self._until(lambda info: info.ready >= count, f"{count} sandboxes")

    async def blank(self, count: int) -> None:
        """Have so many prepared ones beside, and wait until they are there; with 0, none.

        Raises:
            CannotError: They do not come.
        """
        self._info = await self._rig.client.pools.update(self._info.id, prepared=count)
        await self._until(lambda info: info.prepared_ready >= count if count else not info.prepared_ready, f"{count} prepared sandboxes")

    async def restorable(self) -> bool:
        """Wait until the snapshot of its template is there; whether there is one, as there is none where the isolation cannot."""
        if not await self._rig.can("snapshot"):
            return False
        await self._until(lambda info: info.snapshot is not None, "the snapshot of its template")
        self._rig.images[f"template {self._info.template}"] = self._info.snapshot.size_bytes if self._info.snapshot else 0
        return True

    async def _until(self, enough: Callable[[PoolInfo], bool], what: str) -> None:
        ends_s = time.monotonic() + PATIENCE_S
        while not enough(info := await self._rig.client.pools.get(self._info.id)):
            if time.monotonic() > ends_s:
                raise CannotError(f"The pool of {info.template} had not {what} within {PATIENCE_S:.0f} s. {info.error}".strip())
            await asyncio.sleep(LOOK_S)
        self._info = info


async def settled(rig: Rig) -> None:
    """Wait until nothing is made ahead any more: it takes the processors away from what is measured. Not for ever, and not for a pool that fails."""
    ends_s = time.monotonic() + SETTLE_S
    try:
        while any(_is_at_work(each) for each in await rig.client.pools.list()) and time.monotonic() < ends_s:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(LOOK_S)
    except SandlotError:  # pools are told to operators
        return


def _is_at_work(pool: PoolInfo) -> bool:
    return not pool.error and (bool(pool.filling) or pool.ready < pool.warm or pool.prepared_ready < pool.prepared)


@asynccontextmanager
async def filled(rig: Rig, template: str, warm: int, limits: Limits = DEFAULT) -> AsyncIterator[Pool]:
    """A pool of that template in which so many wait, while the body runs; of default limits but for disk and processes.

    Raises:
        SandlotError: Pools are for operators, or the isolation cannot let a sandbox wait.
        CannotError: It is not filled.
    """
    async with _sized(rig, template, warm, limits) as pool:
        await pool.ready(warm)
        yield pool


@asynccontextmanager
async def drained(rig: Rig, template: str) -> AsyncIterator[Pool]:
    """The pool of that template with nothing in it, while the body runs; the template's snapshot is there, where the isolation can.

    Raises:
        SandlotError: As in :func:`filled`.
        CannotError: Likewise.
    """
    async with _sized(rig, template, 0, DEFAULT) as pool:
        await pool.restorable()
        yield pool


@asynccontextmanager
async def _sized(rig: Rig, template: str, warm: int, limits: Limits) -> AsyncIterator[Pool]:
    """The pool with that many warm, and no more; it is set back, or removed where there was none."""
    pools = rig.client.pools
    isolation = await rig.isolated_by()
    same = [each for each in await pools.list() if (each.template, each.isolation, each.limits) == (template, isolation, limits)]
    before = same[0] if same else None
    if before is None:
        disk, pids = limits.disk_bytes, limits.pids
        pool = await pools.create(template, warm=warm, max=warm, prepared=0, isolation=isolation, disk=disk, pids=pids)
    else:
        pool = await pools.update(before.id, warm=warm, max=warm, prepared=0)
    rig.pools[pool.id] = before
    try:
        yield Pool(rig, pool)
    finally:
        await restored(rig, pool.id)


async def restored(rig: Rig, pool: str) -> None:
    """Set a pool back to what it was before the run.

    Raises:
        SandlotError: The service refuses.
    """
    before = rig.pools.pop(pool)
    if before is None:
        await rig.client.pools.delete(pool)
    else:
        await rig.client.pools.update(pool, warm=before.warm, max=before.max, prepared=before.prepared)


async def all_restored(rig: Rig) -> None:
    """Set back those that an interrupt kept from it."""
    for pool in tuple(rig.pools):
        try:
            await restored(rig, pool)
        except SandlotError:  # one that somebody removed meanwhile
            rig.pools.pop(pool, None)
