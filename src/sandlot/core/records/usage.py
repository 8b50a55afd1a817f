"""Number of executions of each owner in the current month, counted in memory and written to the store in the background.

Invariants:
- No execution waits for a database. An execution is counted against its owner's quota before it starts, and subtracted again if it cannot start.
- If the service is killed, at most the counts of the last second are lost. If the service stops regularly, no count is lost, and no execution is
  counted twice.
- Nodes that share a database add to the same counts. A node knows the counts of the other nodes with a delay of at most ``REFRESH_S``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from sandlot.core.ports import Clock
from sandlot.core.records.write_behind import WriteBehind
from sandlot.model.access import OwnerId, Quota, quota_exceeded
from sandlot.model.errors import SandlotError
from sandlot.model.repositories import ExecutionRepository

REFRESH_S: Final = 10.0
"""Seconds between two reads of the counts of other nodes."""
_MONTH: Final = "%Y-%m"

_log = structlog.get_logger("sandlot.core")


class MonthlyExecutionCounter:
    """Counts the executions of each owner in the current month.

    Args:
        clock: Clock of the service; months are those of UTC.
    """

    def __init__(self, table: ExecutionRepository, clock: Clock, quota_of: Callable[[OwnerId], Quota]) -> None:
        self._table = table
        self._clock = clock
        self._quota_of = quota_of
        # Each of the two counters maps (month, owner) to a number of executions. A month is written as in the store: 2026-11.
        self._used: Counter[tuple[str, OwnerId]] = Counter()  # all executions that this node knows of
        self._pending: Counter[tuple[str, OwnerId]] = Counter()  # executions that are not in the store yet
        self.writer = WriteBehind(self._write_pending, refresh_s=REFRESH_S)

    async def refresh(self) -> None:
        """Read the stored counts. Call this method before any other method."""
        month = f"{self._clock.now():{_MONTH}}"
        stored = await self._table.monthly_counts(month)
        self._used = Counter({(month, owner): number for owner, number in stored.items()})
        self._used.update(self._pending)  # adds the numbers

    def used(self, owner: OwnerId) -> int:
        """Return the number of executions that an owner has started this month."""
        return self._used[f"{self._clock.now():{_MONTH}}", owner]

    def check(self, owner: OwnerId) -> None:
        """Refuse an execution of an owner whose quota is used up.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
        """
        now, limit = self._clock.now(), self._quota_of(owner).executions_per_month
        used = self._used[f"{now:{_MONTH}}", owner]
        if limit is not None and used >= limit:
            raise quota_exceeded(
                "executions_per_month",
                f"This key has started {used} executions this month; its quota is {limit}.",
                "Wait for the next month (UTC), or ask the operator for a larger quota.",
                limit=limit,
                used=used,
                requested=1,
                retry_after_s=left_s(now) if limit else None,
            )

    def count(self, owner: OwnerId) -> tuple[str, OwnerId]:
        """Count an execution that is about to be started. Return the month and the owner, for :meth:`uncount`.

        Raises:
            LimitError: The owner's quota of executions is used up (code ``quota_exceeded``).
        """
        self.check(owner)
        counted = f"{self._clock.now():{_MONTH}}", owner
        self._used[counted] += 1
        self._pending[counted] += 1
        self.writer.changed.set()
        return counted

    def uncount(self, counted: tuple[str, OwnerId]) -> None:
        """Subtract an execution that :meth:`count` counted, and that could not be started."""
        self._used[counted] -= 1
        self._pending[counted] -= 1  # negative if the execution was written meanwhile
        self.writer.changed.set()

    async def _write_pending(self) -> bool:
        try:
            for month in sorted({month for month, _ in self._pending}):
                counts = {owner: number for (of, owner), number in self._pending.items() if of == month}
                if more := {owner: number for owner, number in counts.items() if number}:
                    await self._table.add_monthly_counts(month, more)
                for owner, number in counts.items():
                    self._pending[month, owner] -= number
                    if not self._pending[month, owner]:
                        del self._pending[month, owner]
            await self.refresh()
        except SandlotError as error:
            _log.warning("execution_counts.not_written", error=error.message, owners=len(self._pending))
            return False
        return True


def left_s(now: datetime) -> int:
    """Return the seconds from a time in UTC until the next month begins, at least 1."""
    beginning = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return max(1, round((beginning - now).total_seconds()))
