"""The limits of a sandbox that runs: changed as a whole or not at all, and what it uses measured against them.

Laws:
- More is promised before it is given, and less is given up only once it was taken back (:mod:`sandlot.core.node.reservations`).
- Two keep the limit of processes: the guest, which counts what a tenant starts, and the host, whose limit is the backstop. The
  guest's is never the higher one: the host's is raised first and lowered last.
- A quota is checked in the same step in which the larger of both is claimed: no other change or create comes between.
- Where a sandbox grows, what is only kept ready gives way, as where one is created.
- The guest is asked before memory is given: one that does not answer has not got any.
- What fails half-way is taken back. What cannot be taken back, such as memory that is in use by then, stays the sandbox's limit and
  stays promised: a limit that is told is one that holds.
- What a guest says about itself is a number in bounds, and believed for that sandbox only.

Changes of a sandbox: its deadline and what that does, its idle timeout, its metadata, its limits; all of what is asked, or nothing.

Laws:
- Both ends know the deadline, and the guest's is said first: should that fail, the old one still holds on both.
- It is recorded before it is answered.
- One that rests is not resumed for it, but where its limits are to be changed: its timeout begins when it is resumed.
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
from sandlot.core.lifecycle.supervisor import LifecycleDependencies, SandboxSupervisor, extend_deadline, guest_deadline_s, remaining_s
from sandlot.core.node.reservations import grown_amounts
from sandlot.core.ports import Clock
from sandlot.core.sandbox import Sandbox
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ports import Capabilities, Change, Instance, Usage
from sandlot.model.specs import Limits, OnTimeout, SandboxSpec
from sandlot.model.states import SUSPENDED, State

COUNT_TIMEOUT_S = 2.0
"""How long a guest may take to count its processes; what the host knows is told without it."""
BACK_TIMEOUT_S = 5.0
"""How long a guest may take to agree to what was before; then the host takes back what it can without it."""
_NOTHING = Usage(cpu_s=0.0, memory_bytes=0, memory_peak_bytes=0, pids=0, disk_bytes=0)
"""What a sandbox takes that sleeps on the disk."""
_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Used:
    """What a sandbox has used, and of how much.

    Args:
        usage: As the host counts it.
        pids: Processes and threads, as the guest counts them for the limit; None where it does not answer in time.
        limits: What it may use.
    """

    usage: Usage
    pids: int | None
    limits: Limits


def check_able(change: Change, limits: Limits, can: Capabilities) -> None:
    """Refuse what a driver cannot change while a sandbox runs.

    Raises:
        InvalidRequestError: Out of bounds.
        UnsupportedError: It cannot; the message says why.
    """
    for ability in change.needs(limits):
        if not can.can(ability):
            raise UnsupportedError(
                f"The {ability.removeprefix('configure.')} limit of a sandbox that runs cannot be changed: {can.why_not(ability)}.",
                code=ErrorCode.UNSUPPORTED,
                hint="Create a sandbox with the limits it needs.",
                fields={"ability": str(ability)},
            )


async def used(sandbox: Sandbox) -> Used:
    """What a sandbox has used so far.

    Raises:
        SandboxEndedError: It has ended.
    """
    await sandbox.recovered.wait()
    if sandbox.state is State.HIBERNATED:  # asked about, it sleeps on
        return Used(_NOTHING, None, sandbox.spec.limits)
    if sandbox.state is State.PAUSED:
        return Used(await _instance(sandbox).usage(), None, sandbox.spec.limits)
    async with sandbox.connection() as link:
        usage = await _instance(sandbox).usage()
        pids: int | None = None
        with contextlib.suppress(TimeoutError, SandlotError):
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                pids = (await link.info()).tasks
    return Used(usage, pids, sandbox.spec.limits)


@dataclass(slots=True)
class _Keepers:
    """Where the two keepers stand.

    Args:
        host: What the host gives at the most.
        guest_pids: The limit of processes that the guest has agreed to.
    """

    host: Limits
    guest_pids: int


async def _move(sandbox: Sandbox, keepers: _Keepers, to: Limits, guest_timeout_s: float | None = None) -> None:
    """Both keepers, each as far as it is not there yet; where it fails, they say how far it came."""
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
                # For its own good only: it ends who is greedy before the sandbox is ended.
                with contextlib.suppress(SandlotError, TimeoutError):
                    async with asyncio.timeout(guest_timeout_s):
                        await link.set_limits(pids=keepers.guest_pids, memory_bytes=to.memory_bytes)


async def _back(sandbox: Sandbox, keepers: _Keepers, before: Limits) -> None:
    """Both keepers back to where they were, as far as they go."""
    try:
        await _move(sandbox, keepers, before, BACK_TIMEOUT_S)
    except SandboxEndedError:
        pass  # what it has is promised until the last of it is gone
    except Exception as error:  # noqa: BLE001 - what the client is told is why it was taken back
        _log.warning("sandbox.limits_stay", sandbox=sandbox.id, error=str(error))
        if keepers.guest_pids > before.pids:  # it may run more by now; what else was given is taken back all the same
            with contextlib.suppress(Exception):
                await _move(sandbox, keepers, replace(before, pids=keepers.guest_pids))


async def _configure(sandbox: Sandbox, keepers: _Keepers, to: Limits) -> None:
    if sandbox.instance is None:
        raise sandbox.ended_error()
    try:
        await sandbox.instance.configure(_change(to))
    except (ConflictError, InvalidRequestError, UnsupportedError):
        raise  # refused: nothing was changed
    except BaseException:
        keepers.host = _most(keepers.host, to)  # cut short, or failed: nobody knows
        raise
    keepers.host = to


def _most(one: Limits, other: Limits) -> Limits:
    return Limits(
        cpus=max(one.cpus, other.cpus),
        memory_bytes=max(one.memory_bytes, other.memory_bytes),
        pids=max(one.pids, other.pids),
        disk_bytes=max(one.disk_bytes, other.disk_bytes),
    )


def _change(limits: Limits) -> Change:
    return Change(memory_bytes=limits.memory_bytes, cpus=limits.cpus, pids=limits.pids, disk_bytes=limits.disk_bytes)


def _instance(sandbox: Sandbox) -> Instance:
    if sandbox.instance is None:
        raise sandbox.ended_error()
    return sandbox.instance


@dataclass(frozen=True, slots=True)
class UpdateSandboxParams:
    """What to change; what is left out stays.

    Args:
        timeout_s: Its timeout comes that many seconds from now; one that was persistent is so no more.
        persistent: It has no deadline any more.
        idle_timeout_s: Seconds of doing nothing after which it is ended; 0 is never.
        metadata: Replaces what there is, but for the service's own words.
        limits: What it may use.
        on_timeout: What becomes of it when its timeout passes.
        auto_resume: Whether a request to it resumes it by itself while it rests.
        name: A word for people.
        unique_name: Whether it is refused while its owner has another live sandbox of that name.
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
        """Refuse what contradicts itself or is out of bounds."""
        if self.persistent and self.timeout_s is not None:
            raise InvalidRequestError("A persistent sandbox has no timeout.", hint="Give one of the two.", fields={"field": "timeout"})
        admission.check_name(self.name, unique=self.unique_name)
        if self.metadata is not None:
            admission.check_metadata(self.metadata)
        if self.idle_timeout_s:
            admission.check_idle_timeout(self.idle_timeout_s)

    @property
    def moves_deadline(self) -> bool:
        """Whether it says something about the deadline."""
        return self.persistent or self.timeout_s is not None

    def names(self) -> list[str]:
        """What of it is to be changed."""
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
        if sandbox.state in SUSPENDED and params.limits == Change() and await sandbox.operations.submit(self._while_resting):
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
        before = sandbox.spec, sandbox.metadata, sandbox.idle_timeout_s, sandbox.name, sandbox.expires_at, sandbox.deadline_monotonic_s
        async with changed(self):
            try:
                if params.moves_deadline:
                    async with sandbox.connection() as link:
                        await link.set_deadline(guest_deadline_s(params.timeout_s))
                    extend_deadline(sandbox, self.dependencies.clock, params.timeout_s)
                _apply(sandbox, params)
                await self.dependencies.recorder.save_update(sandbox, *params.names())
            except BaseException:
                _take_back(sandbox, *before[:4])
                sandbox.expires_at, sandbox.deadline_monotonic_s = before[4:]
                sandbox.deadline_changed.set()
                if params.moves_deadline:
                    sandbox.spawn(_restore_guest_deadline(sandbox, self.dependencies.clock))
                raise

    async def _while_resting(self, _supervisor: SandboxSupervisor) -> bool:
        """Apply the changes to a resting sandbox. Return False if the sandbox runs by now, or another update waits until the sandbox runs."""
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


