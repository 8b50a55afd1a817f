"""Reservation of the disk space that the files of the service may still take: the database and the log of a local service.

Invariant: Each of these files has a maximum size, which other parts of the service keep (``retention.py``, ``server/log_config.py``). What a file has
already taken is no free space of the host, so only the rest of its maximum is reserved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandlot.core.ports import Clock
from sandlot.core.resources.reservations import Purpose, Reservations
from sandlot.model.ports import Resources

INTERVAL_S: Final = 60.0
"""Seconds between two updates. What a file takes meanwhile is reserved although it is used already."""
_BLOCK_BYTES = 512
"""The unit of ``st_blocks``, stat(2)."""


@dataclass(frozen=True, slots=True)
class BoundedFiles:
    """Files with a common maximum size.

    Args:
        paths: The files. Nothing is reserved if the first file does not exist.
        max_bytes: Maximum disk space of the files together.
    """

    paths: Sequence[Path]
    max_bytes: int

    def missing_bytes(self) -> int:
        """Return the disk space that the files may still take. Blocks for a moment."""
        if not self.paths[0].exists():
            return 0
        return max(0, self.max_bytes - sum(path.stat().st_blocks * _BLOCK_BYTES for path in self.paths if path.exists()))


class RecordSpace:
    """Keeps the reservation of the service's own files."""

    def __init__(self, files: Sequence[BoundedFiles], reservations: Reservations, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._reservation = reservations.record(Purpose.RECORDS, Resources(memory_bytes=0, disk_bytes=0, pids=0))

    async def update(self) -> None:
        """Reserve what the files may still take. Nothing is refused: the files belong to the service."""
        missing_bytes = await asyncio.to_thread(lambda: sum(each.missing_bytes() for each in self._files))
        self._reservation.amount = replace(self._reservation.amount, disk_bytes=missing_bytes)
        self._reservation.reservations.notify()

    async def run(self) -> None:
        """Update the reservation every ``INTERVAL_S`` seconds, until cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic_s() + INTERVAL_S)
            await self.update()
