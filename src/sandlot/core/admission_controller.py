"""Admission of sandboxes: check a create request, claim a warm sandbox if there is one, and reserve resources. This module starts nothing.

Invariants:
- A request that can never fit on this node gets an error that is not retryable, even if the node is also full at the moment.
- There is no ``await`` between the last checks and the reservation, so no other request can take the resources in between.
- A sandbox that starts from a snapshot or as a fork has the template, isolation and root filesystem of its source, whatever the request says.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sandlot.core import admission
from sandlot.core.access import quotas
from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.admission import AdmissionPolicy
from sandlot.core.execution.start_command import StartCommandStep
from sandlot.core.files.files import make_working_directory
from sandlot.core.files.store import FileStore, inject
from sandlot.core.pools.build_snapshots import BuildSnapshotRequest
from sandlot.core.pools.models import PoolSpec
from sandlot.core.pools.pooled_sandboxes import PoolClaim, PooledSandboxes
from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.reservations import Purpose, Reservation, Reservations
from sandlot.core.resources.templates import Templates
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes.manager import VolumeManager
from sandlot.model.access import Principal
from sandlot.model.buffer_budget import BufferShares
from sandlot.model.errors import InternalError, InvalidRequestError, UnavailableError
from sandlot.model.ids import SandboxId
from sandlot.model.network import NetworkPolicy, NetworkUpTo
from sandlot.model.ports import DriverCapability, HostReading, Resources
from sandlot.model.repositories import Blobs
from sandlot.model.sandboxes import CreateSandboxParams, LimitsChange
from sandlot.model.specs import DEFAULT_TEMPLATE, Limits, SandboxSpec, TemplateRef, VolumeMount
from sandlot.model.states import State
from sandlot.model.templates import TemplateDefaults

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
        allocation: Allocation with the reservation of the sandbox, and with the claimed warm sandbox if there is one.
        claim: Result of the search for a warm sandbox. None: the request cannot use a pool.
        setup: Steps that write the files of the request into the sandbox, and run the start command of its template.
        snapshot: Snapshot of the build of a user from which the sandbox can be restored. None: there is none for such sandboxes.
        start: The last one of the steps, if the template has a start command.
    """

    sandbox: Sandbox
    allocation: Allocation
    claim: PoolClaim | None
    setup: Sequence[SetupStep]
    snapshot: BuildSnapshotRequest | None = None
    start: StartCommandStep | None = None


