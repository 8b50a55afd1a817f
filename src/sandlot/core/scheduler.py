"""Admission of sandboxes: check a create request, claim a warm sandbox if there is one, and reserve resources. This module starts nothing.

Invariants:
- A request that can never fit on this node gets an error that is not retryable, even if the node is also full at the moment.
- There is no ``await`` between the last checks and the reservation, so no other request can take the resources in between.
- A sandbox that starts from a snapshot or as a fork has the template, isolation and root filesystem of its source, whatever the request says.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sandlot.core import admission
from sandlot.core.access import quotas
from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.admission import AdmissionPolicy, CreateSandboxParams
from sandlot.core.files.store import FileStore
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.pools.manager import PoolClaim, PoolManager
from sandlot.core.pools.models import PoolSpec
from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import VolumeManager
from sandlot.model.access import Principal
from sandlot.model.errors import InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Change, DriverCapability, HostReading, Resources
from sandlot.model.specs import SandboxSpec, VolumeMount
from sandlot.model.states import State

SetupStep = Callable[[Sandbox], Coroutine[Any, Any, object]]
"""Function that sets up a new sandbox, for example writes files, after the first response of its guest and before the response to the client."""


@dataclass(frozen=True, slots=True)
class StartSourceConstraints:
    """Properties that a new sandbox takes from the snapshot or sandbox that it starts from.

    Args:
        spec: Spec of the source: template, isolation, root filesystem and environment. The request's environment takes precedence.
        restored: Part of the source that is restored: ``memory`` or ``files``.
        volumes: Volumes that are still mounted in the restored memory. They are unmounted in the new sandbox.
        shares_volumes: True if the new sandbox uses the volumes of its source, which stay mounted in the restored memory.
    """

    spec: SandboxSpec
    restored: str = ""
    volumes: tuple[VolumeMount, ...] = ()
    shares_volumes: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sandbox whose resources are reserved and which has not been started.

    Args:
        sandbox: The sandbox.
        claim: Result of the search for a warm sandbox. None: the request cannot use a pool.
        setup: Steps that write the files of the request into the sandbox.
    """

    sandbox: Sandbox
    claim: PoolClaim | None
    setup: Sequence[SetupStep]


