"""What a start of the service makes of the sandboxes that an earlier one left: taken over, or over.

Laws:
- Every sandbox that a client was told of is taken over, or has a record that says why it ended.
- Its variables, processes and files are what they were: nothing is said to its guest but hello and its deadline.
- What the service before had begun for itself inside, such as packing a folder for a client, is ended; what a client began goes on.
- What was for one request of the service before, such as a program that is run once, is ended: whoever asked is gone.
- Half-done creations are removed: nobody was told of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from sandlot.core import life
from sandlot.core.content import programs
from sandlot.core.life import Means, guest_deadline_s
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.model.errors import ConflictError, NotFoundError, SandlotError
from sandlot.model.ports import Blank, Driver, Exit, ExitReason, Instance
from sandlot.model.records import SandboxRecord
from sandlot.model.states import State

TRIES = 3
PAUSE_S = 0.5
"""Between tries to take over what is there but does not let itself be taken over."""

SWEEP_PAUSE_S = 60.0

USE_WORD, ONE_RUN = "sandlot.use", "oneshot"
"""In the metadata of a sandbox that is for one run alone: nobody would ever hear of it again."""

FORSAKEN = "the service that made it for one run ended"
AWAY = "it ended while no service ran"
EXPIRED = "its timeout passed"
UNBORN = "the service ended while it was created"
UNFINISHED = "the service ended while it was removed"

_log = structlog.get_logger("sandlot.core")


def over(record: SandboxRecord, now_expired: bool) -> tuple[Exit, State]:  # noqa: FBT001 - a pure decision's input
    """How a sandbox ended that an earlier service left and that does not live. Pure.

    Args:
        record: What is known of it.
        now_expired: Whether its time is up.
    """
    if record.state is State.CREATING:
        return Exit(ExitReason.CRASHED, UNBORN), State.FAILED
    if record.exit_reason is not None:
        known = Exit(ExitReason(record.exit_reason), record.exit_detail or UNFINISHED)
        return known, life.state_after(known)
    if record.state is State.STOPPING:
        return Exit(ExitReason.KILLED, UNFINISHED), State.STOPPED
    if now_expired:
        return Exit(ExitReason.KILLED, EXPIRED), State.STOPPED
    return Exit(ExitReason.CRASHED, AWAY), State.FAILED


async def take_over(box: Sandbox, means: Means, holdings: list[Blank | Instance]) -> Exit:
    """Take a live sandbox over, and keep it until it ends.

    Raises:
        SandlotError: It lives, but cannot be taken over.
        Left: The service leaves.
    """
    async with life.turn(box, means.turns):
        try:
            instance = await _adopt(box, means)
        except NotFoundError:
            has_expired = box.deadline_monotonic_s <= means.clock.monotonic_s()
            return Exit(ExitReason.KILLED, EXPIRED) if has_expired else Exit(ExitReason.CRASHED, AWAY)
        holdings.append(instance)
        box.instance = instance
    if instance.limits != box.spec.limits:  # a change of them was cut in half, and its driver has settled it
        box.spec = replace(box.spec, limits=instance.limits)
        means.promised(box)
    exits = asyncio.ensure_future(instance.wait())
    try:
        # Without a turn: a guest that keeps silent must not keep the others from being taken over, or from being created.
        link = box.link = await life.first_answer(box, _greeted(box, means, instance), exits)
        box.activity.touch()
        box.adopted.set()
        _log.info("sandbox.adopted", sandbox=box.id)
        if box.metadata.get(USE_WORD) == ONE_RUN:
            box.end(Exit(ExitReason.KILLED, FORSAKEN))
        box.keep(asyncio.create_task(means.register.adopted(box)))
        box.keep(asyncio.create_task(_end_programs(box)))
        return await life.watch(box, link, exits, means.clock)
    finally:
        exits.cancel()


async def tidy(boxes: Iterable[Sandbox], drivers: Iterable[Driver], kept: Collection[str]) -> None:
    """Remove what nobody took over, once everything has been taken over that can be.

    Args:
        boxes: Those that are being taken over.
        drivers: Who may have left something.
        kept: What stays although nobody takes it over: refs.
    """
    await asyncio.gather(*(box.within_reach() for box in boxes))
    while True:
        try:
            swept = sum([await driver.sweep(keep=kept) for driver in drivers])
        except Exception:  # noqa: BLE001 - what is left is tried again, and harms nobody meanwhile
            _log.exception("sandboxes.sweep_failed", next_try_s=SWEEP_PAUSE_S)
            await asyncio.sleep(SWEEP_PAUSE_S)
        else:
            if swept:
                _log.info("sandboxes.swept", count=swept)
            return


async def _adopt(box: Sandbox, means: Means) -> Instance:
    for left in reversed(range(TRIES)):
        try:
            return await means.driver.adopt(box.ref or "")
        except NotFoundError:
            raise
        except (SandlotError, OSError) as error:
            if not left:
                raise
            _log.warning("sandbox.not_adopted_yet", sandbox=box.id, error=str(error))
            await asyncio.sleep(PAUSE_S)
    raise AssertionError


async def _greeted(box: Sandbox, means: Means, instance: Instance) -> Link:
    link = await means.greet(await instance.connect(), services=means.services(box))
    try:
        # Said again, also that there is none: of a change that was cut in half, what is recorded holds.
        left_s = None if box.expires_at is None else max(0.0, box.deadline_monotonic_s - means.clock.monotonic_s())
        await link.set_deadline(guest_deadline_s(left_s))
        with contextlib.suppress(ConflictError):  # it runs more than that by now; what the host gives bounds it all the same
            await link.set_limits(pids=box.spec.limits.pids, memory_bytes=box.spec.limits.memory_bytes)
    except BaseException:
        await link.aclose()
        raise
    return link


async def _end_programs(box: Sandbox) -> None:
    """End what the service before ran inside for itself; nobody waits for it any more."""
    with contextlib.suppress(SandlotError):
        await programs.end_leftovers(box)
