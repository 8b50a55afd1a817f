"""Destruction of resources of the host, repeated until it succeeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from sandlot.core.ports import Clock

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0
"""Pauses between two attempts double from the first to the last."""

_log = structlog.get_logger("sandlot.core")


class Destroyable(Protocol):
    """Something that holds resources of the host."""

    async def destroy(self) -> None:
        """Release all resources. Can be repeated after a failure."""
        ...


class Disposer:
    """Destroys resources of the host.

    Args:
        clock: The service's clock, for the pauses.
    """

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def destroy(self, resource: Destroyable, *, on_failure: Callable[[], None] = lambda: None, **fields: str) -> None:
        """Return when the resource is destroyed, however long that takes.

        Until then the resource takes memory and disk of the host, so the caller keeps its reservation.

        Args:
            resource: Resource to destroy.
            on_failure: Called after each failed attempt.
            fields: Fields of the log entry of a failed attempt, for example the sandbox.
        """
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await resource.destroy()
            except Exception:  # noqa: BLE001 - no exception of a driver may end the attempts
                on_failure()
                _log.exception("resource.not_destroyed", next_attempt_s=pause_s, **fields)
                await self._clock.sleep_until(self._clock.monotonic_s() + pause_s)
                pause_s = min(2 * pause_s, LAST_PAUSE_S)
            else:
                return
