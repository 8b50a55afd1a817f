"""The limits of a sandbox that runs: changed as a whole or not at all, and what it uses measured against them.

Laws:
- More is promised before it is given, and less is given up only once it was taken back (:mod:`sandlot.core.node.ledger`).
- Two keep the limit of processes: the guest, which counts what a tenant starts, and the host, whose limit is the backstop. The
  guest's is never the higher one: the host's is raised first and lowered last.
- A quota is checked in the same step in which the larger of both is claimed: no other change or create comes between.
- Where a sandbox grows, what is only kept ready gives way, as where one is created.
- The guest is asked before memory is given: one that does not answer has not got any.
- What fails half-way is taken back. What cannot be taken back, such as memory that is in use by then, stays the sandbox's limit and
  stays promised: a limit that is told is one that holds.
- What a guest says about itself is a number in bounds, and believed for that sandbox only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from sandlot.core.node import capacity
from sandlot.core.node.ledger import Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode, InvalidRequestError, SandboxEndedError, SandlotError, UnsupportedError
from sandlot.model.ports import Capabilities, Change, Driver, Instance, Usage
from sandlot.model.specs import Limits
from sandlot.model.states import State

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


@asynccontextmanager
async def changed(sandbox: Sandbox, change: Change, driver: Driver, reservations: Reservations, check: Callable[[], None]) -> AsyncIterator[None]:
    """Change a sandbox's limits, and change them back where the body fails. One change of a sandbox at a time.

    In the body it has the new ones.

    Args:
        sandbox: It runs.
        change: What the driver is able to change.
        driver: Its own.
        reservations: Where its promise is.
        check: Refuses what its owner may not have; does not wait.

    Raises:
        InvalidRequestError: Out of bounds, or it can never fit on this node.
        UnavailableError: ``busy``: the node has not so much now.
        ConflictError: It uses more than it would be allowed.
        LimitError: ``quota_exceeded``.
        SandboxEndedError: It has ended.
    """
    before, after = sandbox.spec.limits, change.over(sandbox.spec.limits)
    if after == before:
        check()
        yield
        return
    takes = driver.max_resources(after)
    check()  # what is refused makes nothing else go
    reading = await reservations.make_room(capacity.grown(driver.max_resources(before), takes), besides=sandbox.id)
    sandbox.require_link()  # it may have ended meanwhile, and then nothing is promised to it
    check()
    with reservations.resize(sandbox.id, takes, reading) as came:
        keepers = _Keepers(host=before, guest_pids=before.pids)
        sandbox.reserved_limits = _most(before, after)
        try:
            try:
                await _move(sandbox, keepers, after)
                sandbox.spec = replace(sandbox.spec, limits=after)  # what the body records is what holds from now on
                yield
            except BaseException:
                await _back(sandbox, keepers, before)
                raise
        finally:
            came(driver.max_resources(keepers.host))
            sandbox.spec = replace(sandbox.spec, limits=keepers.host)
            sandbox.reserved_limits = None
    _log.info("sandbox.limits", sandbox=sandbox.id, cpus=after.cpus, memory_bytes=after.memory_bytes, pids=after.pids)


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
