"""Makes template snapshots: one sandbox is booted, warmed up and written to disk, and one is restored from the snapshot before others may use it.

A snapshot is made in four steps:

======== ==============================================================================================================================
boot     a sandbox without an owner is booted; its spare kernel imports the usual modules; the start command of a template that a user has
         built is started and repeats its ready command; the guest is quiesced
write    the driver writes the snapshot, and the sandbox ends
verify   a sandbox is restored from the snapshot, woken, and runs a command and a cell
publish  the cache (:mod:`sandlot.core.pools.template_snapshot_cache`) gives the snapshot its key and removes the snapshots that it replaces
======== ==============================================================================================================================

Invariants:
- The sandbox whose snapshot is taken has a reservation, so no snapshot is made while the node has no room.
- Nothing in the sandbox names an owner, a sandbox or a build: its guest has a neutral identity and the environment of the template.
- A start command reaches what a new sandbox of its owner reaches by default, until the guest is quiesced.
"""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.core import admission
from sandlot.core.access import quotas
from sandlot.core.admission import NetworkLimits
from sandlot.core.execution.guest_services import GuestServices
from sandlot.core.execution.start_command import OnOutput, start_for_snapshot
from sandlot.core.pools import models
from sandlot.core.pools.models import PoolSpec, SnapshotRecipe
from sandlot.core.pools.pool import WarmSandbox
from sandlot.core.pools.template_snapshot_cache import IMAGE, TemplateSnapshot, TemplateSnapshotCache, take_in_thread
from sandlot.core.pools.warm import StartPrograms, WarmSandboxFactory, verify_restored
from sandlot.core.ports import Clock
from sandlot.core.records.metrics import Metrics
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.drivers import STEP_TIMEOUT_S, Drivers
from sandlot.core.resources.reservations import Purpose, Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.host.locked_folder import LockedFolder
from sandlot.link.client import Link
from sandlot.link.services import GuestService
from sandlot.model.access import OwnerId, Principal
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.ids import NodeId, SandboxId
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.ports import Driver, HostReading, Resources
from sandlot.model.specs import SandboxSpec

MAKE_S: Final = 600.0
"""Seconds within which a snapshot must be made. This limit is far shorter than the sum of the timeouts of all steps."""

_LOCK_POLL_S: Final = 0.5

_log = structlog.get_logger("sandlot.core")

MakeRoom = Callable[[Resources, HostReading], object]
"""Function that evicts entries of private pools for a shared pool: ``PoolRefiller.make_room_for_shared``."""


def _ignore_output(_channel: int, _data: bytes) -> None:
    """Drop a piece of output."""


@dataclass(eq=False, slots=True)
class SnapshotJob:
    """One attempt to make a snapshot.

    Args:
        make_room: Evicts private pool entries to make room for the snapshot of a shared pool. None: nothing is evicted.
        principal: Principal whose quota the sandboxes count against. None: they count against none.
        on_output: Called with the output of the start command until it is ready.

    Attributes:
        allocation: Allocation of the sandbox from which the snapshot is being made or that verifies the snapshot. None: there is none now.
        has_started: True once the programs of the template have started and are ready.
    """

    make_room: MakeRoom | None = None
    principal: Principal | None = None
    on_output: OnOutput = _ignore_output
    allocation: Allocation | None = None
    has_started: bool = False


