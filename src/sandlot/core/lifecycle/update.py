"""Updates of a sandbox: deadline, idle timeout, metadata, name and limits, all or nothing; and measured usage.

Invariants:
- The guest gets a new deadline before the service uses it. If the guest refuses, the old deadline still holds on both sides.
- An update is recorded before the response.
- A suspended sandbox is resumed only for new limits. Its new timeout begins when it is resumed.
- More resources are reserved before they are given, and less resources are released only after they were taken back.
- The guest limits the processes that the tenant starts, and the host's limit is the backstop. The guest's limit is never higher: the host's is
  raised first and lowered last.
- A quota is checked in the step that claims the larger of the old and the new limits: no other update or create comes between.
- Warm sandboxes are evicted for a sandbox that grows, as for a new one.
- The guest must respond before memory is added: a silent guest gets no memory.
- A change that fails half-way is undone. Resources that cannot be withdrawn, such as memory in use, stay the sandbox's limit and stay reserved: the
  limit that clients see is the limit that holds.
- Numbers that a guest reports are bounded, and count for its own sandbox only.
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
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ports import Capabilities, Change, Usage
from sandlot.model.specs import Limits, OnTimeout, SandboxSpec
from sandlot.model.states import SUSPENDED, State

COUNT_TIMEOUT_S = 2.0
"""Seconds that a guest has to count its processes; the response contains the host's numbers without them."""
BACK_TIMEOUT_S = 5.0
"""Seconds that a guest has to accept its old limits; then the host withdraws what it can without the guest."""
_NOTHING = Usage(cpu_s=0.0, memory_bytes=0, memory_peak_bytes=0, pids=0, disk_bytes=0)
"""Usage of a hibernated sandbox."""
_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Used:
    """Resources that a sandbox has used, and its limits.

    Args:
        usage: Usage, measured by the host.
        pids: Processes and threads that count against the limit, measured by the guest. None: the guest did not respond in time.
        limits: Limits of the sandbox.
    """

    usage: Usage
    pids: int | None
    limits: Limits


def check_able(change: Change, limits: Limits, can: Capabilities) -> None:
    """Refuse limits that a driver cannot change while a sandbox runs.

    Raises:
        InvalidRequestError: A limit is out of bounds.
        UnsupportedError: The driver cannot change a limit; the message says why.
    """
    for ability in change.needs(limits):
        if not can.can(ability):
            raise UnsupportedError(
                f"The {ability.removeprefix('configure.')} limit of a running sandbox cannot be changed: {can.why_not(ability)}.",
                code=ErrorCode.UNSUPPORTED,
                hint="Create another sandbox with the limits that are needed.",
                fields={"ability": str(ability)},
            )


async def used(sandbox: Sandbox) -> Used:
    """Return the resources that a sandbox has used so far.

    Raises:
        SandboxEndedError: The sandbox has ended.
    """
    await sandbox.recovered.wait()
    if sandbox.state is State.HIBERNATED:  # a hibernated sandbox is not woken for this
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
    """Limits that host and guest enforce at this moment.

    Args:
        host: The most that the host gives.
        guest_pids: Process limit that the guest has accepted.
    """

    host: Limits
    guest_pids: int


async def _move(sandbox: Sandbox, keepers: _Keepers, to: Limits, guest_timeout_s: float | None = None) -> None:
    """Set the limits of host and guest that differ. After a failure, ``keepers`` has what both enforce then."""
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
                # Only a help for the guest: it ends a greedy process before the whole sandbox is ended.
                with contextlib.suppress(SandlotError, TimeoutError):
                    async with asyncio.timeout(guest_timeout_s):
                        await link.set_limits(pids=keepers.guest_pids, memory_bytes=to.memory_bytes)