class Scheduler:
    """Admits sandboxes on this node.

    Args:
        registry: Sandboxes of this service.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Reservations of this node.
        policy: Policy of the operator.
        pools: Pools of warm sandboxes.
        volumes: Volumes of this node.
        files: Stored files that a create request can name.
        api_keys: API keys, with the quotas of their owners.
        buffers: Memory of the service for buffered client data. Each sandbox gets a part of it.
        clock: Clock of the service.
        new_id: Returns a new sandbox id of this node.
    """

    def __init__(  # noqa: PLR0913 - each argument is a part of the service
        self,
        *,
        registry: SandboxRegistry,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        policy: AdmissionPolicy,
        pools: PoolManager,
        volumes: VolumeManager,
        files: FileStore,
        api_keys: ApiKeys,
        buffers: BufferBudget,
        clock: Clock,
        new_id: Callable[[], SandboxId],
    ) -> None:
        self._registry = registry
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._policy = policy
        self._pools = pools
        self._volumes = volumes
        self._files = files
        self._api_keys = api_keys
        self._buffers = buffers
        self._clock = clock
        self._new_id = new_id
        self._is_closed = False

    def close(self) -> None:
        """Refuse create requests from now on, because the service is about to stop."""
        self._is_closed = True

    def check_open(self) -> None:
        """Check that the service still creates sandboxes: :meth:`close` was not called.

        Raises:
            UnavailableError: The service is stopping.
        """
        if self._is_closed:
            raise UnavailableError(
                "The service is stopping.",
                hint="Retry when the service has restarted.",
                fields={"retry_after_s": 1},
            ) from None

    async def admit(
        self, params: CreateSandboxParams, principal: Principal, source: StartSourceConstraints | None = None, batch: str | None = None
    ) -> Admitted:
        """Check a create request, claim a warm sandbox if there is one, and reserve the resources.

        Args:
            params: The request.
            principal: Caller; the sandbox belongs to its owner.
            source: Properties that the sandbox takes from the snapshot or sandbox that it starts from. None: the sandbox starts from its template.
            batch: Key of a reservation made by :meth:`admit_batch`, from which the sandbox takes its share. None: the sandbox gets its own
                reservation.

        Raises:
            SandlotError: The request is refused; see ``SandboxManager.create``.
        """
        if params.snapshot is not None and source is None:
            raise InternalError("The create request names a snapshot but has no source. Call SnapshotManager.create for such a request.")
        spec = self._spec(params, source)
        volumes = self._volumes.resolve(principal, params.volumes) if params.volumes else ()
        if source is None:
            self._templates.require(spec.template)
        capabilities = await self._drivers.capabilities(spec.isolation)
        admission.check_host(capabilities, volumes=bool(volumes))
        quotas.check_lifetime(principal.quota, params.timeout_s)
        setup = [await self._files.injects(principal, params.files)] if params.files else []
        takes = self._drivers[spec.isolation].max_resources(params.limits)
        pool_spec = PoolSpec(spec.template, spec.isolation, params.limits)
        has_pools = source is None and (not volumes or capabilities.can(DriverCapability.CONFIGURE_VOLUMES))
        is_reserved = batch is not None or (has_pools and self._pools.has_warm(pool_spec, principal.owner))
        reading = None if is_reserved else await self._reservations.read_host()
        self._check_now(params, principal, takes, reading)
        if not is_reserved:
            reading = await self._reservations.make_room(takes)
            self._check_now(params, principal, takes, reading)
        if volumes:
            spec = replace(spec, volumes=self._volumes.resolve(principal, params.volumes))  # again: a volume may have been deleted meanwhile
        claim = self._pools.claim(pool_spec, principal.owner) if has_pools else None
        warm = None if claim is None else claim.warm
        if warm is not None:
            spec = replace(spec, id=warm.id)  # the driver and the guest have this id already and cannot change it
        sandbox = Sandbox(
            spec,
            owner=principal.owner,
            name=params.name,
            created_at=self._clock.now(),
            buffers=self._buffers.part(),
            clock=self._clock,
            idle_timeout_s=params.idle_timeout_s,
            single_use=params.single_use,
        )
        if warm is not None:
            self._reservations.transfer(warm.reservation_key, sandbox.id, takes)
        elif batch is not None:
            self._reservations.draw(batch, sandbox.id, takes)
        else:
            if reading is None:
                raise InternalError("A pool had a warm sandbox, but no warm sandbox could be claimed, although nothing was awaited in between.")
            self._reservations.reserve(sandbox.id, takes, reading)
        return Admitted(sandbox, claim, setup)

    async def admit_batch(self, key: str, params: CreateSandboxParams, principal: Principal, count: int) -> None:
        """Check that several equal sandboxes fit, and make one reservation for all of them, before the first sandbox is admitted.

        :meth:`admit` takes the share of each sandbox from this reservation.

        Args:
            key: Key of the reservation. The caller releases the shares that no sandbox has taken.
            params: Request of each sandbox; its isolation is the name of a driver.
            principal: Caller.
            count: Number of sandboxes.

        Raises:
            InvalidRequestError: The sandboxes can never fit on this node together.
            LimitError: The sandboxes would exceed the caller's quota; code ``quota_exceeded``.
            UnavailableError: The node does not have room for all of the sandboxes now; code ``busy``.
        """
        one = self._drivers[params.isolation].max_resources(params.limits)
        together = Resources(memory_bytes=count * one.memory_bytes, disk_bytes=count * one.disk_bytes, pids=count * one.pids)

        def check(reading: HostReading) -> None:
            try:
                self._reservations.check_feasible(together, reading)
            except InvalidRequestError as error:
                raise InvalidRequestError(
                    f"{count} sandboxes with these limits can never fit on this node together. {error.message}",
                    hint="Pass a smaller `count`.",
                    fields={**error.fields, "field": "count"},
                ) from None
            quotas.check_live(principal.quota, params.limits, self._registry.live_limits(principal.owner), count)
            admission.check_room(len(self._registry.live_limits()) + count - 1, 0, self._policy)

        quotas.check_lifetime(principal.quota, params.timeout_s)
        check(await self._reservations.read_host())
        reading = await self._reservations.make_room(together)
        check(reading)
        self._reservations.reserve(key, together, reading)

    async def readmit(self, sandbox: Sandbox) -> None:
        """Reserve the resources of a hibernated sandbox again, before it is woken.

        Args:
            sandbox: The hibernated sandbox. Until now only the disk space of its image is reserved.

        Raises:
            LimitError: The owner's other sandboxes leave too little of the quota; code ``quota_exceeded``.
            UnavailableError: The node does not have room for the sandbox now; code ``busy``.
        """
        takes = self._drivers[sandbox.spec.isolation].max_resources(sandbox.spec.limits)
        reading = await self._reservations.make_room(takes, ignoring=sandbox.id)
        others = self._registry.live_limits(sandbox.owner, besides=sandbox)
        quotas.check_live(self._api_keys.quota_of(sandbox.owner), sandbox.spec.limits, others)
        admission.check_room(len(self._registry.live_limits(besides=sandbox)), 0, self._policy)
        with self._reservations.resize(sandbox.id, takes, reading):
            pass

    def check_update(self, sandbox: Sandbox, principal: Principal, timeout_s: float | None, limits: Change) -> None:
        """Refuse an update that the caller's quota does not allow.

        Args:
            sandbox: The sandbox to update.
            principal: Caller.
            timeout_s: New timeout; infinite for a persistent sandbox. None: unchanged.
            limits: New limits.

        Raises:
            LimitError: The update would exceed the quota; code ``quota_exceeded``.
        """
        others = self._registry.live_limits(sandbox.owner, besides=sandbox)
        quotas.check_update(principal.quota, sandbox.spec.limits, limits.over(sandbox.spec.limits), timeout_s, others)

    def _check_now(self, params: CreateSandboxParams, principal: Principal, takes: Resources, reading: HostReading | None) -> None:
        """Check a create request against everything that can change while it waits: other sandboxes, the host, and the stop of the service."""
        self.check_open()
        if reading is not None:
            self._reservations.check_feasible(takes, reading)  # first: a request that can never fit must not get a retryable error
        quotas.check_live(principal.quota, params.limits, self._registry.live_limits(principal.owner))
        waiting = sum(1 for sandbox in self._registry.awake() if sandbox.state is State.CREATING) - self._policy.max_creates
        admission.check_room(len(self._registry.live_limits()), waiting, self._policy)

    def _spec(self, params: CreateSandboxParams, source: StartSourceConstraints | None) -> SandboxSpec:
        """Return the spec of a new sandbox, without its volumes.

        Raises:
            SandlotError: The operator or this version does not allow the isolation or the network, or a value is out of bounds.
        """
        spec = SandboxSpec(
            id=self._new_id(),
            template=params.template,
            env=params.env,
            metadata={**params.metadata, **admission.SINGLE_USE_METADATA} if params.single_use else params.metadata,
            limits=params.limits,
            timeout_s=params.timeout_s,
            network=admission.resolve_network(params.network),
            isolation=admission.resolve_isolation(
                params.isolation, self._policy, self._drivers, source=None if source is None else source.spec.isolation
            ),
            on_timeout=params.on_timeout,
            auto_resume=params.auto_resume,
        )
        if source is None:
            return spec
        return replace(
            spec,
            template=source.spec.template,
            env={**source.spec.env, **params.env},
            snapshot=source.spec.snapshot,
            parent=source.spec.parent,
            root=source.spec.root,
            restored=source.restored,
        )