class SnapshotMaker:
    """Makes and finds template snapshots.

    Args:
        new_id: Creates sandbox ids of this node.
        version: Version of Sandlot. It is a part of the key of each snapshot: another version may arrange the files of a sandbox differently.
        network: Networks that the operator allows.
        principal_of: Returns the principal of an owner, or None if the owner's key was revoked.

    Attributes:
        removals: Tasks that remove the sandboxes. Wait for the tasks when the service stops.
    """

    def __init__(  # noqa: PLR0913 - each argument is a part of the service, passed by name
        self,
        *,
        cache: TemplateSnapshotCache,
        drivers: Drivers,
        reservations: Reservations,
        clock: Clock,
        node: NodeId,
        new_id: Callable[[], SandboxId],
        metrics: Metrics,
        version: str,
        guest_services: GuestServices,
        network: NetworkLimits,
        principal_of: Callable[[OwnerId], Principal | None],
        buffers: BufferShares,
    ) -> None:
        self.cache = cache
        self._drivers = drivers
        self._reservations = reservations
        self._clock = clock
        self._node = node
        self._new_id = new_id
        self._metrics = metrics
        self._version = version
        self._guest_services = guest_services
        self._network = network
        self._principal_of = principal_of
        self._buffers = buffers
        self.removals: set[asyncio.Task[None]] = set()

    async def inputs(self, recipe: SnapshotRecipe) -> Mapping[str, Any]:
        """Return the JSON values from which the key of a snapshot is computed."""
        fingerprint = await asyncio.to_thread(self._drivers[recipe.spec.isolation].fingerprint)
        return models.snapshot_inputs(recipe, fingerprint, self._version)

    async def find(self, recipe: SnapshotRecipe) -> TemplateSnapshot | None:
        """Return the snapshot of a recipe from the cache, or None if there is none. The caller releases the snapshot."""
        return await self._open(models.snapshot_key(await self.inputs(recipe)), self._drivers[recipe.spec.isolation])

    async def ensure(self, recipe: SnapshotRecipe, inputs: Mapping[str, Any], job: SnapshotJob) -> TemplateSnapshot:
        """Return the snapshot of a recipe. Make the snapshot if the cache does not have it. The caller releases the snapshot.

        Args:
            recipe: Recipe of the snapshot.
            inputs: Result of :meth:`inputs`.
            job: The attempt.

        Raises:
            SandlotError: The snapshot cannot be made.
            TimeoutError: A step took too long.
        """
        driver, key = self._drivers[recipe.spec.isolation], models.snapshot_key(inputs)
        snapshot = await self._open(key, driver)
        while snapshot is None:
            lock = await take_in_thread(self.cache.lock, key, os.close)
            try:
                snapshot = await self._open(key, driver)  # another service that held the lock before may have made the snapshot
                if snapshot is None and lock is not None:
                    async with asyncio.timeout(MAKE_S):
                        await self._make(recipe, key, inputs, job)
            finally:
                if lock is not None:
                    os.close(lock)
            if lock is None:
                await asyncio.sleep(_LOCK_POLL_S)
        return snapshot

    async def try_start(self, recipe: SnapshotRecipe, job: SnapshotJob) -> None:
        """Boot a sandbox of a recipe, start its programs, and remove the sandbox, for a driver that has no snapshots."""
        source = await self._allocate(recipe, job)
        try:
            await self._boot(recipe, source, job)
        finally:
            self._release(job)

    async def _open(self, key: str, driver: Driver) -> TemplateSnapshot | None:
        """Return the snapshot of a key from the cache, or None if there is none. A snapshot that the driver cannot restore is removed."""
        snapshot = await take_in_thread(self.cache.take, key, TemplateSnapshot.release)
        if snapshot is None:
            return None
        try:
            verdict = await asyncio.to_thread(driver.restorable, snapshot.image)
        except BaseException:
            snapshot.release()
            raise
        if verdict.ok:
            return snapshot
        snapshot.release()
        _log.warning("template_snapshot.unusable", key=key, error=verdict.reason)
        await asyncio.to_thread(self.cache.remove, key)
        return None

    async def _make(self, recipe: SnapshotRecipe, key: str, inputs: Mapping[str, Any], job: SnapshotJob) -> None:
        """Make, verify and publish a snapshot. The caller has locked the key."""
        spec, stopwatch = recipe.spec, _Stopwatch()
        if job.make_room is not None:
            job.make_room(self._drivers[spec.isolation].max_resources(spec.limits), await self._reservations.read_host())
        source = await self._allocate(recipe, job)
        try:
            folder = await take_in_thread(self.cache.begin, key, LockedFolder.close)
            try:
                size = await self._write(recipe, source, folder.content / IMAGE, stopwatch, job)
                manifest = {
                    "spec": recipe.manifest(),
                    "inputs": dict(inputs),
                    "made_at": self._clock.now().isoformat(timespec="seconds"),
                    "size_bytes": size,
                    **({"node": self._node} if recipe.is_of_build else {}),
                    **stopwatch.laps,
                }
                await asyncio.to_thread(self.cache.publish, key, folder, manifest)
            finally:
                await asyncio.shield(asyncio.to_thread(folder.close))
        finally:
            self._release(job)
        self._metrics.template_snapshot("made")
        _log.info("template_snapshot.written", template=spec.template.name, isolation=spec.isolation, size_bytes=size, **stopwatch.laps)
        await asyncio.to_thread(functools.partial(self.cache.remove_replaced, key, recipe.manifest()))

    async def _write(self, recipe: SnapshotRecipe, source: Allocation, image: Path, stopwatch: _Stopwatch, job: SnapshotJob) -> int:
        """Boot a sandbox, write its snapshot, verify a sandbox that is restored from the snapshot, and return the snapshot's size in bytes."""
        booted = await self._boot(recipe, source, job)
        stopwatch.lap("boot_s")
        headroom = await booted.instance.snapshot_headroom()
        if recipe.is_built:  # programs of a user run in the sandbox, so its headroom is reserved like that of any sandbox
            async with source.headroom(headroom) as headroom_bytes:
                size = await booted.instance.snapshot(image, keep_running=False, headroom_bytes=headroom_bytes)
        else:
            size = await booted.instance.snapshot(image, keep_running=False, headroom_bytes=headroom.most_bytes)
        stopwatch.lap("write_s")
        self._release(job)
        await source.release_soon(STEP_TIMEOUT_S)
        factory, allocation = self._factory(recipe), await self._allocate(recipe, job)
        restored = await factory.restore(allocation, self._new_id(), image, runs_programs=recipe.start is not None)
        await verify_restored(factory, restored)
        stopwatch.lap("verify_s")
        return size

    async def _boot(self, recipe: SnapshotRecipe, source: Allocation, job: SnapshotJob) -> WarmSandbox:
        """Boot a sandbox, start the programs of the template in it, and quiesce its guest."""
        id_ = self._new_id()
        async with self._services(recipe, id_) as services:
            return await self._factory(recipe).boot(source, id_, services, self._programs(recipe, job))

    def _programs(self, recipe: SnapshotRecipe, job: SnapshotJob) -> StartPrograms | None:
        start = recipe.start
        if start is None:
            return None

        async def start_programs(link: Link) -> None:
            await start_for_snapshot(link, start, recipe.spec.template.name, self._clock, job.on_output)
            job.has_started = True

        return start_programs

    @asynccontextmanager
    async def _services(self, recipe: SnapshotRecipe, id_: SandboxId) -> AsyncIterator[Mapping[str, GuestService]]:
        """Give a start command the network of a new sandbox of its owner, until the block ends."""
        if recipe.start is None:
            yield {}
            return
        owner, isolation = recipe.spec.template.owner, recipe.spec.isolation
        principal, policy = self._principal_of(owner), NetworkPolicy(NetworkMode.NONE)
        if principal is not None:
            policy = admission.resolve_network(None, self._network, principal, await self._drivers.capabilities(isolation))
        sandbox = Sandbox(
            SandboxSpec(id=id_, template=recipe.spec.template, isolation=isolation, network=policy),
            owner=owner,
            name=None,
            created_at=self._clock.now(),
            buffers=self._buffers.of(owner).part(),
            clock=self._clock,
        )
        try:
            yield self._guest_services.of(sandbox)
        finally:
            self._guest_services.network.close(sandbox)

    def _factory(self, recipe: SnapshotRecipe) -> WarmSandboxFactory:
        spec = recipe.spec
        pool = PoolSpec(spec.template, spec.isolation, spec.limits)
        return WarmSandboxFactory(self._clock, self._drivers, pool, recipe.template, recipe.cwd, recipe.user)

    async def _allocate(self, recipe: SnapshotRecipe, job: SnapshotJob) -> Allocation:
        """Reserve the resources of a sandbox from which a snapshot is made or that verifies a snapshot.

        Raises:
            UnavailableError: The node has no room for the sandbox now; code ``busy``.
            LimitError: The sandbox would exceed the quota of the principal; code ``quota_exceeded``.
        """
        spec, principal = recipe.spec, job.principal
        driver = self._drivers[spec.isolation]
        needed = driver.max_resources(spec.limits)
        if principal is None:
            reservation = self._reservations.reserve(Purpose.POOL, needed, await self._reservations.read_host())
        else:
            reading = await self._reservations.make_room(needed)
            quotas.check_live(principal.quota, spec.limits, self._reservations.live_limits(principal.owner))
            reservation = self._reservations.reserve(Purpose.SANDBOX, needed, reading, owner=principal.owner, limits=spec.limits)
        job.allocation = Allocation(driver, reservation, self._clock, f"template {spec.template.name}")
        return job.allocation

    def _release(self, job: SnapshotJob) -> None:
        allocation, job.allocation = job.allocation, None
        if allocation is not None:
            removal = allocation.release()
            self.removals.add(removal)
            removal.add_done_callback(self.removals.discard)


class _Stopwatch:
    """Measures the durations of consecutive steps in seconds."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now_s = time.monotonic()
        self.laps[name] = round(now_s - self._since_s, 3)
        self._since_s = now_s
