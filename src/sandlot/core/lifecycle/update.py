"""Update a sandbox: change its deadline, idle timeout, metadata, name, limits and network policy. Measure the resources that a sandbox has used.

Invariants:
- An update is one operation of the sandbox's supervisor. It makes all its changes or none, and is recorded before the response.
- The guest gets a new deadline before the service uses the deadline. If the guest refuses, the guest and the service keep the old
  deadline.
- A suspended sandbox is resumed only for new limits. A new timeout of a suspended sandbox begins when the sandbox is resumed.
- When a limit is raised, the resources are reserved before the limit is set. When a limit is lowered, the reservation is reduced after the new limit
  is in force.
- Both the guest and the host enforce the process limit. The guest's limit is never higher than the host's: the host's limit is raised first and
  lowered last.
- While limits change, the larger of the old and the new value of each limit counts against the quota. This begins directly after the check of the
  quota, without an ``await`` in between, so no other update or create request can use the same part of the quota.
- Warm sandboxes are evicted to make room for a sandbox that grows, as for a new sandbox.
- If an update changes the process limit, the guest must accept the new process limit before the host adds memory. If the guest refuses or does not
  respond, no memory is added.
- A change that fails half-way is undone, unless the end of the sandbox is requested. Resources that cannot be withdrawn, such as memory in use,
  remain in the sandbox's limits and reservation. Clients therefore always see the limits that are in force: those of ``Instance.limits``.
- A new network policy is in force only after the update was recorded, and at once then. It replaces the old policy as a whole.
- Numbers that a guest reports are bounded and affect only its own sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from sandlot.core.admission import check_public_ports
from sandlot.core.execution.network_access import NetworkAccess
from sandlot.core.lifecycle.supervisor import SandboxSupervisor, guest_deadline_s
from sandlot.core.resources.drivers import driver_step
from sandlot.core.resources.reservations import grown_amounts, largest_limits
from sandlot.core.sandbox import Sandbox
from sandlot.egress.policy import approvals
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, InvalidRequestError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.network import NetworkPolicy, local_domains
from sandlot.model.network_activity import NetworkRefusal
from sandlot.model.ports import Capabilities, Change, Usage
from sandlot.model.sandboxes import RESERVED_PREFIX, LimitsChange, UpdateSandboxParams, check_reserved_names
from sandlot.model.sandboxes import SandboxUsage as Used
from sandlot.model.specs import Limits
from sandlot.model.states import SUSPENDED, State

COUNT_TIMEOUT_S = 2.0
"""Seconds that a guest has to count its processes. Afterwards the usage is returned without the number of processes."""
CONFIGURE_TIMEOUT_S = 600.0
"""Seconds that the host has to change limits. The kernel may have to write memory to disk before a lower limit holds."""
UNDO_TIMEOUT_S = 5.0
"""Seconds that a guest has to accept its old limits or its old deadline after a failed update."""
_NOTHING = Usage(cpu_s=0.0, memory_bytes=0, memory_peak_bytes=0, pids=0, disk_bytes=0)
"""Usage of a hibernated sandbox."""
Undo = Callable[[], Awaitable[None]]
_log = structlog.get_logger("sandlot.core")


def check_able(change: LimitsChange, limits: Limits, can: Capabilities) -> None:
    """Refuse limits that a driver cannot change while a sandbox runs.

    Raises:
        InvalidRequestError: A limit is out of bounds.
        UnsupportedError: The driver cannot change a limit; the message gives the reason.
    """
    for ability in _driver_change(change.over(limits)).needs(limits):
        if not can.can(ability):
            raise UnsupportedError(
                f"The {ability.removeprefix('configure.')} limit of a running sandbox cannot be changed: {can.why_not(ability)}.",
                hint="Create a new sandbox with the limits that are needed.",
                fields={"ability": str(ability)},
            )


async def used(sandbox: Sandbox, network: NetworkAccess) -> Used:
    """Return the resources that a sandbox has used until now, and its limits. A suspended sandbox is not resumed."""
    await sandbox.recovered.wait()
    if sandbox.state is State.HIBERNATED:  # a hibernated sandbox uses nothing, and is not woken
        return Used(_NOTHING, None, sandbox.spec.limits, *network.transferred_bytes(sandbox))
    if sandbox.state is State.PAUSED:
        return Used(await sandbox.require_instance().usage(), None, sandbox.spec.limits, *network.transferred_bytes(sandbox))
    async with sandbox.connection() as link:
        usage = await sandbox.require_instance().usage()
        pids: int | None = None
        with contextlib.suppress(TimeoutError, SandlotError):
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                pids = (await link.info()).tasks
    return Used(usage, pids, sandbox.spec.limits, *network.transferred_bytes(sandbox))


@dataclass(frozen=True, slots=True)
class HostStep:
    """Set the limits that the host enforces, and tell the guest.

    The guest needs a new memory limit to kill one large process in time, and a new number of processors to show it to programs.

    Args:
        guest_pids: Process limit that the guest enforces during the step.
    """

    limits: Limits
    before: Limits
    guest_pids: int

    @property
    def undo(self) -> HostStep:
        """Step that restores the limits before this step."""
        return HostStep(self.before, self.limits, self.guest_pids)


@dataclass(frozen=True, slots=True)
class GuestStep:
    """Set the process limit that the guest enforces."""

    pids: int
    before: int

    @property
    def undo(self) -> GuestStep:
        """Step that restores the limit before this step."""
        return GuestStep(self.before, self.pids)


Step = HostStep | GuestStep


def plan_limits(now: Limits, guest_pids: int, to: Limits) -> list[Step]:
    """Return the steps that change the limits of a running sandbox. Pure.

    After each step, and after the undo of each step in reverse order, the guest's process limit is not higher than the host's.

    Args:
        now: Limits that the host enforces.
        guest_pids: Process limit that the guest enforces.
        to: New limits.
    """
    steps: list[Step] = []
    if to.pids > now.pids:
        raised = replace(now, pids=to.pids)
        steps.append(HostStep(raised, now, guest_pids))
        now = raised
    if to.pids != guest_pids:
        steps.append(GuestStep(to.pids, guest_pids))
    if to != now:
        steps.append(HostStep(to, now, to.pids))
    return steps


async def update(supervisor: SandboxSupervisor, *, principal: Principal, params: UpdateSandboxParams) -> None:
    """Apply all changes of an update, or none. This is an operation (:mod:`sandlot.core.operations`).

    Args:
        supervisor: Supervisor of the sandbox. A suspended sandbox is resumed if the update changes limits.
        principal: Caller. The update must fit the quota of this principal.
        params: The changes.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    if params.timeout_s is not None:
        replace(sandbox.spec, timeout_s=params.timeout_s)  # raises an error if the timeout is out of bounds
    check_reserved_names(params.metadata or {}, sandbox.metadata)
    check_public_ports(principal, requested=params.public_ports)
    if params.network is not None:
        params = replace(params, network=await dependencies.admission.resolve_network(sandbox, principal, params.network))
    if params.limits == LimitsChange():
        _check_quota(supervisor, principal, params)
        if sandbox.state in SUSPENDED:
            await _record(supervisor, params)
        else:
            async with _undone_on_error(sandbox) as undo:
                await _move_deadline_and_record(supervisor, params, undo)
        return
    check_able(params.limits, sandbox.spec.limits, await dependencies.drivers.capabilities(sandbox.spec.isolation))
    await supervisor.ensure_running()
    now = sandbox.require_instance().limits
    to = params.limits.over(now)
    async with _reserved(supervisor, principal, params, now, to), _undone_on_error(sandbox) as undo:
        for step in plan_limits(now, now.pids, to):
            await _carry_out(supervisor, step, undo)
        sandbox.spec = replace(sandbox.spec, limits=to)
        await _move_deadline_and_record(supervisor, params, undo)
    if to != now:
        _log.info("sandbox.limits_changed", sandbox=sandbox.id, cpus=to.cpus, memory_bytes=to.memory_bytes, pids=to.pids)