class AdmissionController:
    """Admits sandboxes on this node.

    Args:
        buffers: Memory of the service for buffered client data. Each sandbox gets a part of its owner's share.
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
        pools: PooledSandboxes,
        volumes: VolumeManager,
        file_store: FileStore,
        blobs: Blobs,
        api_keys: ApiKeys,
        buffers: BufferShares,
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
        self._file_store = file_store
        self._blobs = blobs
        self._api_keys = api_keys
        self._buffers = buffers
        self._clock = clock
        self._new_id = new_id
        self._is_closed = False
        self._hibernating: set[SandboxId] = set()
        """Running or paused sandboxes whose hibernation has been admitted."""

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
        self,
        params: CreateSandboxParams,
        principal: Principal,
        source: StartSourceConstraints | None = None,
        reservation: Reservation | None = None,
        *,
        single_use: bool = False,
    ) -> Admitted:
        """Check a create request, claim a warm sandbox if there is one, and reserve the resources.

        Args:
            params: The request.
            principal: Caller; the sandbox belongs to its owner.
            source: Properties that the sandbox takes from the snapshot or sandbox that it starts from. None: the sandbox starts from its template.
            reservation: Reservation for the sandbox, from :meth:`admit_batch`. None: the method makes one.
            single_use: True for a sandbox that serves a single request and is ended when the service stops.
        """
        if params.snapshot is not None and source is None:
            raise InternalError("The create request names a snapshot but has no source. Call SandboxService.create for such a request.")
        template = await self._templates.find(principal, params.template or DEFAULT_TEMPLATE) if source is None else source.spec.template
        defaults = await self._templates.defaults(template)
        public_ports = admission.resolve_public_ports(principal, requested=params.public_ports)
        isolation = admission.resolve_isolation(
            params.isolation, self._policy, self._drivers, source=None if source is None else source.spec.isolation
        )
        capabilities = await self._drivers.capabilities(isolation)
        requested = params.network or (None if source is None else source.spec.network)
        network = admission.resolve_network(requested, self._policy.network, principal, capabilities)
        spec = self._spec(params, template, defaults, isolation, network, source, public_ports=public_ports, single_use=single_use)
        limits = spec.limits
        volumes = self._volumes.resolve(principal, params.volumes)
        takes = self._drivers[spec.isolation].max_resources(limits)
        # On a host without room, the probe fails for want of room.
        if not capabilities.can(DriverCapability.BOOT):
            self._reservations.check_available(takes, await self._reservations.read_host())
        admission.check_host(capabilities, volumes=bool(volumes))
        admission.check_root(capabilities, template.name, defaults.root_kind)
        quotas.check_lifetime(principal.quota, params.timeout_s)
        files = await self._file_store.get_many(principal, params.file_ids)
        setup = [functools.partial(inject, blobs=self._blobs, records=files)] if files else []
        pool_spec = PoolSpec(template, spec.isolation, limits)
        has_pools = source is None and (not volumes or capabilities.can(DriverCapability.CONFIGURE_VOLUMES))
        claim = self._pools.find_warm(pool_spec, principal.owner, defaults.build) if has_pools else None
        warm = None if claim is None else claim.warm
        reading = None
        if reservation is not None:
            self.check_open()
        elif warm is not None:  # nothing is awaited from here until the warm sandbox is taken
            self._check_now(limits, principal)
        else:
            self._check_now(limits, principal, takes, await self._reservations.read_host())
            reading = await self._reservations.make_room(takes)
            self._check_now(limits, principal, takes, reading)
        spec = replace(spec, volumes=self._volumes.resolve(principal, params.volumes))  # again: a volume may have been deleted meanwhile
        if claim is not None:
            self._pools.take(claim)
        if warm is not None:
            spec = replace(spec, id=warm.id)  # the driver and the guest have this id already and cannot change it
        sandbox = Sandbox(
            spec,
            owner=principal.owner,
            name=params.name,
            created_at=self._clock.now(),
            buffers=self._buffers.of(principal.owner).part(),
            clock=self._clock,
            idle_timeout_s=params.idle_timeout_s,
            single_use=single_use,
        )
        if warm is not None:
            allocation = warm.allocation
            allocation.reservation.claim(principal.owner, limits, takes)
        else:
            if reservation is None:
                if reading is None:
                    raise InternalError("The sandbox has neither a warm sandbox nor a reading of the host.")
                reservation = self._reservations.reserve(Purpose.SANDBOX, takes, reading, owner=principal.owner, limits=limits)
            allocation = Allocation(self._drivers[spec.isolation], reservation, self._clock, spec.id)
        start = StartCommandStep(defaults.start) if source is None and defaults.start is not None else None
        return Admitted(
            sandbox, allocation, claim, _steps(params, setup, start), BuildSnapshotRequest.of(spec.template, spec.isolation, limits, defaults), start
        )

    async def admit_batch(self, params: CreateSandboxParams, principal: Principal, count: int) -> list[Reservation]:
        """Check that several equal sandboxes fit, and make a reservation for each of them, before the first sandbox is admitted.

        :meth:`admit` gets one of the reservations for each sandbox. The caller releases those that no sandbox has got.

        Args:
            params: Request of each sandbox. It gives all limits, and its isolation is the name of a driver.
            principal: Caller.
            count: Number of sandboxes.

        Raises:
            InvalidRequestError: The sandboxes can never fit on this node together.
            LimitError: The sandboxes would exceed the caller's quota; code ``quota_exceeded``.
            UnavailableError: The node does not have room for all of the sandboxes now; code ``busy``.
        """
        limits = params.limits.over(Limits())
        one = self._drivers[params.isolation].max_resources(limits)
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
            quotas.check_live(principal.quota, limits, self._reservations.live_limits(principal.owner), count)
            admission.check_room(self._reservations.count_live() + count - 1, 0, 0, self._policy)

        quotas.check_lifetime(principal.quota, params.timeout_s)
        check(await self._reservations.read_host())
        reading = await self._reservations.make_room(together)
        check(reading)
        self._reservations.check_available(together, reading)
        return [self._reservations.record(Purpose.SANDBOX, one, owner=principal.owner, limits=limits) for _ in range(count)]

    async def readmit(self, sandbox: Sandbox, replacing: Reservation) -> Reservation:
        """Reserve the resources of a hibernated sandbox again, before it is woken.

        Args:
            sandbox: The hibernated sandbox.
            replacing: Reservation of the hibernated sandbox. It is released.

        Raises:
            LimitError: The owner's other sandboxes leave too little of the quota; code ``quota_exceeded``.
            UnavailableError: The node does not have room for the sandbox now; code ``busy``.
        """
        limits = sandbox.spec.limits
        takes = self._drivers[sandbox.spec.isolation].max_resources(limits)
        reading = await self._reservations.make_room(takes, replacing=replacing)
        quotas.check_live(self._api_keys.quota_of(sandbox.owner), limits, self._reservations.live_limits(sandbox.owner))
        admission.check_room(self._reservations.count_live(), 0, 0, self._policy)
        self._reservations.check_available(takes, reading, ignoring={replacing})
        replacing.release()
        return self._reservations.record(Purpose.SANDBOX, takes, owner=sandbox.owner, limits=limits)

    @contextmanager
    def admit_hibernation(self, sandbox: Sandbox) -> Iterator[None]:
        """Count a sandbox as hibernated while the body of the ``with`` block hibernates it.

        Raises:
            LimitError: The owner has too many hibernated sandboxes; code ``quota_exceeded``.
        """
        hibernated = {
            each.id for each in self._registry.live() if each.owner == sandbox.owner and (each.is_hibernated or each.id in self._hibernating)
        }
        quotas.check_count(self._api_keys.quota_of(sandbox.owner), "hibernated_sandboxes", len(hibernated))
        self._hibernating.add(sandbox.id)
        try:
            yield
        finally:
            self._hibernating.discard(sandbox.id)

    async def resolve_network(self, sandbox: Sandbox, principal: Principal, requested: NetworkPolicy | NetworkUpTo) -> NetworkPolicy:
        """Return the network policy that an update of a sandbox requests. For errors see :func:`sandlot.core.admission.resolve_network`."""
        capabilities = await self._drivers.capabilities(sandbox.spec.isolation)
        policy = admission.resolve_network(requested, self._policy.network, principal, capabilities)
        return replace(policy, generation=sandbox.spec.network.generation + 1)

    def check_update(self, sandbox: Sandbox, principal: Principal, timeout_s: float | None, limits: LimitsChange) -> None:
        """Refuse an update that the caller's quota does not allow.

        Args:
            sandbox: The sandbox to update.
            principal: Caller.
            timeout_s: New timeout; infinite for a persistent sandbox. None: unchanged.
            limits: New limits.

        Raises:
            LimitError: The update would exceed the quota; code ``quota_exceeded``.
        """
        own = None if sandbox.allocation is None else sandbox.allocation.reservation
        others = self._reservations.live_limits(sandbox.owner, besides=own)
        quotas.check_update(principal.quota, sandbox.spec.limits, limits.over(sandbox.spec.limits), timeout_s, others)

    def _check_now(self, limits: Limits, principal: Principal, takes: Resources | None = None, reading: HostReading | None = None) -> None:
        """Check a create request against everything that can change while it waits: other sandboxes, the host, and the stop of the service."""
        self.check_open()
        if takes is not None and reading is not None:
            self._reservations.check_feasible(takes, reading)  # first: a request that can never fit must not get a retryable error
        quotas.check_live(principal.quota, limits, self._reservations.live_limits(principal.owner))
        creating = Counter(sandbox.owner for sandbox in self._registry.live() if sandbox.state is State.CREATING)
        starting = self._policy.max_creates
        admission.check_room(
            self._reservations.count_live(), max(0, creating.total() - starting), max(0, creating[principal.owner] - starting), self._policy
        )

    def _spec(
        self,
        params: CreateSandboxParams,
        template: TemplateRef,
        defaults: TemplateDefaults,
        isolation: str,
        network: NetworkPolicy,
        source: StartSourceConstraints | None,
        *,
        public_ports: bool,
        single_use: bool,
    ) -> SandboxSpec:
        """Return the spec of a new sandbox, without its volumes."""
        spec = SandboxSpec(
            id=self._new_id(),
            template=template if source is not None else defaults.pin(template),
            env=params.env,
            metadata={**params.metadata, **admission.SINGLE_USE_METADATA} if single_use else params.metadata,
            limits=params.limits.over(defaults.limits if source is None else source.spec.limits),
            timeout_s=params.timeout_s,
            network=network,
            isolation=isolation,
            on_timeout=params.on_timeout,
            auto_resume=params.auto_resume,
            cwd=params.cwd or (defaults.cwd if source is None else source.spec.cwd),
            user=defaults.user if source is None else source.spec.user,
            public_ports=public_ports,
            mask_request_host=params.mask_request_host,
        )
        if source is None:
            return spec
        return replace(
            spec,
            env={**source.spec.env, **params.env},
            template_env=source.spec.template_env,
            snapshot=source.spec.snapshot,
            parent=source.spec.parent,
            restored=source.restored,
        )


def _steps(params: CreateSandboxParams, setup: Sequence[SetupStep], start: StartCommandStep | None) -> Sequence[SetupStep]:
    """Return all setup steps. The start command comes last, because it may need the working directory and the files."""
    first = () if params.cwd is None else (functools.partial(make_working_directory, path=params.cwd),)
    return [*first, *setup, *(() if start is None else (start,))]
