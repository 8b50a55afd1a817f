"""The limits of a sandbox that runs: changed as a whole or not at all, and what it uses measured against them.

Laws:
- More is promised before it is given, and less is given up only once it was taken back (:mod:`sandlot.core.node.ledger`).
- Two keep the limit of processes: the guest, which counts what a tenant starts, and the host, whose limit is the backstop. The
  guest's is never the higher one: the host's is raised first and lowered last.
- What fails half-way is taken back; what a guest says about itself is a number in bounds, and believed for that sandbox only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import structlog

from sandlot.core.node.ledger import Ledger
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.model.errors import ErrorCode, SandlotError, UnsupportedError
from sandlot.model.ports import Capabilities, Change, Driver, Instance, Usage
from sandlot.model.specs import Limits

COUNT_TIMEOUT_S = 2.0
"""How long a guest may take to count its processes; what the host knows is told without it."""

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
async def changed(box: Sandbox, change: Change, driver: Driver, ledger: Ledger) -> AsyncIterator[None]:
    """Change a sandbox's limits, and change them back where the body fails. One change of a sandbox at a time.

    Args:
        box: It runs.
        change: What the driver is able to change.
        driver: Its own.
        ledger: Where its promise is.

    Raises:
        InvalidRequestError: Out of bounds, or it can never fit on this node.
        UnavailableError: ``busy``: the node has not so much now.
        ConflictError: It uses more than it would be allowed.
        SandboxEndedError: It has ended.
    """
    before, after = box.spec.limits, change.over(box.spec.limits)
    if after == before:
        yield
        return
    async with ledger.changing(box.id, driver.takes(after)):
        await _move(box, before, after)
        try:
            yield
        except BaseException:
            with contextlib.suppress(SandlotError):  # it has ended
                await _move(box, after, before)
            raise
        box.spec = replace(box.spec, limits=after)
    _log.info("sandbox.limits", sandbox=box.id, cpus=after.cpus, memory_bytes=after.memory_bytes, pids=after.pids)


async def used(box: Sandbox) -> Used:
    """What a sandbox has used so far.

    Raises:
        SandboxEndedError: It has ended.
    """
    async with box.using() as link:
        usage = await _instance(box).usage()
        pids: int | None = None
        with contextlib.suppress(TimeoutError, SandlotError):
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                pids = (await link.info()).tasks
    return Used(usage, pids, box.spec.limits)


async def _move(box: Sandbox, before: Limits, after: Limits) -> None:
    """Both keepers of the limits, or none."""
    instance = _instance(box)
    async with box.using() as link:
        if after.pids < before.pids:
            await _lower(link, instance, before, after)
        else:
            await _raise(link, instance, before, after)


async def _lower(link: Link, instance: Instance, before: Limits, after: Limits) -> None:
    await link.set_limits(pids=after.pids)
    try:
        await instance.configure(_change(after))
    except BaseException:
        with contextlib.suppress(SandlotError):
            await link.set_limits(pids=before.pids)
        raise


async def _raise(link: Link, instance: Instance, before: Limits, after: Limits) -> None:
    await instance.configure(_change(after))
    if after.pids == before.pids:
        return
    try:
        await link.set_limits(pids=after.pids)
    except BaseException:
        with contextlib.suppress(SandlotError):
            await instance.configure(_change(before))
        raise


def _change(limits: Limits) -> Change:
    return Change(memory_bytes=limits.memory_bytes, cpus=limits.cpus, pids=limits.pids, disk_bytes=limits.disk_bytes)


def _instance(box: Sandbox) -> Instance:
    if box.instance is None:
        raise box.ended_error()
    return box.instance
