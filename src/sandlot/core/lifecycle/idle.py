"""Idle monitor: kill, pause or hibernate sandboxes whose idle timeout has passed.

A sandbox is idle while no call, cell, foreground process or attached stream of a client is in progress, and its background processes use less than
1 % of a core over a minute.

Invariants:
- While a client uses the sandbox, a :class:`~sandlot.core.sandbox.Hold` keeps it from counting as idle. The idle time begins when the last hold is
  released.
- Only the processor time of the processes inside the sandbox counts. The guest measures this time. The processor time of the runtime itself does
  not count: it exceeds 1 % with some builds of the runtime.
- A guest that does not respond cannot prevent the end of its sandbox.
- When the idle timeout has passed, the ``on_timeout`` of the sandbox is carried out, as when its timeout passes.
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
"""Seconds between two checks of all sandboxes. The end of an idle sandbox is late by at most this time."""
WINDOW_S = 60.0
BUSY_SHARE = 0.01
"""Share of one core. Background processes that use at least this share over ``WINDOW_S`` seconds keep a sandbox busy."""
ANSWER_TIMEOUT_S = 2.0
MISSES = 3
"""Number of consecutive unanswered requests to a guest after which its sandbox can count as idle. A busy host can delay single responses."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Sample:
    """Total processor time of the processes of a sandbox at one moment."""

    at_monotonic_s: float
    cpu_s: float


class Background:
    """Samples of the processor time of one sandbox while no client uses the sandbox."""

    __slots__ = ("_quiet_since_s", "_samples", "missed")

    def __init__(self) -> None:
        self.missed = 0
        """Number of consecutive requests to the guest without a response."""
        self._samples: list[Sample] = []
        self._quiet_since_s = 0.0

    def add(self, sample: Sample, quiet_since_s: float) -> bool:
        """Add a sample and return True if the background processes are busy.

        Args:
            sample: The sample.
            quiet_since_s: Monotonic time of the last activity of a client. Earlier samples are dropped.
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
        """Return the seconds between the first and the last sample."""
        return self._samples[-1].at_monotonic_s - self._samples[0].at_monotonic_s if self._samples else 0.0


def wants_look(idle_timeout_s: float, quiet_s: float) -> bool:
    """Return True if a sandbox is so close to its idle timeout that its background processes must be sampled.

    Args:
        idle_timeout_s: Idle timeout of the sandbox.
        quiet_s: Seconds since the last activity of a client or a busy process.
    """
    return quiet_s >= idle_timeout_s - WINDOW_S - 2 * TICK_S


def has_idled(idle_timeout_s: float, quiet_s: float, seen_s: float, tasks: int) -> bool:
    """Return True if the idle timeout of a sandbox has passed.

    If the sandbox has processes, ``seen_s`` must also be at least ``WINDOW_S`` or ``idle_timeout_s``, whichever is smaller. Samples of a shorter
    period do not show that the processes are not busy.

    Args:
        idle_timeout_s: Idle timeout of the sandbox.
        quiet_s: Seconds since the last activity of a client or a busy process.
        seen_s: Seconds between the first and the last sample of the background processes.
        tasks: Number of processes and threads in the sandbox.
    """
    return quiet_s >= idle_timeout_s and (tasks == 0 or seen_s >= min(WINDOW_S, idle_timeout_s))


class IdleMonitor:
    """Kills, pauses or hibernates sandboxes whose idle timeout has passed, according to their ``on_timeout``."""

    def __init__(self, registry: SandboxRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._seen: dict[str, Background] = {}

    async def run(self) -> None:
        """Check all sandboxes every ``TICK_S`` seconds, until cancelled."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic_s() + TICK_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - an error with one sandbox must not stop the monitor for all sandboxes
                _log.exception("idle.internal_error")

    async def look(self) -> None:
        """Carry out the ``on_timeout`` of each running sandbox whose idle timeout has passed."""
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
            # sandbox.connection() would count this request as activity of a client, so the link is used directly.
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                info = await sandbox.require_link().info()
            tasks, background.missed = info.tasks, 0
            if background.add(Sample(self._clock.monotonic_s(), info.cpu_s), sandbox.activity.quiet_since_s):
                sandbox.activity.touch()
                return
        if 0 < background.missed < MISSES:
            return
        # While the guest responded, a client may have begun to use the sandbox, or may have suspended it. Both are checked again.
        if sandbox.state is State.RUNNING and not self._is_held(sandbox) and has_idled(limit_s, self._quiet_s(sandbox), background.seen_s(), tasks):
            _log.info("sandbox.idle", sandbox=sandbox.id, idle_timeout_s=limit_s)
            if sandbox.spec.on_timeout is OnTimeout.KILL:
                sandbox.request_end(Exit(ExitReason.KILLED, f"it was idle for {limit_s:g} s"))
            else:
                sandbox.expire()

    def _quiet_s(self, sandbox: Sandbox) -> float:
        return self._clock.monotonic_s() - sandbox.activity.quiet_since_s

    @staticmethod
    def _is_held(sandbox: Sandbox) -> bool:
        return sandbox.activity.held > 0
