"""Removal of old rows from the store: log entries, events and records of ended sandboxes.

Invariants:
- Records of live sandboxes and the monthly counts of executions are never removed. Files of the file store stay until their owner deletes them.
- No owner's rows are removed because of another owner, except by a limit of the node. Such a limit takes the oldest rows of the owners that have
  the most: an owner that has at most an equal share keeps all of its rows.
- The log entries in the store exceed their limits by at most ``TRIM_ROWS`` rows, ``TRIM_BYTES`` bytes and one write of the log: its writer waits for
  the removal.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.model.access import OwnerId, Quota
from sandlot.model.repositories import Store, Stored
from sandlot.model.specs import KIB, MIB

INTERVAL_S = 600.0
"""Seconds between two removals. An event or the record of an ended sandbox can therefore stay ten minutes longer than its limit."""
DAY_S = 86400.0
TRIM_ROWS: Final = 2_000
TRIM_BYTES: Final = 16 * MIB
"""Rows and bytes of new log entries after which the surplus is removed at once."""

EVENT_BYTES: Final = KIB
"""Disk space of an event, index entries included. Measured: 0.25 KiB."""
SANDBOX_BYTES: Final = 4 * KIB
"""Size of the records of ended sandboxes, on average. Measured: 1.4 KiB, and 121 KiB with the most metadata."""
OVERHEAD_BYTES: Final = 128 * MIB
"""Disk space of the write-ahead log (64 MiB), of all other tables, and of pages that are not full."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Keep:
    """Maximum age, number and size of the rows that are kept. Ages are in seconds.

    Args:
        executions_s: Maximum age of log entries, from the start of the execution.
        executions: Maximum number of log entries. An entry usually takes 1 KiB, at most 4.2 MiB with results.
        executions_bytes: Maximum size of all log entries.
        events_s: Maximum age of events.
        events: Maximum number of events.
        sandboxes_s: Maximum age of records of ended sandboxes, from the end of the sandbox.
        sandboxes: Maximum number of records of ended sandboxes. Their size together is limited to ``SANDBOX_BYTES`` for each of this number.
    """

    executions_s: float = 7 * DAY_S
    executions: int = 50_000
    executions_bytes: int = 256 * MIB
    events_s: float = 7 * DAY_S
    events: int = 100_000
    sandboxes_s: float = 7 * DAY_S
    sandboxes: int = 10_000

    @property
    def database_bytes(self) -> int:
        """Disk space that a database with these rows needs."""
        return self.executions_bytes + self.events * EVENT_BYTES + self.sandboxes * SANDBOX_BYTES + OVERHEAD_BYTES


def equal_share(amounts: Collection[int], most: int) -> int:
    """Return the largest share with which all amounts fit into ``most`` when each larger amount is cut to the share."""
    left = most
    for index, amount in enumerate(sorted(amounts)):
        share = left // (len(amounts) - index)
        if amount > share:
            return share
        left -= amount
    return most


def plan_trim(stored: Mapping[OwnerId, Stored], limits: Mapping[OwnerId, Stored], most: Stored) -> Mapping[OwnerId, Stored]:
    """Return what owners may keep of their rows. Owners that may keep all of their rows are left out.

    Args:
        stored: Rows of each owner.
        limits: Limits of owners by their quotas.
        most: Limit of all rows together. It takes from the owners that have the most.
    """
    capped = {owner: _least(amount, limits.get(owner, amount)) for owner, amount in stored.items()}
    share = Stored(equal_share([each.rows for each in capped.values()], most.rows), equal_share([each.bytes for each in capped.values()], most.bytes))
    kept = {owner: _least(amount, share) for owner, amount in capped.items()}
    return {owner: amount for owner, amount in kept.items() if amount != stored[owner]}


def _least(one: Stored, other: Stored) -> Stored:
    return Stored(min(one.rows, other.rows), min(one.bytes, other.bytes))


class Retention:
    """Removes old rows from a store.

    Args:
        quota_of: Function that returns the quota of an owner.
    """

    def __init__(self, store: Store, keep: Keep, quota_of: Callable[[OwnerId], Quota], clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._keep = keep
        self._quota_of = quota_of
        self._clock = clock
        self._metrics = metrics
        self._new_rows = 0
        self._new_bytes = 0

    async def run(self) -> None:
        """Remove old rows now and every ``INTERVAL_S`` seconds, until cancelled."""
        while True:
            await self.remove_old()
            await self._clock.sleep_until(self._clock.monotonic_s() + INTERVAL_S)

    async def remove_old(self) -> int:
        """Remove all rows beyond the limits, and return their number. If a removal fails, the next call removes these rows."""
        keep, store, now = self._keep, self._store, self._clock.now()
        dropped = {
            "executions": await self._try(lambda: store.executions.delete_before(now - timedelta(seconds=keep.executions_s)))
            + await self._try(self._trim_executions),
            "events": await self._try(lambda: store.events.delete_before(now - timedelta(seconds=keep.events_s)))
            + await self._try(self._trim_events),
            "sandboxes": await self._try(lambda: store.sandboxes.delete_ended(now - timedelta(seconds=keep.sandboxes_s)))
            + await self._try(self._trim_sandboxes),
        }
        if any(dropped.values()):
            _log.info("retention.dropped", **dropped)
        return sum(dropped.values())

    async def add_executions(self, entries: Stored) -> None:
        """Count log entries that were written to the store. If there are many new entries, remove those beyond the limits before returning."""
        self._new_rows += entries.rows
        self._new_bytes += entries.bytes
        if self._new_rows > TRIM_ROWS or self._new_bytes > TRIM_BYTES:
            await self._try(self._trim_executions)

    async def _trim_executions(self) -> int:
        self._new_rows = self._new_bytes = 0
        stored = await self._store.executions.totals()
        limits = {owner: _limit(self._quota_of(owner), amount) for owner, amount in stored.items()}
        plan = plan_trim(stored, limits, Stored(self._keep.executions, self._keep.executions_bytes))
        return sum([await self._store.executions.trim(owner, keep=amount) for owner, amount in plan.items()])

    async def _trim_events(self) -> int:
        counts = await self._store.events.counts()
        share = equal_share(counts.values(), self._keep.events)
        return sum([await self._store.events.trim(owner, keep=share) for owner, events in counts.items() if events > share])

    async def _trim_sandboxes(self) -> int:
        most = Stored(self._keep.sandboxes, self._keep.sandboxes * SANDBOX_BYTES)
        plan = plan_trim(await self._store.sandboxes.ended_totals(), {}, most)
        return sum([await self._store.sandboxes.trim_ended(owner, keep=amount) for owner, amount in plan.items()])

    async def _try(self, drop: Callable[[], Awaitable[int]]) -> int:
        try:
            return await drop()
        except Exception as error:  # noqa: BLE001 - the other rows are still removed, and the next removal tries again
            self._metrics.store_failed("retention")
            _log.warning("retention.failed", error=str(error))
            return 0


def _limit(quota: Quota, stored: Stored) -> Stored:
    rows = stored.rows if quota.stored_executions is None else quota.stored_executions
    return Stored(rows, stored.bytes if quota.stored_execution_bytes is None else quota.stored_execution_bytes)
