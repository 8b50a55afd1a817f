"""Update a sandbox: change its deadline, idle timeout, metadata, name and limits. Measure the resources that a sandbox has used.

Invariants:
- An update makes all its changes or none, and is recorded before the response.
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
- A change that fails half-way is undone. Resources that cannot be withdrawn, such as memory in use, remain in the sandbox's limits and reservation.
  Clients therefore always see the limits that are in force.
- Numbers that a guest reports are bounded and affect only its own sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import structlog

from sandlot.core import admission
from sandlot.core.lifecycle.supervisor import LifecycleDependencies, SandboxSupervisor, guest_deadline_s
from sandlot.core.node.reservations import grown_amounts
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, InvalidRequestError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ports import Capabilities, Change, Usage
from sandlot.model.specs import Limits, OnTimeout
from sandlot.model.states import SUSPENDED, State

COUNT_TIMEOUT_S = 2.0
"""Seconds that a guest has to count its processes. Afterwards the usage is returned without the number of processes."""
BACK_TIMEOUT_S = 5.0
"""Seconds that a guest has to accept its old limits after a failed update. Afterwards only the host's limits are restored."""
_NOTHING = Usage(cpu_s=0.0, memory_bytes=0, memory_peak_bytes=0, pids=0, disk_bytes=0)
"""Usage of a hibernated sandbox."""
_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Used:
    """Resources that a sandbox has used, and its limits.

    Args:
        usage: Usage, measured by the host.
        pids: Number of processes and threads that count against the process limit, measured by the guest. None: the sandbox is suspended, or the
            guest did not respond in time.
        limits: Limits of the sandbox.
    """

    usage: Usage
    pids: int | None
    limits: Limits


def check_able(change: Change, limits: Limits, can: Capabilities) -> None:
    """Refuse limits that a driver cannot change while a sandbox runs.

    Raises:
        InvalidRequestError: A limit is out of bounds.
        UnsupportedError: The driver cannot change a limit; the message gives the reason.
    """
    for ability in change.needs(limits):
        if not can.can(ability):
            raise UnsupportedError(
                f"The {ability.removeprefix('configure.')} limit of a running sandbox cannot be changed: {can.why_not(ability)}.",
                hint="Create a new sandbox with the limits that are needed.",
                fields={"ability": str(ability)},
            )


async def used(sandbox: Sandbox) -> Used:
    """Return the resources that a sandbox has used until now, and its limits. A suspended sandbox is not resumed.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    await sandbox.recovered.wait()
    if sandbox.state is State.HIBERNATED:  # a hibernated sandbox uses nothing, and is not woken
        return Used(_NOTHING, None, sandbox.spec.limits)
    if sandbox.state is State.PAUSED:
        return Used(await sandbox.require_instance().usage(), None, sandbox.spec.limits)
    async with sandbox.connection() as link:
        usage = await sandbox.require_instance().usage()
        pids: int | None = None
        with contextlib.suppress(TimeoutError, SandlotError):
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                pids = (await link.info()).tasks
    return Used(usage, pids, sandbox.spec.limits)


@dataclass(slots=True)
class _Keepers:
    """Limits that the host and the guest of a sandbox enforce at this moment.

    Args:
        host: Limits that the host enforces. After a failed change, the largest limits that may be in force.
        guest_pids: Process limit that the guest enforces.
    """

    host: Limits
    guest_pids: int


async def _move(sandbox: Sandbox, keepers: _Keepers, to: Limits, guest_timeout_s: float | None = None) -> None:
    """Change the limits that the host and the guest enforce. ``keepers`` is updated with each change, so that it is also correct after a failure."""
    async with sandbox.connection() as link:
        if to.pids > keepers.host.pids:
            await _configure(sandbox, keepers, replace(keepers.host, pids=to.pids))
        if to.pids != keepers.guest_pids:
            async with asyncio.timeout(guest_timeout_s):
                await link.set_limits(pids=to.pids)
            keepers.guest_pids = to.pids
        if to != keepers.host:
            memory_bytes = keepers.host.memory_bytes
            await _configure(sandbox, keepers, to)
            if to.memory_bytes != memory_bytes:
                # Errors are ignored, because the host enforces the limit. The guest uses the limit only to kill one large process before the host
                # kills all processes of the sandbox.
                with contextlib.suppress(SandlotError, TimeoutError):
                    async with asyncio.timeout(guest_timeout_s):
                        await link.set_limits(pids=keepers.guest_pids, memory_bytes=to.memory_bytes)


async def _back(sandbox: Sandbox, keepers: _Keepers, before: Limits) -> None:
    """Restore the sandbox's earlier limits on the host and in the guest, as far as possible."""
    try:
        await _move(sandbox, keepers, before, BACK_TIMEOUT_S)
    except SandboxEndedError:
        pass  # the end of the sandbox releases its resources and its reservation
    except Exception as error:  # noqa: BLE001 - the client gets the error that made the update fail
        _log.warning("sandbox.limits_not_restored", sandbox=sandbox.id, error=str(error))
        if keepers.guest_pids > before.pids:  # more processes may run than the old process limit allows
            with contextlib.suppress(Exception):
                await _move(sandbox, keepers, replace(before, pids=keepers.guest_pids))


