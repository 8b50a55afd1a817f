"""Idle monitor: ends sandboxes whose idle timeout has passed.

A sandbox is idle while it has no call, no cell, no foreground process and no attached stream, and its background processes use less than 1 % of a
core over a minute.

Invariants:
- Work for a client holds the sandbox as long as the work runs. The idle time counts from the release of the last hold.
- Only the processor time of processes inside counts, as the guest measures it. The runtime's own time is not the tenant's, and exceeds 1 % on
  some builds.
- A guest that does not respond cannot prevent the end of its sandbox.
- At the idle timeout the same happens as at the timeout of the sandbox (``on_timeout``).
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
"""Seconds between two rounds of the monitor; an idle sandbox ends at most this much late."""
WINDOW_S = 60.0
BUSY_SHARE = 0.01
"""Share of one core over ``WINDOW_S`` from which background processes keep a sandbox busy."""
ANSWER_TIMEOUT_S = 2.0
MISSES = 3
"""Missing responses after which a silent guest no longer counts; one may be due to a busy host."""

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Sample:
    """Processor time of the processes inside at one moment."""

    at_monotonic_s: float
    cpu_s: float


class Background:
    """Processor use of one sandbox while no client works with it."""

    __slots__ = ("_quiet_since_s", "_samples", "missed")

    def __init__(self) -> None:
        self.missed = 0
        """Number of successive requests without a response."""
        self._samples: list[Sample] = []
        self._quiet_since_s = 0.0

    def add(self, sample: Sample, quiet_since_s: float) -> bool:
        """Add a sample and return whether the processes are busy.

        Args:
            sample: The sample.
            quiet_since_s: Time of the last activity of a client; earlier samples do not count.
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
        """Return the seconds that the samples span."""
        return self._samples[-1].at_monotonic_s - self._samples[0].at_monotonic_s if self._samples else 0.0


def wants_look(idle_timeout_s: float, quiet_s: float) -> bool:
    """Return whether a sandbox is so near to its idle timeout that its processes have to be sampled."""
    return quiet_s >= idle_timeout_s - WINDOW_S - 2 * TICK_S


def has_idled(idle_timeout_s: float, quiet_s: float, seen_s: float, tasks: int) -> bool:
    """Return whether the idle timeout of a sandbox has passed.

    Args:
        idle_timeout_s: The idle timeout.
        quiet_s: Seconds since the last activity of a client or a busy process.
        seen_s: Seconds that the samples of its processes span.
        tasks: Number of processes and threads.
    """
    return quiet_s >= idle_timeout_s and (tasks == 0 or seen_s >= min(WINDOW_S, idle_timeout_s))


class IdleMonitor:
    """Ends sandboxes whose idle timeout has passed.

    Args:
        registry: Sandboxes of this service.
        clock: Clock of the service.
    """

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
            except Exception:  # noqa: BLE001 - a failure with one sandbox must not keep all others alive forever
                _log.exception("idle.defect")

    async def look(self) -> None:
        """Check every running sandbox that has an idle timeout once."""
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
        # Checked again, because the response of the guest took time.
        if not self._is_held(sandbox) and has_idled(limit_s, self._quiet_s(sandbox), background.seen_s(), tasks):
            _log.info("sandbox.idle", sandbox=sandbox.id, idle_timeout_s=limit_s)
            if sandbox.spec.on_timeout is OnTimeout.KILL:
                sandbox.request_end(Exit(ExitReason.KILLED, f"it was idle for {limit_s:g} s"))
            else:
                sandbox.deadline.extend(0)

    def _quiet_s(self, sandbox: Sandbox) -> float:
        return self._clock.monotonic_s() - sandbox.activity.quiet_since_s

    @staticmethod
    def _is_held(sandbox: Sandbox) -> bool:
        return sandbox.activity.held > 0
