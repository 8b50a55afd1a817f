"""Pauses sandboxes whose disks take space of the host's disk while they write, when the host's disk is almost full.

The disk of a sandbox is sparse if the operator reserves more disk space than the host has, or if the host's file system cannot allocate space. On
a full host, the kernel drops what such a sandbox writes. Sandboxes with allocated disks are never paused: what they write has its space.

Invariants:
- While less than the disk reserve is free, every running sandbox with a sparse disk is paused. When an eighth more than the reserve is free, these
  sandboxes are resumed. No request of a client resumes them earlier.
- A pause depends neither on the guest, which may not respond, nor on the database, which may be on the full disk.
- Only sandboxes that this guard has paused are resumed by it. The record of a sandbox says so, so that the next service resumes it after a kill.
- A sandbox that its owner pauses or hibernates meanwhile stays suspended.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import structlog

from sandlot.core.lifecycle import suspend
from sandlot.core.operations import Operation
from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.reservations import Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.host.blocking import run_blocking
from sandlot.model.errors import SandlotError
from sandlot.model.states import State

WRITE_BYTES_PER_S = 4 << 30
"""Speed with which all sandboxes together can fill the disk, at most. The next look comes before they could have reached the reserve."""
MIN_PAUSE_S, MAX_PAUSE_S = 0.25, 5.0
"""Bounds of the seconds between two looks."""
RETRY_S = 5.0
ROOM_DIVISOR = 8
"""The sandboxes go on when the reserve and this part of it are free, so that they are not paused again at once."""

_log = structlog.get_logger("sandlot.core")


class DiskGuard:
    """Pauses and resumes sandboxes with sparse disks.

    Args:
        read_free: Function that returns the free bytes of the disk. It may block for a moment, so it is called in a thread.
    """

    def __init__(self, registry: SandboxRegistry, reservations: Reservations, clock: Clock, read_free: Callable[[], int]) -> None:
        self._registry = registry
        self._reservations = reservations
        self._clock = clock
        self._read_free = read_free
        self._at_work: set[Sandbox] = set()
        """Sandboxes that are being paused or resumed."""

    async def run(self) -> None:
        """Look at the disk again and again, until cancelled."""
        while True:
            pause_s = MIN_PAUSE_S
            try:
                pause_s = await self.look()
            except Exception:  # noqa: BLE001 - an unreadable disk or an error with one sandbox must not stop the guard
                _log.exception("disk_guard.internal_error")
            await self._clock.sleep_until(self._clock.monotonic_s() + pause_s)

    async def look(self) -> float:
        """Pause or resume sandboxes as the free space requires, and return the seconds until the next look."""
        sparse = [sandbox for sandbox in self._registry.live() if sandbox.instance is not None and sandbox.instance.has_sparse_disk]
        if not sparse:
            return MAX_PAUSE_S
        free, reserve = await run_blocking(self._read_free), await self._reservations.disk_reserve_bytes()
        if free < reserve:
            running = [sandbox for sandbox in sparse if sandbox.state is State.RUNNING]
            self._submit(running, functools.partial(suspend.pause, waits_for_disk=True), "disk_guard.paused", free)
        elif free >= reserve + reserve // ROOM_DIVISOR:
            waiting = [sandbox for sandbox in sparse if sandbox.state is State.PAUSED and sandbox.waits_for_disk]
            self._submit(waiting, functools.partial(suspend.resume, disk_has_room=True), "disk_guard.resumed", free)
        return min(max((free - reserve) / WRITE_BYTES_PER_S, MIN_PAUSE_S), MAX_PAUSE_S)

    def _submit(self, sandboxes: Iterable[Sandbox], operation: Operation[None], event: str, free_bytes: int) -> None:
        for sandbox in sandboxes:
            if sandbox not in self._at_work and not sandbox.end_requested.is_set() and sandbox.recovered.is_set():
                self._at_work.add(sandbox)
                sandbox.tasks.spawn(self._carry_out(sandbox, operation, event, free_bytes))

    async def _carry_out(self, sandbox: Sandbox, operation: Operation[None], event: str, free_bytes: int) -> None:
        """Carry out an operation on one sandbox, whose guest may be slow. If the operation fails, a look after ``RETRY_S`` repeats it."""
        try:
            await sandbox.operations.submit(operation)
            _log.warning(event, sandbox=sandbox.id, free_bytes=free_bytes)
        except SandlotError as error:
            _log.warning("disk_guard.failed", sandbox=sandbox.id, operation=event, error=str(error))
            await self._clock.sleep_until(self._clock.monotonic_s() + RETRY_S)
        finally:
            self._at_work.discard(sandbox)