async def _back(sandbox: Sandbox, keepers: _Keepers, before: Limits) -> None:
    """Set the old limits of host and guest again, as far as possible."""
    try:
        await _move(sandbox, keepers, before, BACK_TIMEOUT_S)
    except SandboxEndedError:
        pass  # its resources stay reserved until the last of them is released
    except Exception as error:  # noqa: BLE001 - the client gets the error that caused the undo
        _log.warning("sandbox.limits_not_restored", sandbox=sandbox.id, error=str(error))
        if keepers.guest_pids > before.pids:  # more processes may run by now; all other limits are set back
            with contextlib.suppress(Exception):
                await _move(sandbox, keepers, replace(before, pids=keepers.guest_pids))


async def _configure(sandbox: Sandbox, keepers: _Keepers, to: Limits) -> None:
    change = Change(memory_bytes=to.memory_bytes, cpus=to.cpus, pids=to.pids, disk_bytes=to.disk_bytes)
    instance = sandbox.require_instance()
    try:
        await instance.configure(change)
    except (ConflictError, InvalidRequestError, UnsupportedError):
        raise  # refused: nothing was changed
    except BaseException:
        keepers.host = _most(keepers.host, to)  # cancelled or failed: either limit may hold
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
    """Changes of a sandbox. None leaves a property unchanged.

    Args:
        timeout_s: Seconds from now until the deadline. A persistent sandbox gets a deadline again.
        persistent: Remove the deadline.
        idle_timeout_s: Seconds without activity until the sandbox is ended; 0 removes the idle timeout.
        metadata: New metadata; entries of the service itself stay.
        limits: New limits.
        on_timeout: Action at the deadline.
        auto_resume: Resume the suspended sandbox when a request needs it.
        name: New name.
        unique_name: Refuse the name if another live sandbox of the owner has it.
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
        """Refuse contradictory values and values that are out of bounds."""
        if self.persistent and self.timeout_s is not None:
            raise InvalidRequestError("`persistent` and `timeout` are both set.", hint="Set one of them.", fields={"field": "timeout"})
        admission.check_properties(self.name, self.metadata or {}, self.idle_timeout_s or None, unique_name=self.unique_name)

    @property
    def moves_deadline(self) -> bool:
        """True if the deadline changes."""
        return self.persistent or self.timeout_s is not None

    def names(self) -> list[str]:
        """Return the names of the changed properties."""
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
        principal: Caller, whose quota counts.
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
            UnavailableError: ``busy``: the node has not enough resources now.
            LimitError: ``quota_exceeded``.
            SandboxEndedError: The sandbox has ended.
            HostError: The changes cannot be recorded.
        """
        sandbox, params = self.sandbox, self.params
        if params.timeout_s is not None:
            replace(sandbox.spec, timeout_s=params.timeout_s)  # refuses a timeout that is out of bounds
        can = await self.dependencies.drivers.capabilities(sandbox.spec.isolation)
        await sandbox.recovered.wait()
        if sandbox.state in SUSPENDED and params.limits == Change() and await sandbox.operations.submit(self._while_suspended):
            return
        await sandbox.wait_reachable()
        sandbox.require_link()
        async with sandbox.change_lock:
            sandbox.require_link()  # again: the sandbox may have ended while this update waited for its turn
            admission.check_reserved_names(params.metadata or {}, sandbox.metadata)
            check_able(params.limits, sandbox.spec.limits, can)
            await self._while_running()

    def check_quota(self) -> None:
        """Refuse changes that the caller's quota does not allow. Call it in the step in which a change is made.

        Raises:
            LimitError: ``quota_exceeded``.
        """
        timeout_s = math.inf if self.params.persistent else self.params.timeout_s
        self.dependencies.scheduler.check_update(self.sandbox, self.principal, timeout_s, self.params.limits)

    async def _while_running(self) -> None:
        sandbox, params = self.sandbox, self.params
        before = sandbox.spec, sandbox.metadata, sandbox.idle_timeout_s, sandbox.name
        async with changed(self):
            try:
                with sandbox.deadline.restored_on_error():
                    if params.moves_deadline:
                        async with sandbox.connection() as link:
                            await link.set_deadline(guest_deadline_s(params.timeout_s))
                        sandbox.deadline.extend(params.timeout_s)
                    _apply(sandbox, params)
                    await self.dependencies.recorder.save_update(sandbox, *params.names())
            except BaseException:
                _take_back(sandbox, *before)
                if params.moves_deadline:
                    sandbox.spawn(_restore_guest_deadline(sandbox))
                raise

    async def _while_suspended(self, _supervisor: SandboxSupervisor) -> bool:
        """Apply the changes to a suspended sandbox. Return False if the sandbox runs by now, or another update waits until the sandbox runs."""
        sandbox, params = self.sandbox, self.params
        if sandbox.state not in SUSPENDED or sandbox.change_lock.locked():
            return False
        async with sandbox.change_lock:
            admission.check_reserved_names(params.metadata or {}, sandbox.metadata)
            self.check_quota()
            before = sandbox.spec, sandbox.metadata, sandbox.idle_timeout_s, sandbox.name
            try:
                _apply(sandbox, params)
                await self.dependencies.recorder.save_update(sandbox, *params.names())
            except BaseException:
                _take_back(sandbox, *before)
                raise
        return True


