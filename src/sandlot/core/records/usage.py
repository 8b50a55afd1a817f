"""Executions of each owner in the current month: counted in memory, written behind.

Invariants:
- No execution waits for a database. It is counted against its owner's quota before it starts, and subtracted again if it cannot start.
- A kill of the service loses at most the counts of the last second. A stop loses none and counts none twice.
- Nodes that share a database add to the same counts. A node knows the counts of the other nodes with a delay of at most ``REFRESH_S``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import structlog

from sandlot.core.access.quotas import quota_exceeded
from sandlot.core.ports import Clock
from sandlot.core.records.write_behind import WriteBehind
from sandlot.model.access import OwnerId, Quota
from sandlot.model.errors import SandlotError
from sandlot.model.storage import ExecutionRepository

REFRESH_S: Final = 10.0
"""Interval at which the counts of other nodes are read."""

_log = structlog.get_logger("sandlot.core")


class MonthlyExecutionCounter:
    """Counts of the current month.

    Args:
        table: Stored counts.
        clock: Clock of the service; months are those of UTC.
        quota_of: Returns the quota of an owner.
    """

    def __init__(self, table: ExecutionRepository, clock: Clock, quota_of: Callable[[OwnerId], Quota]) -> None:
        self._table = table
        self._clock = clock
        self._quota_of = quota_of
        self._month = ""
        self._known: Mapping[OwnerId, int] = {}
        self._begun: Counter[tuple[str, OwnerId]] = Counter()
        self._writing: Counter[tuple[str, OwnerId]] = Counter()
        self._writer = WriteBehind(self._write_pending, refresh_s=REFRESH_S)

    async def open(self) -> None:
        """Read the stored counts. Call this before any other method."""
        await self._refresh(month_of(self._clock.now()))

    def used(self, owner: OwnerId) -> int:
        """Return the number of executions that an owner has started this month."""
        month = month_of(self._clock.now())
        known = self._known.get(owner, 0) if month == self._month else 0
        return known + self._begun[month, owner] + self._writing[month, owner]

    def check(self, owner: OwnerId) -> None:
        """Refuse an execution of an owner whose quota is used up.

        Raises:
            LimitError: ``quota_exceeded``.
        """
        now = self._clock.now()
        quota, used = self._quota_of(owner), self.used(owner)
        if quota.executions_per_month is not None and used >= quota.executions_per_month:
            raise quota_exceeded(
                "executions_per_month",
                f"This key has started {used} executions this month; its quota is {quota.executions_per_month}.",
                "Wait for the next month (UTC), or ask the operator for a larger quota.",
                limit=quota.executions_per_month,
                used=used,
                requested=1,
                retry_after_s=left_s(now) if quota.executions_per_month else None,
            )

    @contextlib.contextmanager
    def count(self, owner: OwnerId) -> Iterator[None]:
        """Count an execution while the body starts it. If the body raises, the execution is not counted.

        Raises:
            LimitError: ``quota_exceeded``.
        """
        self.check(owner)
        entry = (month_of(self._clock.now()), owner)
        self._begun[entry] += 1
        try:
            yield
        except BaseException:
            self._begun[entry] -= 1
            raise
        finally:
            self._writer.put()

    async def aclose(self) -> None:
        """Write the pending counts. Counts that the store does not take are lost."""
        await self._writer.close()

    async def run(self) -> None:
        """Write new counts and read those of other nodes, until the task is cancelled."""
        await self._writer.run()

    async def flush(self) -> bool:
        """Write the pending counts, read the counts of other nodes, and return whether the store took all counts."""
        return await self._writer.flush()

    async def _write_pending(self) -> bool:
        self._writing.update(self._begun)  # adds; a count is negative if its execution was written and then could not start
        self._begun = Counter()
        try:
            for month in sorted({month for month, _ in self._writing}):
                await self._write(month, {owner: number for (of, owner), number in self._writing.items() if of == month})
            await self._refresh(month_of(self._clock.now()))
        except SandlotError as error:
            _log.warning("quotas.not_written", error=error.message, owners=len(self._writing))
            return False
        return True

    async def _write(self, month: str, begun: Mapping[OwnerId, int]) -> None:
        if more := {owner: number for owner, number in begun.items() if number}:
            await self._table.count(month, more)
        if month == self._month:
            self._known = {**self._known, **{owner: self._known.get(owner, 0) + number for owner, number in begun.items()}}
        for owner in begun:
            del self._writing[month, owner]

    async def _refresh(self, month: str) -> None:
        self._known = await self._table.counts(month)
        self._month = month


def month_of(now: datetime) -> str:
    """Return the month of a time in UTC, such as ``2026-11``."""
    return now.astimezone(UTC).strftime("%Y-%m")


def left_s(now: datetime) -> int:
    """Return the seconds until the next month begins in UTC, at least 1."""
    now = now.astimezone(UTC)
    beginning = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    return max(1, round((beginning - now).total_seconds()))