async def _configure(sandbox: Sandbox, keepers: _Keepers, to: Limits) -> None:
    change = Change(memory_bytes=to.memory_bytes, cpus=to.cpus, pids=to.pids, disk_bytes=to.disk_bytes)
    instance = sandbox.require_instance()
    try:
        await instance.configure(change)
    except (ConflictError, InvalidRequestError, UnsupportedError):
        raise  # the driver refused the change, so the limits are unchanged
    except BaseException:
        keepers.host = _most(keepers.host, to)  # after a failure, the old or the new limits may be in force
        raise
    keepers.host = to


def _most(one: Limits, other: Limits) -> Limits:
    return Limits(
        cpus=max(one.cpus, other.cpus),
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        pids=max(one.pids, other.pids),
        disk_bytes=max(one.disk_bytes, other.disk_bytes),
    )


@dataclass(frozen=True, slots=True)
class UpdateSandboxParams:
    """Changes that an update makes to a sandbox. None leaves a property unchanged.

    Args:
        timeout_s: Seconds from now until the deadline. A persistent sandbox then has a deadline again.
        persistent: True to remove the deadline.
        idle_timeout_s: New idle timeout in seconds; 0 removes the idle timeout.
        metadata: New metadata. Entries with reserved names, which the service has set, stay.
        limits: New limits.
        on_timeout: Action when the timeout or the idle timeout passes.
        auto_resume: True to resume the suspended sandbox when a request needs it.
        name: New name.
        unique_name: True to refuse the update if another live sandbox of the owner has the name.
    """

    timeout_s: float | None = None
    persistent: bool = False
    idle_timeout_s: float | None = None
    metadata: Mapping[str, str] | None = None
    limits: Change = field(default_factory=Change)
    on_timeout: OnTimeout | None = None
    auto_resume: bool | None = None
    name: str | None = None
    unique_name: bool = False

    def __post_init__(self) -> None:
        """Check that the values are within their bounds and do not contradict each other.

        Raises:
            InvalidRequestError: A value is out of bounds, or ``persistent`` and ``timeout_s`` are both set.
        """
        if self.persistent and self.timeout_s is not None:
            raise InvalidRequestError("`persistent` and `timeout` are both set.", hint="Set one of them.", fields={"field": "timeout"})
        admission.check_properties(self.name, self.metadata or {}, self.idle_timeout_s or None, unique_name=self.unique_name)

    @property
    def moves_deadline(self) -> bool:
        """True if the update changes the deadline."""
        return self.persistent or self.timeout_s is not None

    def names(self) -> list[str]:
        """Return the names of the properties that the update changes, as in the API."""
        given = {
            "timeout": self.moves_deadline,
            "idle_timeout": self.idle_timeout_s is not None,
            "metadata": self.metadata is not None,
            "limits": self.limits != Change(),
            "on_timeout": self.on_timeout is not None,
            "auto_resume": self.auto_resume is not None,
            "name": self.name is not None,
        }
        return [name for name, is_given in given.items() if is_given]