def _apply(sandbox: Sandbox, what: UpdateSandboxParams) -> None:
    """All of it that neither its guest nor its driver has to know."""
    spec = sandbox.spec
    sandbox.spec = replace(
        spec,
        timeout_s=what.timeout_s if what.moves_deadline else spec.timeout_s,
        on_timeout=spec.on_timeout if what.on_timeout is None else what.on_timeout,
        auto_resume=spec.auto_resume if what.auto_resume is None else what.auto_resume,
    )
    if what.metadata is not None:
        sandbox.metadata = {**{name: word for name, word in sandbox.metadata.items() if name.startswith(admission.RESERVED_PREFIX)}, **what.metadata}
    if what.idle_timeout_s is not None:
        sandbox.idle_timeout_s = what.idle_timeout_s or None
    sandbox.name = sandbox.name if what.name is None else what.name


def _take_back(sandbox: Sandbox, spec: SandboxSpec, metadata: Mapping[str, str], idle_timeout_s: float | None, name: str | None) -> None:
    """As it was; its limits are taken back by who changed them."""
    sandbox.metadata, sandbox.idle_timeout_s, sandbox.name = metadata, idle_timeout_s, name
    sandbox.spec = replace(sandbox.spec, timeout_s=spec.timeout_s, on_timeout=spec.on_timeout, auto_resume=spec.auto_resume)


async def _restore_guest_deadline(sandbox: Sandbox, clock: Clock) -> None:
    """Send the guest the deadline that holds. If the guest cannot be reached, the service's own deadline still ends the sandbox in time."""
    async with sandbox.connection() as link:
        await link.set_deadline(guest_deadline_s(remaining_s(sandbox, clock)))
