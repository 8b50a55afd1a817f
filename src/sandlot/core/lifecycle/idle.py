"""When a sandbox is idle, and the end of those that were for as long as they may be.

Idle is: no call, no cell, no foreground process, no attached stream, and what runs in the background takes under 1 % of a core for a minute.

Laws:
- Whatever is done for a client holds the sandbox for as long as it is done; the time counts from the moment when the last hold was let go.
- The processor time that counts is that of the processes inside, as the guest counts it. The runtime's own is not a tenant's doing, and
  takes more than 1 % on some builds.
- A guest that does not answer keeps nobody from ending it.
- What becomes of one that idled for as long as it may is what becomes of it at its timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import structlog

from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import SandlotError
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.specs import OnTimeout
from sandlot.model.states import State

TICK_S = 5.0
"""How often it is looked; an idle sandbox ends at most that much later than it could."""
WINDOW_S = 60.0
BUSY_SHARE = 0.01
"""Of one core, over the window."""
ANSWER_TIMEOUT_S = 2.0
MISSES = 3
"""A guest that has not answered so many times has nothing to say; once may be a busy host."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Sample:
    """Processor time of the processes inside, at one moment."""

    at_monotonic_s: float
    cpu_s: float


class Background:
    """What the processes of one sandbox take while nobody does anything with it."""

    __slots__ = ("_quiet_since_s", "_samples", "missed")

    def __init__(self) -> None:
        self.missed = 0
        """Looks in a row that were not answered."""
        self._samples: list[Sample] = []
        self._quiet_since_s = 0.0

    def add(self, sample: Sample, quiet_since_s: float) -> bool:
        """One more look; whether they are busy.

        Args:
            sample: It.
            quiet_since_s: Since when nobody does anything; looks from before then do not count.
        """
        if quiet_since_s != self._quiet_since_s:
            self._samples.clear()
            self._quiet_since_s = quiet_since_s
        self._samples.append(sample)
        while len(self._samples) > 1 and self._samples[1].at_monotonic_s <= sample.at_monotonic_s - WINDOW_S:
            self._samples.pop(0)
        first = self._samples[0]
        passed_s = sample.at_monotonic_s - first.at_monotonic_s
        return passed_s > 0 and sample.cpu_s - first.cpu_s >= BUSY_SHARE * passed_s

    def seen_s(self) -> float:
        """How long they have been looked at."""
        return self._samples[-1].at_monotonic_s - self._samples[0].at_monotonic_s if self._samples else 0.0


def wants_look(idle_timeout_s: float, quiet_s: float) -> bool:
    """Whether a sandbox is near enough to its idle timeout for its processes to matter. Pure."""
    return quiet_s >= idle_timeout_s - WINDOW_S - 2 * TICK_S


def has_idled(idle_timeout_s: float, quiet_s: float, seen_s: float, tasks: int) -> bool:
    """Whether a sandbox has been idle for as long as it may be. Pure.

    Args:
        idle_timeout_s: How long it may.
        quiet_s: Since when nobody does anything, and no process was seen to be busy.
        seen_s: How long its processes have been looked at.
        tasks: Processes and threads that there are.
    """
    return quiet_s >= idle_timeout_s and (tasks == 0 or seen_s >= min(WINDOW_S, idle_timeout_s))


class IdleMonitor:
    """Ends sandboxes that have idled for as long as they may.

    Args:
        registry: Sandboxes of this service.
        clock: Clock of the service.
    """

    def __init__(self, registry: SandboxRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._seen: dict[str, Background] = {}

    async def run(self) -> None:
        """Look again and again; until it is cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic_s() + TICK_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - one sandbox's trouble must not keep all others alive for ever
                _log.exception("idle.defect")

    async def look(self) -> None:
        """Look once at every sandbox that may idle only so long."""
        watched = [
            sandbox
            for sandbox in self._registry.live()
            if sandbox.idle_timeout_s is not None and sandbox.state is State.RUNNING and sandbox.link is not None
        ]
        known = {sandbox.id for sandbox in watched}
        self._seen = {id_: background for id_, background in self._seen.items() if id_ in known}
        await asyncio.gather(*(self._look_at(sandbox) for sandbox in watched))

    async def _look_at(self, sandbox: Sandbox) -> None:
        limit_s = sandbox.idle_timeout_s
        if limit_s is None or self._is_held(sandbox) or not wants_look(limit_s, self._quiet_s(sandbox)):
            return
        tasks, background = 0, self._seen.setdefault(sandbox.id, Background())
        background.missed += 1
        with contextlib.suppress(TimeoutError, SandlotError):
            # Not by sandbox.connection(), which counts as activity.
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                info = await sandbox.require_link().info()
            tasks, background.missed = info.tasks, 0
            if background.add(Sample(self._clock.monotonic_s(), info.cpu_s), sandbox.activity.quiet_since_s):
                sandbox.activity.touch()
                return
        if 0 < background.missed < MISSES:
            return
        # Asked again, because the guest took its time.
        if not self._is_held(sandbox) and has_idled(limit_s, self._quiet_s(sandbox), background.seen_s(), tasks):
            _log.info("sandbox.idle", sandbox=sandbox.id, idle_timeout_s=limit_s)
            if sandbox.spec.on_timeout is OnTimeout.KILL:
                sandbox.request_end(Exit(ExitReason.KILLED, f"it was idle for {limit_s:g} s"))
            else:
                sandbox.deadline_monotonic_s = self._clock.monotonic_s()
                sandbox.deadline_changed.set()

    def _quiet_s(self, sandbox: Sandbox) -> float:
        return self._clock.monotonic_s() - sandbox.activity.quiet_since_s

    @staticmethod
    def _is_held(sandbox: Sandbox) -> bool:
        return sandbox.activity.held > 0
