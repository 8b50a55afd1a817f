"""Destroy resources of the host, and repeat failed attempts until one succeeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog

from sandlot.core.ports import Clock

FIRST_PAUSE_S = 1.0
LAST_PAUSE_S = 60.0
"""Longest pause between two attempts, in seconds. The first pause is ``FIRST_PAUSE_S``; each later pause is twice as long as the one before."""

_log = structlog.get_logger("sandlot.core")


class Destroyable(Protocol):
    """Object that holds resources of the host."""

    async def destroy(self) -> None:
        """Release all resources. The call can be repeated after a failure."""
        ...


class Disposer:
    """Destroys resources of the host, and repeats failed attempts.

    Args:
        clock: Clock of the service, which measures the pauses between attempts.
    """

    __slots__ = ("_clock",)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def destroy(self, resource: Destroyable, *, on_failure: Callable[[], None] = lambda: None, **fields: str) -> None:
        """Destroy a resource, and repeat failed attempts until one succeeds.

        The resource takes memory and disk space of the host until it is destroyed, so the caller keeps the reservation for the resource.

        Args:
            resource: Resource to destroy.
            on_failure: Function that is called after each failed attempt.
            fields: Additional fields of the log entry for a failed attempt, for example the sandbox.
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