@dataclass(frozen=True, slots=True)
class SandboxUpdate:
    """One update of one sandbox.

    Args:
        sandbox: The sandbox.
        principal: Caller. The update must fit the quota of this principal.
        params: The changes.
        dependencies: Parts of the service.
    """

    sandbox: Sandbox
    principal: Principal
    params: UpdateSandboxParams
    dependencies: LifecycleDependencies

    async def run(self) -> None:
        """Apply all changes or none.

        Raises:
            InvalidRequestError: A value is out of bounds.
            UnsupportedError: A limit cannot be changed while the sandbox runs.
            ConflictError: The sandbox uses more than the new limits allow, or is still being created.
            UnavailableError: The node does not have enough free resources now; code ``busy``.
            LimitError: The changes would exceed the caller's quota; code ``quota_exceeded``.
            SandboxEndedError: The sandbox has ended.
            HostError: The changes cannot be recorded.
        """
        sandbox, params = self.sandbox, self.params
        if params.timeout_s is not None:
            replace(sandbox.spec, timeout_s=params.timeout_s)  # raises an error if the timeout is out of bounds
        can = await self.dependencies.drivers.capabilities(sandbox.spec.isolation)
        await sandbox.recovered.wait()
        if sandbox.state in SUSPENDED and params.limits == Change() and await sandbox.operations.submit(self._while_suspended):
            return
        await sandbox.wait_reachable()
        sandbox.require_link()
        async with sandbox.change_lock:
            sandbox.require_link()  # again: the sandbox may have ended while this update waited for the lock
            admission.check_reserved_names(params.metadata or {}, sandbox.metadata)
            check_able(params.limits, sandbox.spec.limits, can)
            await self._while_running()

    def check_quota(self) -> None:
        """Refuse changes that the caller's quota does not allow. There must be no ``await`` between this check and the change.

        Raises:
            LimitError: The changes would exceed the quota; code ``quota_exceeded``.
        """
        timeout_s = math.inf if self.params.persistent else self.params.timeout_s
        self.dependencies.scheduler.check_update(self.sandbox, self.principal, timeout_s, self.params.limits)

    async def _while_running(self) -> None:
        sandbox, params = self.sandbox, self.params
        async with changed(self):
            try:
                with sandbox.deadline.restored_on_error():
                    if params.moves_deadline:
                        async with sandbox.connection() as link:
                            await link.set_deadline(guest_deadline_s(params.timeout_s))
                        sandbox.deadline.extend(params.timeout_s)
                    await self._apply_and_record()
            except BaseException:
                if params.moves_deadline:
                    sandbox.tasks.spawn(_restore_guest_deadline(sandbox))
                raise

    async def _while_suspended(self, _supervisor: SandboxSupervisor) -> bool:
        """Apply the changes to a suspended sandbox. Return False, without a change, if the sandbox is no longer suspended or is being updated."""
        sandbox, params = self.sandbox, self.params
        if sandbox.state not in SUSPENDED or sandbox.change_lock.locked():
            return False
        async with sandbox.change_lock:
            admission.check_reserved_names(params.metadata or {}, sandbox.metadata)
            self.check_quota()
            await self._apply_and_record()
        return True

    async def _apply_and_record(self) -> None:
        """Apply and record all changes except those of the deadline and the limits. If the store refuses the record, nothing is changed."""
        sandbox = self.sandbox
        spec, metadata, idle_timeout_s, name = sandbox.spec, sandbox.metadata, sandbox.idle_timeout_s, sandbox.name
        try:
            _apply(sandbox, self.params)
            await self.dependencies.recorder.save_update(sandbox, *self.params.names())
        except BaseException:
            sandbox.metadata, sandbox.idle_timeout_s, sandbox.name = metadata, idle_timeout_s, name
            sandbox.spec = replace(sandbox.spec, timeout_s=spec.timeout_s, on_timeout=spec.on_timeout, auto_resume=spec.auto_resume)
            raise


