"""Removal of old rows from the store: log entries, events and records of ended sandboxes.

Invariant: Records of live sandboxes and the monthly counts of executions are never removed. Files of the file store stay until their owner deletes
them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.model.repositories import Store

INTERVAL_S = 600.0
"""Seconds between two removals. A row can therefore stay ten minutes longer than its limit."""
DAY_S = 86400.0

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Keep:
    """Maximum age and maximum number of the rows that are kept. Ages are in seconds.

    Args:
        executions_s: Maximum age of log entries, from the start of the execution.
        executions: Maximum number of log entries. An entry usually takes 1 KiB, at most 200 KiB.
        events_s: Maximum age of events.
        events: Maximum number of events.
        sandboxes_s: Maximum age of records of ended sandboxes, from the end of the sandbox.
    """

    executions_s: float = 7 * DAY_S
    executions: int = 50_000
    events_s: float = 7 * DAY_S
    events: int = 100_000
    sandboxes_s: float = 7 * DAY_S


class Retention:
    """Removes old rows from a store."""

    def __init__(self, store: Store, keep: Keep, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._keep = keep
        self._clock = clock
        self._metrics = metrics

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
            + await self._try(lambda: store.executions.trim(keep=keep.executions)),
            "events": await self._try(lambda: store.events.delete_before(now - timedelta(seconds=keep.events_s)))
            + await self._try(lambda: store.events.trim(keep=keep.events)),
            "sandboxes": await self._try(lambda: store.sandboxes.delete_ended(now - timedelta(seconds=keep.sandboxes_s))),
        }
        if any(dropped.values()):
            _log.info("retention.dropped", **dropped)
        return sum(dropped.values())

    async def _try(self, drop: Callable[[], Awaitable[int]]) -> int:
        try:
            return await drop()
        except Exception as error:  # noqa: BLE001 - the other rows are still removed, and the next removal tries again
            self._metrics.store_failed("retention")
            _log.warning("retention.failed", error=str(error))
            return 0
