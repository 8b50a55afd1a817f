"""Drivers of a service.

Invariants:
- Concurrent callers share one probe of a driver.
- A step of a driver is not cancelled when its sandbox ends. Only the timeout of the step cancels the step.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

import structlog

from sandlot.link.turns import LinkTurns
from sandlot.model.errors import ErrorCode, HostError, LimitError, TimeoutExceededError
from sandlot.model.ports import Capabilities, Driver, DriverCapability
from sandlot.model.specs import Limits

STEP_TIMEOUT_S: Final = 60.0
"""Timeout in seconds of one step of a driver, and of the guest's first response. Measured duration: 0.05 to 0.5 s; several seconds on a busy host."""

ResultT = TypeVar("ResultT")

_log = structlog.get_logger("sandlot.core")


class Drivers(Mapping[str, Driver]):
    """Drivers by isolation name, and their capabilities on this host."""

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        self._drivers = drivers
        self.link_turns = LinkTurns()
        """Pauses of the links to the guests of all drivers."""
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}

    def __getitem__(self, isolation: str) -> Driver:
        return self._drivers[isolation]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drivers)

    def __len__(self) -> int:
        return len(self._drivers)

    async def capabilities(self, isolation: str) -> Capabilities:
        """Return the capabilities of a driver on this host.

        A driver that can start sandboxes is probed once. A driver that cannot start sandboxes is probed again by each call.
        """
        probe = self._probes.get(isolation)
        if probe is None:
            probe = self._probes[isolation] = asyncio.create_task(asyncio.to_thread(self._drivers[isolation].probe))
        try:
            found = await asyncio.shield(probe)
        except Exception:
            self._probes.pop(isolation, None)
            raise
        if not found.can(DriverCapability.BOOT):
            self._probes.pop(isolation, None)
        return found

    async def shown_processors(self, isolation: str, limits: Limits) -> int | None:
        """Return the number of processors that programs of a sandbox see; None if they see the processors of the host."""
        return limits.processors if (await self.capabilities(isolation)).can(DriverCapability.SHOW_LIMITS) else None

    async def capabilities_for(self, isolation: str, capability: DriverCapability) -> Capabilities:
        """Return the capabilities of a driver on this host. The driver is probed again if its last probe did not find ``capability``."""
        found = await self.capabilities(isolation)
        if not found.can(capability):
            self._probes.pop(isolation, None)
            found = await self.capabilities(isolation)
        return found


async def driver_step(what: str, work: Coroutine[Any, Any, ResultT], timeout_s: float | None = None) -> ResultT:
    """Await one step of a driver or of the link, and turn its timeout or ``OSError`` into a ``SandlotError``.

    Args:
        what: Verb for error messages, for example ``start``.
        work: The step.
        timeout_s: Seconds until the step is cancelled. None: :data:`STEP_TIMEOUT_S`.

    Raises:
        TimeoutExceededError: The step took longer than its timeout.
        LimitError: A disk of the node is full (``node_disk_full``).
        HostError: The step raised another ``OSError``.
    """
    limit_s = STEP_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise TimeoutExceededError(
            f"The sandbox took longer than {limit_s:g} s to {what}.",
            hint="Run 'sandlot doctor' to check the host; the host may be overloaded.",
        ) from None
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise LimitError(
                f"The host failed to {what} the sandbox: a disk of the node is full.",
                code=ErrorCode.NODE_DISK_FULL,
                hint="Delete snapshots or sandboxes that are no longer needed, or free space on the server.",
            ) from error
        raise HostError(
            f"The host failed to {what} the sandbox: {error.strerror or error}.",
            hint="Run 'sandlot doctor' to check the host.",
        ) from error
