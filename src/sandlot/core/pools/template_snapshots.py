"""Template snapshots of pools: all sandboxes of a spec are restored from the snapshot of the spec.

The module :mod:`sandlot.core.pools.snapshot_maker` makes the snapshots.

Invariants:
- A snapshot is used only while its key equals the key that a new snapshot would get. The key is computed again every :data:`CHECK_S` and after each
  failure.
- One snapshot is made at a time. No request waits for it. Private warm sandboxes are evicted for the snapshot of a shared pool.
- A snapshot that only private pools need must be finished within :data:`PRIVATE_MAKE_S`, so that it does not delay shared pools.
- A failed attempt is repeated after growing pauses. The status of the pools gives the reason of the failure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog

from sandlot.core.pools import models, policy
from sandlot.core.pools.models import SnapshotRecipe, TemplateSnapshotSpec
from sandlot.core.pools.snapshot_maker import MakeRoom, SnapshotJob, SnapshotMaker
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.templates import TemplateResolver
from sandlot.model.errors import SandlotError, UnavailableError
from sandlot.model.ports import DriverCapability
from sandlot.model.specs import TemplateRef

CHECK_S: Final = 60.0
"""Seconds after which the key of a snapshot in use is computed again."""
PRIVATE_MAKE_S: Final = 120.0
"""Seconds within which a snapshot that only private pools need must be made, including waits for locks."""

_log = structlog.get_logger("sandlot.core")


@dataclass(slots=True)
class _State:
    """State of the template snapshot of one spec.

    Args:
        snapshot: Snapshot in use. None: the spec has no snapshot now.
        template: Build of the template whose snapshot is in use; None before the first snapshot.
        checked_s: Monotonic time at which the key of the snapshot was last computed.
        not_before_s: Monotonic time before which no attempt is made.
        error: Reason of the last failure; empty after a success.
        unusable_key: Key of a snapshot that could not be restored, until it is removed. Empty: there is none.
        is_private: True if only private pools need the snapshot.
    """

    snapshot: TemplateSnapshot | None = None
    template: TemplateRef | None = None
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
    """The template snapshots that the pools of this service use."""

    def __init__(self, *, maker: SnapshotMaker, drivers: Drivers, templates: TemplateResolver, clock: Clock, metrics: Metrics) -> None:
        self._maker = maker
        self._cache = maker.cache
        self._drivers = drivers
        self._templates = templates
        self._clock = clock
        self._metrics = metrics
        self._states: dict[TemplateSnapshotSpec, _State] = {}
        self._job: SnapshotJob | None = None

    @property
    def allocation(self) -> Allocation | None:
        """Allocation of the sandbox from which a snapshot is being made or that verifies the snapshot. None while no snapshot is made."""
        return None if self._job is None else self._job.allocation

    @property
    def removals(self) -> set[asyncio.Task[None]]:
        """Tasks that remove these sandboxes. Wait for the tasks when the service stops."""
        return self._maker.removals

    def current(self, spec: TemplateSnapshotSpec) -> TemplateSnapshot | None:
        """Return the snapshot that is in use for a spec, or None, without checking that the snapshot is up to date."""
        state = self._states.get(spec)
        return None if state is None else state.snapshot

    def template(self, spec: TemplateSnapshotSpec) -> TemplateRef:
        """Return the build whose snapshot is in use for a spec; without a snapshot, the template of the spec."""
        state = self._states.get(spec)
        return spec.template if state is None or state.snapshot is None or state.template is None else state.template

    def use_build(self, spec: TemplateSnapshotSpec, template: TemplateRef) -> bool:
        """Return True if the snapshot in use for a spec is that of a build. If not, the next call of :meth:`ensure` computes its key again."""
        state = self._states.get(spec)
        if state is not None and state.template != template:
            state.checked_s = float("-inf")
        return state is not None and state.snapshot is not None and state.template == template

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
        removed from the disk: otherwise an owner could fill the disk by creating one pool after another. The snapshot of a build stays as long as the
        build.

        Args:
            shared: Specs that shared pools need.
            private: Specs that only private pools need.
        """
        for spec in (*shared, *private):
            self._states.setdefault(spec, _State()).is_private = spec not in shared
        for spec in [each for each in self._states if each not in shared and each not in private]:
            await self._stop_using(self._states.pop(spec))

    async def sweep(self) -> None:
        """Remove snapshots that a killed service left incomplete, and snapshots that were not used for a long time, from the disk."""
        swept = await asyncio.to_thread(self._cache.sweep)
        if swept:
            _log.info("template_snapshot.swept", count=swept)

    async def ensure(self, spec: TemplateSnapshotSpec, *, make_room: MakeRoom | None = None) -> TemplateSnapshot | None:
        """Return the snapshot of a spec. Make the snapshot if it is missing or outdated. Return the outdated one or None if it cannot be made now.

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
            return state.snapshot
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

    async def _stop_using(self, state: _State) -> None:
        """Release a snapshot. Remove it from the disk if only private pools used it and it is not that of a build, or if it could not be restored."""
        snapshot, keys = state.snapshot, {state.unusable_key} - {""}
        if snapshot is not None and state.is_private and not snapshot.is_of_build:
            keys.add(snapshot.key)
        state.release()
        state.unusable_key = ""
        for key in keys:
            await asyncio.to_thread(self._cache.remove, key)

    async def _renew(self, spec: TemplateSnapshotSpec, state: _State, make_room: MakeRoom | None) -> None:
        defaults = await self._templates.defaults(spec.template)
        ref = defaults.pin(spec.template)
        template = await self._templates.resolve(ref, spec.isolation)
        recipe = SnapshotRecipe.of(spec, template, defaults)
        inputs = await self._maker.inputs(recipe)
        key = models.snapshot_key(inputs)
        state.checked_s = self._clock.monotonic_s()
        if state.snapshot is not None and state.snapshot.key == key:
            state.template = ref
            return
        await self._stop_using(state)
        self._job = SnapshotJob(make_room=make_room)
        try:
            state.snapshot, state.template = await self._maker.ensure(recipe, inputs, self._job), ref
        finally:
            self._job = None
        state.failures, state.error = 0, ""

    def _fail(self, state: _State, reason: str) -> None:
        state.failures += 1
        state.error = reason
        state.not_before_s = self._clock.monotonic_s() + policy.back_off_s(state.failures)


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