@asynccontextmanager
async def changed(update: SandboxUpdate) -> AsyncIterator[None]:
    """Change the limits of a sandbox, then run the body of the ``async with`` block. If the body fails, restore the old limits.

    The caller holds ``Sandbox.change_lock``, so that only one update changes the limits at a time.

    Args:
        update: The update.

    Raises:
        InvalidRequestError: A limit is out of bounds, or the limits can never fit on this node.
        UnavailableError: The node does not have enough free resources now; code ``busy``.
        ConflictError: The sandbox uses more than the new limits allow.
        LimitError: The new limits would exceed the caller's quota; code ``quota_exceeded``.
        SandboxEndedError: The sandbox has ended.
    """
    sandbox, reservations = update.sandbox, update.dependencies.reservations
    driver = update.dependencies.drivers[sandbox.spec.isolation]
    before, after = sandbox.spec.limits, update.params.limits.over(sandbox.spec.limits)
    if after == before:
        update.check_quota()
        yield
        return
    takes, allocation = driver.max_resources(after), sandbox.allocation
    if allocation is None:
        raise sandbox.ended_error()
    update.check_quota()  # before make_room: an update that exceeds the quota must evict no warm sandbox
    reading = await reservations.make_room(grown_amounts(driver.max_resources(before), takes), replacing=allocation.reservation)
    sandbox.require_link()  # nothing must be reserved for a sandbox that has ended meanwhile
    update.check_quota()
    with allocation.reservation.resize(takes, after, reading) as resize:
        keepers = _Keepers(host=before, guest_pids=before.pids)
        try:
            try:
                await _move(sandbox, keepers, after)
                sandbox.spec = replace(sandbox.spec, limits=after)  # the body records these limits
                yield
            except BaseException:
                await _back(sandbox, keepers, before)
                raise
        finally:
            resize.actual = driver.max_resources(keepers.host), keepers.host
            sandbox.spec = replace(sandbox.spec, limits=keepers.host)
    _log.info("sandbox.limits_changed", sandbox=sandbox.id, cpus=after.cpus, memory_bytes=after.memory_bytes, pids=after.pids)


def _apply(sandbox: Sandbox, params: UpdateSandboxParams) -> None:
    """Apply all changes except those of the deadline and the limits. These changes need no request to the guest or the driver."""
    spec = sandbox.spec
    sandbox.spec = replace(
        spec,
        timeout_s=params.timeout_s if params.moves_deadline else spec.timeout_s,
        on_timeout=spec.on_timeout if params.on_timeout is None else params.on_timeout,
        auto_resume=spec.auto_resume if params.auto_resume is None else params.auto_resume,
    )
    if params.metadata is not None:
        sandbox.metadata = {
            **{name: value for name, value in sandbox.metadata.items() if name.startswith(admission.RESERVED_PREFIX)},
            **params.metadata,
        }
    if params.idle_timeout_s is not None:
        sandbox.idle_timeout_s = params.idle_timeout_s or None
    sandbox.name = sandbox.name if params.name is None else params.name


async def _restore_guest_deadline(sandbox: Sandbox) -> None:
    """Set the deadline in the guest to the deadline that the service keeps. If this fails, the service still ends the sandbox at its deadline."""
    async with sandbox.connection() as link:
        await link.set_deadline(guest_deadline_s(sandbox.deadline.remaining_s()))