async def approve(supervisor: SandboxSupervisor, *, principal: Principal, refusal: NetworkRefusal) -> None:
    """Allow the destination of a refusal in the network policy of a sandbox. This is an operation (:mod:`sandlot.core.operations`).

    Args:
        supervisor: Supervisor of the sandbox. A suspended sandbox is not resumed.
        principal: Caller. The operator and the quota of this principal must allow the policy.
        refusal: The refusal.
    """
    policy = supervisor.sandbox.spec.network
    extended = approvals.approve(policy, refusal)
    if extended != policy:
        await update(supervisor, principal=principal, params=UpdateSandboxParams(network=extended))


def _check_quota(supervisor: SandboxSupervisor, principal: Principal, params: UpdateSandboxParams) -> None:
    """Refuse changes that the caller's quota does not allow. There must be no ``await`` between this check and the reservation or the change.

    Raises:
        LimitError: The changes would exceed the quota; code ``quota_exceeded``.
    """
    timeout_s = math.inf if params.persistent else params.timeout_s
    supervisor.dependencies.admission.check_update(supervisor.sandbox, principal, timeout_s, params.limits)


@asynccontextmanager
async def _reserved(supervisor: SandboxSupervisor, principal: Principal, params: UpdateSandboxParams, now: Limits, to: Limits) -> AsyncIterator[None]:
    """Reserve the larger of the present and the new limits during the body of the ``async with`` block, and the limits in force afterwards.

    Raises:
        UnavailableError: The node does not have enough free resources now; code ``busy``.
        LimitError: The new limits would exceed the caller's quota; code ``quota_exceeded``.
    """
    sandbox, driver, reservations = supervisor.sandbox, supervisor.driver, supervisor.dependencies.reservations
    _check_quota(supervisor, principal, params)  # before make_room: an update that exceeds the quota must evict no warm sandbox
    if to == now:
        yield
        return
    takes, reservation = driver.max_resources(to), supervisor.allocation.reservation
    reading = await reservations.make_room(grown_amounts(driver.max_resources(now), takes), replacing=reservation)
    supervisor.check_end()
    _check_quota(supervisor, principal, params)
    with reservation.resize(takes, to, reading) as resize:
        try:
            yield
        except BaseException:
            if sandbox.end_requested.is_set():  # nothing was undone, so either limits may be in force until the sandbox is removed
                kept, shown = largest_limits(now, to), now
            else:
                kept = shown = sandbox.require_instance().limits
            resize.actual = driver.max_resources(kept), kept
            sandbox.spec = replace(sandbox.spec, limits=shown)
            raise