@asynccontextmanager
async def changed(update: SandboxUpdate) -> AsyncIterator[None]:
    """Change a sandbox's limits around a body, and change them back if the body fails. The body sees the new limits.

    Only one update of a sandbox changes limits at a time.

    Args:
        update: The update.

    Raises:
        InvalidRequestError: A limit is out of bounds, or the limits can never fit on this node.
        UnavailableError: ``busy``: the node has not enough resources now.
        ConflictError: The sandbox uses more than the new limits allow.
        LimitError: ``quota_exceeded``.
        SandboxEndedError: The sandbox has ended.
    """
    sandbox, reservations = update.sandbox, update.dependencies.reservations
    driver = update.dependencies.drivers[sandbox.spec.isolation]
    before, after = sandbox.spec.limits, update.params.limits.over(sandbox.spec.limits)
    if after == before:
        update.check_quota()
        yield
        return
    takes = driver.max_resources(after)
    update.check_quota()  # an update that is refused evicts nothing
    reading = await reservations.make_room(grown_amounts(driver.max_resources(before), takes), ignoring=sandbox.id)
    sandbox.require_link()  # the sandbox may have ended meanwhile; then nothing is reserved
    update.check_quota()
    with reservations.resize(sandbox.id, takes, reading) as resize:
        keepers = _Keepers(host=before, guest_pids=before.pids)
        sandbox.reserved_limits = _most(before, after)
        try:
            try:
                await _move(sandbox, keepers, after)
                sandbox.spec = replace(sandbox.spec, limits=after)  # the body records these limits
                yield
            except BaseException:
                await _back(sandbox, keepers, before)
                raise
        finally:
            resize.actual = driver.max_resources(keepers.host)
            sandbox.spec = replace(sandbox.spec, limits=keepers.host)
            sandbox.reserved_limits = None
    _log.info("sandbox.limits", sandbox=sandbox.id, cpus=after.cpus, memory_bytes=after.memory_bytes, pids=after.pids)


def _apply(sandbox: Sandbox, params: UpdateSandboxParams) -> None:
    """Apply all changes that neither the guest nor the driver needs to know."""
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


def _take_back(sandbox: Sandbox, spec: SandboxSpec, metadata: Mapping[str, str], idle_timeout_s: float | None, name: str | None) -> None:
    """Restore the old values. ``changed`` restores the limits."""
    sandbox.metadata, sandbox.idle_timeout_s, sandbox.name = metadata, idle_timeout_s, name
    sandbox.spec = replace(sandbox.spec, timeout_s=spec.timeout_s, on_timeout=spec.on_timeout, auto_resume=spec.auto_resume)


async def _restore_guest_deadline(sandbox: Sandbox) -> None:
    """Send the guest the deadline that holds. If the guest cannot be reached, the service's own deadline still ends the sandbox in time."""
    async with sandbox.connection() as link:
        await link.set_deadline(guest_deadline_s(sandbox.deadline.remaining_s()))
