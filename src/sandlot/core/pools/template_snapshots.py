"""Template snapshots: one sandbox of a spec is booted, warmed up and written to disk. All other sandboxes of the spec are restored from the snapshot.

A snapshot is made in four steps:

======== ==============================================================================================================================
boot     a sandbox without an owner is booted; its spare kernel imports the usual modules; the guest is quiesced
write    the driver writes the snapshot, and the sandbox ends
verify   a sandbox is restored from the snapshot, woken, and runs a command and a cell
publish  the cache (:mod:`sandlot.core.pools.template_snapshot_cache`) gives the snapshot its key and removes the snapshots that it replaces
======== ==============================================================================================================================

Invariants:
- A snapshot is used only while its key equals the key that a new snapshot would get. The key is computed again every :data:`CHECK_S` and after each
  failure.
- One snapshot is made at a time. No request waits for it. The sandbox whose snapshot is taken has a reservation, so no snapshot is made while the
  node has no room. Private warm sandboxes are evicted for the snapshot of a shared pool.
- A snapshot that only private pools need must be finished within :data:`PRIVATE_MAKE_S`, so that it does not delay shared pools.
- A failed attempt is repeated after growing pauses. The status of the pools gives the reason of the failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.core.pools import models, policy
from sandlot.core.pools.models import PoolSpec, TemplateSnapshotSpec
from sandlot.core.pools.template_snapshot_cache import IMAGE, TemplateSnapshot, TemplateSnapshotCache, take_in_thread
from sandlot.core.pools.warm import WarmSandboxFactory, verify_restored
from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.drivers import STEP_TIMEOUT_S, Drivers
from sandlot.core.resources.reservations import Purpose, Reservations
from sandlot.core.resources.templates import TemplateResolver
from sandlot.host.locked_folder import LockedFolder
from sandlot.model.errors import SandlotError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Driver, DriverCapability, HostReading, Resources

CHECK_S: Final = 60.0
"""Seconds after which the key of a snapshot in use is computed again."""
MAKE_S: Final = 600.0
"""Seconds within which a snapshot must be made. This limit is far shorter than the sum of the timeouts of all steps."""
PRIVATE_MAKE_S: Final = 120.0
"""Seconds within which a snapshot that only private pools need must be made, including waits for locks."""

_LOCK_POLL_S: Final = 0.5

_log = structlog.get_logger("sandlot.core")


MakeRoom = Callable[[Resources, HostReading], object]
"""Function that evicts entries of private pools for a shared pool: ``PoolRefiller.make_room_for_shared``."""


@dataclass(slots=True)
class _State:
    """State of the template snapshot of one spec.

    Args:
        snapshot: Snapshot in use. None: the spec has no snapshot now.
        checked_s: Monotonic time at which the key of the snapshot was last computed.
        not_before_s: Monotonic time before which no attempt is made.
        error: Reason of the last failure; empty after a success.
        unusable_key: Key of a snapshot that could not be restored. The next attempt removes this snapshot. Empty: there is none.
        is_private: True if only private pools need the snapshot.
    """

    snapshot: TemplateSnapshot | None = None
    checked_s: float = float("-inf")
    failures: int = 0
    not_before_s: float = float("-inf")
    error: str = ""
    unusable_key: str = ""
    is_private: bool = False

    def release(self) -> None:
        if self.snapshot is not None:
            self.snapshot.release()
            self.snapshot = None


class TemplateSnapshotManager:
    """The template snapshots that this service uses.

    Args:
        new_id: Creates sandbox ids of this node.
        version: Version of Sandlot. It is a part of the key of each snapshot: another version may arrange the files of a sandbox differently.
    """

    def __init__(
        self,
        *,
        cache: TemplateSnapshotCache,
        drivers: Drivers,
        templates: TemplateResolver,
        reservations: Reservations,
        clock: Clock,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        version: str,
    ) -> None:
        self._cache = cache
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._clock = clock
        self._new_id = new_id
        self._metrics = metrics
        self._version = version
        self._states: dict[TemplateSnapshotSpec, _State] = {}
        self.allocation: Allocation | None = None
        """Allocation of the sandbox from which a snapshot is being made or that verifies the snapshot. None while no snapshot is made."""
        self.removals: set[asyncio.Task[None]] = set()
        """Tasks that remove these sandboxes. Wait for the tasks when the service stops."""

    def current(self, spec: TemplateSnapshotSpec) -> TemplateSnapshot | None:
        """Return the snapshot that is in use for a spec, or None, without checking that the snapshot is up to date."""
        state = self._states.get(spec)
        return None if state is None else state.snapshot

    def error(self, spec: TemplateSnapshotSpec) -> str:
        """Return the reason why the last attempt to make the snapshot of a spec failed; empty if the attempt succeeded."""
        state = self._states.get(spec)
        return "" if state is None else state.error

    def discard(self, snapshot: TemplateSnapshot, reason: str) -> None:
        """Stop using a snapshot that could not be restored. The next call of :meth:`ensure` removes it and makes a new snapshot."""
        for spec, state in self._states.items():
            if state.snapshot is snapshot:
                _log.warning("template_snapshot.not_restored", template=spec.template.name, isolation=spec.isolation, error=reason)
                state.unusable_key = snapshot.key
                state.release()
                self._fail(state, reason)
                self._metrics.template_snapshot("unusable")

    async def retain(self, shared: Collection[TemplateSnapshotSpec], private: Collection[TemplateSnapshotSpec]) -> None:
        """Stop using all snapshots except those of the given specs.

        If shared pools used a snapshot, it stays on disk for other services until a sweep removes it. If only private pools used a snapshot, it is
        removed from the disk: otherwise an owner could fill the disk by creating one pool after another.

        Args:
            shared: Specs that shared pools need.
            private: Specs that only private pools need.
        """
        for spec in (*shared, *private):
            self._states.setdefault(spec, _State()).is_private = spec not in shared
        for spec in [each for each in self._states if each not in shared and each not in private]:
            state = self._states.pop(spec)
            snapshot = state.snapshot
            state.release()
            if snapshot is not None and state.is_private:
                await asyncio.to_thread(self._cache.remove, snapshot.key)

    async def sweep(self) -> None:
        """Remove snapshots that a killed service left incomplete, and snapshots that were not used for a long time, from the disk."""
        swept = await asyncio.to_thread(self._cache.sweep)
        if swept:
            _log.info("template_snapshot.swept", count=swept)

    async def ensure(self, spec: TemplateSnapshotSpec, *, make_room: MakeRoom | None = None) -> TemplateSnapshot | None:
        """Return the snapshot of a spec. Make the snapshot if it is missing or outdated. Return None if it cannot be made now.

        Only one call may run at a time.

        Args:
            spec: Spec of the snapshot.
            make_room: Evicts private pool entries to make room for the snapshot of a shared pool. None: nothing is evicted.
        """
        state = self._states.setdefault(spec, _State())
        now_s = self._clock.monotonic_s()
        if state.snapshot is not None and now_s - state.checked_s < CHECK_S:
            return state.snapshot
        if now_s < state.not_before_s or not await self._can_snapshot(spec.isolation):
            return None
        try:
            async with asyncio.timeout(PRIVATE_MAKE_S if state.is_private else None):
                await self._renew(spec, state, make_room)
        except UnavailableError as error:  # the node has no room now, which does not count as a failure
            state.not_before_s, state.error = self._clock.monotonic_s() + policy.back_off_s(2), error.message
        except (SandlotError, OSError, TimeoutError) as error:
            _log.warning(
                "template_snapshot.not_written", template=spec.template.name, isolation=spec.isolation, error=str(error) or type(error).__name__
            )
            self._fail(state, failure_reason(error))
            self._metrics.template_snapshot("failed")
        return state.snapshot

    def close(self) -> None:
        """Stop using all snapshots."""
        for state in self._states.values():
            state.release()

    async def _can_snapshot(self, isolation: str) -> bool:
        capabilities = await self._drivers.capabilities_for(isolation, DriverCapability.SNAPSHOT)
        return capabilities.can(DriverCapability.SNAPSHOT)

    async def _renew(self, spec: TemplateSnapshotSpec, state: _State, make_room: MakeRoom | None) -> None:
        driver = self._drivers[spec.isolation]
        template = await self._templates.resolve(spec.template, spec.isolation)
        fingerprint = await asyncio.to_thread(driver.fingerprint)
        inputs = models.snapshot_inputs(spec, template, fingerprint, self._version)
        key = models.snapshot_key(inputs)
        state.checked_s = self._clock.monotonic_s()
        if state.snapshot is not None and state.snapshot.key == key:
            return
        state.release()
        if state.unusable_key == key:
            await asyncio.to_thread(self._cache.remove, key)
            state.unusable_key = ""
        factory = WarmSandboxFactory(self._clock, self._drivers, PoolSpec(spec.template, spec.isolation, spec.limits), template)
        snapshot = await self._open(key, driver)
        while snapshot is None:
            lock = await take_in_thread(self._cache.lock, key, os.close)
            try:
                snapshot = await self._open(key, driver)  # another service that held the lock before may have made the snapshot
                if snapshot is None and lock is not None:
                    async with asyncio.timeout(MAKE_S):
                        await self._make(spec, factory, key, inputs, make_room)
            finally:
                if lock is not None:
                    os.close(lock)
            if lock is None:
                await asyncio.sleep(_LOCK_POLL_S)
        state.snapshot, state.failures, state.error = snapshot, 0, ""

    async def _open(self, key: str, driver: Driver) -> TemplateSnapshot | None:
        """Return the snapshot of a key from the cache, or None if there is none. A snapshot that the driver cannot restore is removed."""
        snapshot = await take_in_thread(self._cache.take, key, TemplateSnapshot.release)
        if snapshot is None:
            return None
        verdict = await asyncio.to_thread(driver.restorable, snapshot.image)
        if verdict.ok:
            return snapshot
        snapshot.release()
        _log.warning("template_snapshot.unusable", key=key, error=verdict.reason)
        await asyncio.to_thread(self._cache.remove, key)
        return None

    async def _make(
        self,
        spec: TemplateSnapshotSpec,
        factory: WarmSandboxFactory,
        key: str,
        inputs: Any,  # noqa: ANN401 - JSON values
        make_room: MakeRoom | None,
    ) -> None:
        """Make, verify and publish a snapshot. The caller has locked the key."""
        stopwatch = _Stopwatch()
        if make_room is not None:
            make_room(self._drivers[spec.isolation].max_resources(spec.limits), await self._reservations.read_host())
        source = await self._allocate(spec)
        try:
            folder = await take_in_thread(self._cache.begin, key, LockedFolder.close)
            try:
                size = await self._write(spec, factory, source, folder.content / IMAGE, stopwatch)
                manifest = {
                    "spec": spec.manifest(),
                    "inputs": dict(inputs),
                    "made_at": self._clock.now().isoformat(timespec="seconds"),
                    "size_bytes": size,
                    **stopwatch.laps,
                }
                await asyncio.to_thread(self._cache.publish, key, folder, manifest)
            finally:
                await asyncio.shield(asyncio.to_thread(folder.close))
        finally:
            self._release()
        self._metrics.template_snapshot("made")
        _log.info("template_snapshot.written", template=spec.template.name, isolation=spec.isolation, size_bytes=size, **stopwatch.laps)
        await asyncio.to_thread(functools.partial(self._cache.remove_replaced, key, spec.manifest()))

    async def _write(self, spec: TemplateSnapshotSpec, factory: WarmSandboxFactory, source: Allocation, image: Path, stopwatch: _Stopwatch) -> int:
        """Boot a sandbox, write its snapshot, verify a sandbox that is restored from the snapshot, and return the snapshot's size in bytes."""
        booted = await factory.boot(source, self._new_id())
        stopwatch.lap("boot_s")
        headroom = await booted.instance.snapshot_headroom()
        size = await booted.instance.snapshot(image, keep_running=False, headroom_bytes=headroom.most_bytes)
        stopwatch.lap("write_s")
        self._release()
        await source.release_soon(STEP_TIMEOUT_S)
        restored = await factory.restore(await self._allocate(spec), self._new_id(), image)
        await verify_restored(factory, restored)
        stopwatch.lap("verify_s")
        return size

    async def _allocate(self, spec: TemplateSnapshotSpec) -> Allocation:
        """Reserve the resources of a sandbox from which a snapshot is made or that verifies a snapshot.

        Raises:
            UnavailableError: The node has no room for the sandbox now; code ``busy``.
        """
        driver = self._drivers[spec.isolation]
        reservation = self._reservations.reserve(Purpose.POOL, driver.max_resources(spec.limits), await self._reservations.read_host())
        self.allocation = Allocation(driver, reservation, self._clock, f"template {spec.template.name}")
        return self.allocation

    def _release(self) -> None:
        allocation, self.allocation = self.allocation, None
        if allocation is not None:
            removal = allocation.release()
            self.removals.add(removal)
            removal.add_done_callback(self.removals.discard)

    def _fail(self, state: _State, reason: str) -> None:
        state.failures += 1
        state.error = reason
        state.not_before_s = self._clock.monotonic_s() + policy.back_off_s(state.failures)


class _Stopwatch:
    """Measures the durations of consecutive steps in seconds."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now_s = time.monotonic()
        self.laps[name] = round(now_s - self._since_s, 3)
        self._since_s = now_s


def made_at(snapshot: TemplateSnapshot) -> datetime | None:
    """Return the time at which a snapshot was made, from its manifest. Return None if the manifest has no valid time."""
    with contextlib.suppress(KeyError, ValueError, TypeError):
        return datetime.fromisoformat(snapshot.manifest["made_at"])
    return None


def failure_reason(error: Exception) -> str:
    """Return the reason of a failure, as shown to the owner of a pool. Paths on the host are left out; the log of the service has them."""
    if isinstance(error, TimeoutError) and not str(error):
        return "The time limit was exceeded."
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