@asynccontextmanager
async def _undone_on_error(sandbox: Sandbox) -> AsyncIterator[list[Undo]]:
    """Provide a list for the undo functions of the steps in the body of the ``async with`` block. If the body fails, call them in reverse order.

    The undo stops at the first function that fails: only complete reverse steps keep the guest's process limit below the host's. Nothing is undone
    once the end of the sandbox is requested.
    """
    undo: list[Undo] = []
    try:
        yield undo
    except Exception:
        if not sandbox.end_requested.is_set():
            try:
                for each in reversed(undo):
                    await each()
            except SandboxEndedError:
                pass  # the end of the sandbox releases its resources and its reservation
            except Exception as error:  # noqa: BLE001 - the client gets the error that made the update fail
                _log.warning("sandbox.limits_not_restored", sandbox=sandbox.id, error=str(error))
        raise


async def _carry_out(supervisor: SandboxSupervisor, step: Step, undo: list[Undo]) -> None:
    """Carry out a step of a plan, and add its undo function to ``undo`` unless the step was refused and changed nothing."""
    undo_step = functools.partial(_set_limits, supervisor, step.undo, UNDO_TIMEOUT_S)
    try:
        await _set_limits(supervisor, step)
    except (ConflictError, InvalidRequestError, UnsupportedError):
        raise
    except Exception:
        undo.append(undo_step if isinstance(step, HostStep) else functools.partial(_attempt, undo_step))
        raise
    undo.append(undo_step)


