"""How long what happened is kept, and that it is dropped then.

Law: What is dropped is over: a sandbox that lives, and the number of runs of a month, are not touched. Files of the file store stay until their
owner removes them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import structlog

from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.model.storage import Store

EVERY_S = 600.0
"""How often it is looked: what is kept for a week may be kept ten minutes longer."""
DAY_S = 86400.0

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Keep:
    """For how long, and how many at the most.

    Args:
        executions_s: Lines of the log of runs, from their beginning on.
        executions: How many of them; a line is 1 KiB on most days, and 200 KiB at the most.
        events_s: Events.
        events: How many of them.
        sandboxes_s: What is known of sandboxes that have ended.
    """

    executions_s: float = 7 * DAY_S
    executions: int = 50_000
    events_s: float = 7 * DAY_S
    events: int = 100_000
    sandboxes_s: float = 7 * DAY_S


class Retention:
    """Drops what is old.

    Args:
        store: Where it is.
        keep: For how long.
        clock: The time.
        metrics: Where failures are counted.
    """

    def __init__(self, store: Store, keep: Keep, clock: Clock, metrics: Metrics) -> None:
        self._store = store
        self._keep = keep
        self._clock = clock
        self._metrics = metrics

    async def run(self) -> None:
        """Look now, and again and again; until it is cancelled."""
        while True:
            await self.look()
            await self._clock.sleep_until(self._clock.monotonic_s() + EVERY_S)

    async def look(self) -> int:
        """Drop what is old now; how many rows. A store that fails is asked again the next time."""
        keep, store, now = self._keep, self._store, self._clock.now()
        dropped = {
            "executions": await self._try(lambda: store.executions.forget(created_before=now - timedelta(seconds=keep.executions_s)))
            + await self._try(lambda: store.executions.trim(keep=keep.executions)),
            "events": await self._try(lambda: store.events.forget(before=now - timedelta(seconds=keep.events_s)))
            + await self._try(lambda: store.events.trim(keep=keep.events)),
            "sandboxes": await self._try(lambda: store.sandboxes.forget(ended_before=now - timedelta(seconds=keep.sandboxes_s))),
        }
        if any(dropped.values()):
            _log.info("retention.dropped", **dropped)
        return sum(dropped.values())

    async def _try(self, drop: Callable[[], Awaitable[int]]) -> int:
        try:
            return await drop()
        except Exception as error:  # noqa: BLE001 - whatever it is: the rest is looked at, and all of it again the next time
            self._metrics.store_failed("retention")
            _log.warning("retention.failed", error=str(error))
            return 0
