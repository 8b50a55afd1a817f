"""How a sandbox comes to be: everything that is checked, chosen and promised before its life begins.

Laws:
- What can never be is refused before what is only not possible now; a promise is made in the same step as the last checks, and nobody comes between.
- What goes on from a snapshot or a fork is of its template, isolation and root, whatever else is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from sandlot.core import admission
from sandlot.core.access import quotas
from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.admission import AdmissionPolicy, CreateSandboxParams
from sandlot.core.files.store import FileStore
from sandlot.core.lifecycle.mounts import show_volumes
from sandlot.core.lifecycle.start import Start, StartSource, boot
from sandlot.core.node.buffer_budget import BufferBudget
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.pools.manager import PoolManager
from sandlot.core.pools.starts import WarmStart
from sandlot.core.ports import Clock
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import VolumeManager
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, InternalError, InvalidRequestError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import DriverCapability, HostReading, Resources
from sandlot.model.specs import SandboxSpec, VolumeMount
from sandlot.model.states import State

Inject = Callable[[Sandbox], Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sandbox whose life may begin.

    Args:
        sandbox: It.
        start: How it comes to its first answer.
        inject: What is done in it before its client is told that it runs.
    """

    sandbox: Sandbox
    start: Start
    inject: Inject | None


class Scheduler:
    """Where sandboxes come from.

    Args:
        registry: Sandboxes of this service.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Reservations of this node.
        policy: Decisions of the operator.
        pools: Pools of warm sandboxes.
        volumes: Volumes of this node. None: none.
        files: File store, for the files that a new sandbox gets.
        api_keys: Quotas of owners.
        buffers: Memory of the service for buffered client data; each sandbox gets a part.
        clock: Clock of the service.
        new_id: Makes ids that carry this node.
    """

    def __init__(  # noqa: PLR0913 - each is a part of the service
        self,
        *,
        registry: SandboxRegistry,
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
        policy: AdmissionPolicy,
        pools: PoolManager,
        volumes: VolumeManager | None,
        files: FileStore,
        api_keys: ApiKeys,
        buffers: BufferBudget,
        clock: Clock,
        new_id: Callable[[], SandboxId],
    ) -> None:
        self._pools = pools
        self._api_keys = api_keys
        self._volumes = volumes
        self._files = files
        self._registry = registry
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._policy = policy
        self._buffers = buffers
        self._clock = clock
        self._new_id = new_id

    async def admit(
        self,
        params: CreateSandboxParams,
        principal: Principal,
        source: StartSource | None,
        may: Callable[[], None],
    ) -> Admitted:
        """A sandbox as it was asked for, with all that it may use promised to it; nothing of it exists yet.

        Args:
            params: It.
            principal: Whose it will be.
            source: What it goes on from; None is its template.
            may: Refuses where the service is about to stop; asked last, because the checks before it may have waited.

        Raises:
            SandlotError: It may not be, or not now; see ``Sandboxes.create``.
        """
        if params.snapshot is not None and source is None:
            raise InternalError("A sandbox that goes on from a snapshot is created by Snapshots.create.")
        isolation = self._isolation(params, source)
        network = admission.resolve_network(params.network)
        mounts = self._mounts(params, principal)
        template = params.template if source is None else source.spec.template
        if source is None:
            self._templates.require(template)
        can = await self._drivers.capabilities(isolation)
        admission.check_host(can, volumes=bool(mounts))
        inject = await self._files.injects(principal, params.files) if params.files else None
        inject = _all(
            None if source is None else source.inject,
            show_volumes(() if source is None else source.volumes, () if source is not None and source.shares else mounts),
            inject,
        )
        takes = self._drivers[isolation].max_resources(params.limits)

        def check(reading: HostReading | None) -> None:
            may()
            if reading is not None:
                self._reservations.check_feasible(takes, reading)  # first: what can never be is not told to try again
            sandboxes = self._registry.awake()
            quotas.check_create(principal, params, self._registry.awake(principal.owner))
            waiting = sum(1 for sandbox in sandboxes if sandbox.state is State.CREATING) - self._policy.max_creates
            admission.check_room(len(sandboxes), waiting, self._policy)

        pools = self._pools if source is None and (not mounts or can.can(DriverCapability.CONFIGURE_VOLUMES)) else None
        waits = pools is not None and pools.waits(template, isolation, params.limits, principal.owner)
        reading = None if waits else await self._reservations.read_host()  # what waits has its room, and need not be looked for
        check(reading)
        if not waits:
            reading = await self._reservations.make_room(takes)
            check(reading)
        spec = SandboxSpec(
            id=self._new_id(),
            template=template,
            env=params.env if source is None else {**source.spec.env, **params.env},
            metadata=params.metadata,
            limits=params.limits,
            timeout_s=params.timeout_s,
            network=network,
            isolation=isolation,
            on_timeout=params.on_timeout,
            auto_resume=params.auto_resume,
            snapshot=None if source is None else source.spec.snapshot,
            parent=None if source is None else source.spec.parent,
            root="" if source is None else source.spec.root,
            restored="" if source is None else source.restored,
            volumes=self._mounts(params, principal),
        )
        start = boot if source is None else source.start
        if pools is not None:
            start = pools.choose(spec, principal.owner)
        if isinstance(start, WarmStart):
            spec = replace(spec, id=start.member.id)  # it is called so already, where a name cannot be changed
        sandbox = Sandbox(
            spec,
            owner=principal.owner,
            name=params.name,
            created_at=self._clock.now(),
            buffers=self._buffers.part(),
            clock=self._clock,
            idle_timeout_s=params.idle_timeout_s,
        )
        if isinstance(start, WarmStart):
            self._reservations.transfer(start.member.holder, sandbox.id, takes)
        else:
            reading = reading or await self._reservations.read_host()
            self._mounts(params, principal)  # one may have been deleted meanwhile
            self._reservations.reserve(sandbox.id, takes, reading)
        return Admitted(sandbox, start, inject)

    async def admit_batch(self, holder: str, params: CreateSandboxParams, principal: Principal, count: int) -> None:
        """Promise what some sandboxes of a kind may use together, before the first of them is conceived; give it up then.

        Args:
            holder: Who has the promise until then.
            params: Each of them; its isolation is a driver's name.
            principal: Whose they will be.
            count: How many they will be.

        Raises:
            InvalidRequestError: They can never fit on this node together; says how much they need.
            LimitError: ``quota_exceeded``.
            UnavailableError: ``busy``: there is no room for all of them now.
        """
        one = self._drivers[params.isolation].max_resources(params.limits)
        all_of_them = Resources(memory_bytes=count * one.memory_bytes, disk_bytes=count * one.disk_bytes, pids=count * one.pids)

        def check(reading: HostReading) -> None:
            try:
                self._reservations.check_feasible(all_of_them, reading)
            except InvalidRequestError as error:
                raise InvalidRequestError(
                    f"{count} of these at once are more than this node can ever hold. {error.message}",
                    hint="Ask for fewer at once.",
                    fields={**error.fields, "field": "count"},
                ) from None
            quotas.check_create(principal, params, self._registry.awake(principal.owner), count)
            admission.check_room(len(self._registry.awake()) + count - 1, 0, self._policy)

        check(await self._reservations.read_host())
        reading = await self._reservations.make_room(all_of_them)
        check(reading)
        self._reservations.reserve(holder, all_of_them, reading)

    async def readmit(self, sandbox: Sandbox) -> None:
        """Promise anew what a sandbox may use that has only what it occupies on the disk.

        Args:
            sandbox: It: hibernated.

        Raises:
            LimitError: ``quota_exceeded``: its owner has others by now.
            UnavailableError: ``busy``: there is no room.
        """
        takes = self._drivers[sandbox.spec.isolation].max_resources(sandbox.spec.limits)
        reading = await self._reservations.make_room(takes, ignoring=sandbox.id)
        sandboxes = [other for other in self._registry.awake() if other is not sandbox]
        quotas.check_live(self._api_keys.quota_of(sandbox.owner), sandbox.spec.limits, [other for other in sandboxes if other.owner == sandbox.owner])
        admission.check_room(len(sandboxes), 0, self._policy)
        with self._reservations.resize(sandbox.id, takes, reading):
            pass

    def _mounts(self, params: CreateSandboxParams, principal: Principal) -> tuple[VolumeMount, ...]:
        """The volumes that a sandbox is to have."""
        if not params.volumes:
            return ()
        if self._volumes is None:
            raise UnsupportedError("This service has no volumes.", code=ErrorCode.UNSUPPORTED, fields={"field": "volumes"})
        return self._volumes.resolve(principal, params.volumes)

    def _isolation(self, params: CreateSandboxParams, source: StartSource | None) -> str:
        if source is None:
            return admission.resolve_isolation(params.isolation, self._policy, self._drivers)
        return admission.resolve_isolation(
            source.spec.isolation if params.isolation == admission.AUTO else admission.same_isolation(params.isolation, source.spec.isolation),
            self._policy,
            self._drivers,
        )


def _all(*injects: Inject | None) -> Inject | None:
    """One after the other."""
    works = [inject for inject in injects if inject is not None]
    if not works:
        return None

    async def work(sandbox: Sandbox) -> None:
        for each in works:
            await each(sandbox)

    return work