async def _set_limits(supervisor: SandboxSupervisor, step: Step, guest_timeout_s: float | None = None) -> None:
    if isinstance(step, GuestStep):
        await driver_step("answer", supervisor.link.set_limits(pids=step.pids), guest_timeout_s)
        return
    to = step.limits
    await driver_step("change the limits of", supervisor.sandbox.require_instance().configure(_driver_change(to)), CONFIGURE_TIMEOUT_S)
    if (to.memory_bytes, to.processors) != (step.before.memory_bytes, step.before.processors):
        processors = await supervisor.dependencies.drivers.shown_processors(supervisor.sandbox.spec.isolation, to)
        request = supervisor.link.set_limits(pids=step.guest_pids, memory_bytes=to.memory_bytes, processors=processors)
        await _attempt(lambda: driver_step("answer", request, guest_timeout_s))  # errors are ignored, because the host enforces the limits


def _driver_change(to: Limits) -> Change:
    return Change(memory_bytes=to.memory_bytes, cpus=to.cpus, pids=to.pids, disk_bytes=to.disk_bytes)


async def _attempt(work: Undo) -> None:
    with contextlib.suppress(SandlotError):
        await work()


async def _move_deadline_and_record(supervisor: SandboxSupervisor, params: UpdateSandboxParams, undo: list[Undo]) -> None:
    """Move the deadline of a running sandbox, first in the guest and then in the service, and record all changes."""
    sandbox = supervisor.sandbox
    with sandbox.deadline.restored_on_error():
        if params.moves_deadline:
            undo.append(functools.partial(_restore_guest_deadline, supervisor))
            await driver_step("answer", supervisor.link.set_deadline(guest_deadline_s(params.timeout_s)))
            sandbox.deadline.extend(params.timeout_s)
        await _record(supervisor, params)
    if params.network is not None:  # if the request fails, the guest gets the domains when it is woken or connected again
        domains = local_domains(sandbox.spec.network)
        await _attempt(lambda: driver_step("answer", supervisor.link.set_local_domains(domains), UNDO_TIMEOUT_S))


async def _restore_guest_deadline(supervisor: SandboxSupervisor) -> None:
    """Set the deadline in the guest to the deadline that the service keeps. If this fails, the service still ends the sandbox at its deadline."""
    deadline_s = guest_deadline_s(supervisor.sandbox.deadline.remaining_s())
    await _attempt(lambda: driver_step("answer", supervisor.link.set_deadline(deadline_s), UNDO_TIMEOUT_S))


async def _record(supervisor: SandboxSupervisor, params: UpdateSandboxParams) -> None:
    """Apply and record all changes except those of the deadline and the limits. If the store refuses the record, nothing is changed."""
    sandbox = supervisor.sandbox
    spec, metadata, idle_timeout_s, name = sandbox.spec, sandbox.metadata, sandbox.idle_timeout_s, sandbox.name
    try:
        _apply(sandbox, params)
        await supervisor.dependencies.recorder.save_update(sandbox, *params.names())
    except BaseException:
        sandbox.metadata, sandbox.idle_timeout_s, sandbox.name = metadata, idle_timeout_s, name
        sandbox.spec = replace(spec, limits=sandbox.spec.limits, volumes=sandbox.spec.volumes)
        raise
    if params.network is not None:
        supervisor.dependencies.guest_services.network.apply(sandbox)


def _apply(sandbox: Sandbox, params: UpdateSandboxParams) -> None:
    """Apply all changes except those of the deadline and the limits. These changes need no request to the guest or the driver."""
    spec = sandbox.spec
    sandbox.spec = replace(
        spec,
        timeout_s=params.timeout_s if params.moves_deadline else spec.timeout_s,
        on_timeout=spec.on_timeout if params.on_timeout is None else params.on_timeout,
        auto_resume=spec.auto_resume if params.auto_resume is None else params.auto_resume,
        network=params.network if isinstance(params.network, NetworkPolicy) else spec.network,
        public_ports=spec.public_ports if params.public_ports is None else params.public_ports,
        mask_request_host=spec.mask_request_host if params.mask_request_host is None else params.mask_request_host or None,
    )
    if params.metadata is not None:
        sandbox.metadata = {
            **{name: value for name, value in sandbox.metadata.items() if name.startswith(RESERVED_PREFIX)},
            **params.metadata,
        }
    if params.labels:
        sandbox.metadata = {**sandbox.metadata, **params.labels}
    if params.idle_timeout_s is not None:
        sandbox.idle_timeout_s = params.idle_timeout_s or None
    sandbox.name = sandbox.name if params.name is None else params.name
