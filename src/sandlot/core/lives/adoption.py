"""What a start of the service makes of the sandboxes that an earlier one left: taken over, or over.

Laws:
- Every sandbox that a client was told of is taken over, or has a record that says why it ended.
- Its variables, processes and files are what they were: nothing is said to its guest but hello and its deadline. One that was about to be written
  down is woken again as what it is.
- What was frozen stays so; what sleeps on the disk sleeps on, and so does what was on its way there or back and does not live.
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

from sandlot.core.content import programs
from sandlot.core.lives import life, resting
from sandlot.core.lives.means import Living, Means, extend, step, turn
from sandlot.core.lives.starts import first_answer, reach
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import mounting
from sandlot.model.errors import NotFoundError, SandlotError
from sandlot.model.ports import Driver, Exit, ExitReason, Instance
from sandlot.model.records import SandboxRecord
from sandlot.model.states import SETTLEMENT, Settlement, State

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


async def take_over(living: Living) -> Exit:
    """Take a sandbox over that lives or sleeps, and keep it until it ends.

    Raises:
        SandlotError: It is there, but cannot be taken over.
        Left: The service leaves.
    """
    box, means = living.box, living.means
    settles = SETTLEMENT[box.state]
    if settles is Settlement.SLEEP:
        return await _sleep_on(living)
    async with turn(box, means.turns):
        try:
            instance = await _adopt(box, means)
        except NotFoundError:
            if settles is Settlement.ADOPT_OR_SLEEP:
                return await _sleep_on(living)
            has_expired = box.deadline_monotonic_s <= means.clock.monotonic_s()
            return Exit(ExitReason.KILLED, EXPIRED) if has_expired else Exit(ExitReason.CRASHED, AWAY)
        living.holdings.append(instance)
        box.instance = instance
    if instance.limits != box.spec.limits:  # a change of them was cut in half, and its driver has settled it
        box.spec = replace(box.spec, limits=instance.limits)
        means.promised(box)
    exits = living.exits = asyncio.ensure_future(instance.wait())
    try:
        if box.state is State.PAUSED:
            await step("pause", instance.pause())  # a resume may have been cut in half
        else:
            await step("resume", instance.resume())
            # Without a turn: a guest that keeps silent must not keep the others from being taken over, or from being created.
            box.link = await first_answer(box, reach(box, means, instance), exits)
            if box.state is State.SNAPSHOTTING:  # of a paused one, nobody knows how long it had
                extend(box, means.clock, box.spec.timeout_s)
            if box.state is not State.RUNNING:
                box.become(State.RUNNING)
            await means.images.remove(box.id)  # half an image, or one that is older than what runs
            box.spawn(_end_programs(box))
        box.activity.touch()
        box.spawn(_settled(box))  # before anything else that is asked of it
        box.adopted.set()
        _log.info("sandbox.adopted", sandbox=box.id)
        if box.metadata.get(USE_WORD) == ONE_RUN:
            box.end(Exit(ExitReason.KILLED, FORSAKEN))
        box.spawn(means.register.adopted(box))
        return await life.keep(living)
    finally:
        if living.exits is not None:
            living.exits.cancel()


async def _sleep_on(living: Living) -> Exit:
    """It is what its image holds."""
    await resting.asleep(living)
    living.box.adopted.set()
    living.box.spawn(living.means.register.adopted(living.box))
    return await life.keep(living)


async def tidy(boxes: Iterable[Sandbox], drivers: Iterable[Driver], kept: Collection[str]) -> None:
    """Remove what nobody took over, once everything has been taken over that can be.

    Args:
        boxes: Those that are being taken over.
        drivers: Who may have left something.
        kept: What stays although nobody takes it over: refs.
    """
    await asyncio.gather(*(box.adopted.wait() for box in boxes))
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


async def _settled(box: Sandbox) -> None:
    """Finish what the service before had begun with its volumes."""
    if any(mount.moving for mount in box.spec.volumes):
        with contextlib.suppress(SandlotError):
            await box.orders.put(mounting.settle)


async def _end_programs(box: Sandbox) -> None:
    """End what the service before ran inside for itself; nobody waits for it any more."""
    with contextlib.suppress(SandlotError):
        await programs.end_leftovers(box)
