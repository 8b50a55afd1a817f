"""What a sandbox is asked for between its beginning and its end: to stand still, to sleep on the disk, to go on, to be written down.

Each is a work for :mod:`sandlot.core.lives.orders`: the sandbox's own life carries it out, one after the other.

Laws:
- What is half done is recorded before it is begun, where a start of the service would have to know; what is done is recorded before it is answered.
  Whatever fails on the way leaves the sandbox as it was. A sandbox that cannot be paused again runs; one that cannot run again is ended.
- A hibernated sandbox is its image; the image goes only once it is recorded that the sandbox runs again. A live one wins over its image.
- While it stands still no deadline of its guest passes; what its service promised it for that time is its own (``keep_resting_s``).
- What a sandbox did not take of the host any more is promised to others only once it was given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from sandlot.core.lives.ending import destroy
from sandlot.core.lives.means import Ended, Left, Living, check, extend, guest_deadline_s, left_s, step
from sandlot.core.lives.starts import Restored, reach, wake
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import mounting
from sandlot.link.client import Link
from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.ports import Ability, Exit, ExitReason, Instance
from sandlot.model.states import SETTLEMENT, State

REST_TIMEOUT_S = 30.0
"""How long a guest may take to come to rest; a full pipe without a reader is no reason to wait longer."""

WRITE_TIMEOUT_S = 600.0
"""For writing an image: of many GiB to a slow disk (a disk of 100 MB/s writes 60 GB in it)."""

SAME = -1.0
"""In place of a timeout: what it had."""

_log = structlog.get_logger("sandlot.core")


async def pause(living: Living) -> None:
    """Freeze it where it is; nothing where it rests already.

    Raises:
        UnsupportedError: Its driver cannot.
        HostError: It cannot be recorded; it runs on.
    """
    box, means = living.box, living.means
    if box.state is not State.RUNNING:
        return
    await _require(living, Ability.PAUSE, "be paused")
    instance = _instance(box)
    await _intend(living, State.PAUSING)
    before = box.expires_at, box.deadline_monotonic_s
    try:
        extend(box, means.clock, means.keep_resting_s)
        await _both(_freeze(box, instance), means.register.rests(box, State.PAUSED, "sandbox.paused"))
    except BaseException as error:
        box.expires_at, box.deadline_monotonic_s = before
        if not isinstance(error, SandboxEndedError):
            await _go_on(living, instance)
        raise
    box.become(State.PAUSED)
    _log.info("sandbox.paused", sandbox=box.id)


async def resume(living: Living, timeout_s: float | None = SAME) -> None:
    """Let a paused one go on, or wake a hibernated one; one that runs does.

    Args:
        living: It.
        timeout_s: From now on; None is never, :data:`SAME` what it was asked for.

    Raises:
        UnavailableError: ``busy``: there is no room for a hibernated one; it sleeps on.
        HostError: It cannot be restored, or recorded; it rests on.
    """
    box = living.box
    was = box.spec
    if timeout_s is None or timeout_s != SAME:
        box.spec = replace(was, timeout_s=timeout_s)
    try:
        if box.state is State.PAUSED:
            await _thaw(living)
        elif box.state is State.HIBERNATED:
            await _wake(living)
        elif box.spec is not was:
            await _say_deadline(living)
            await living.means.register.changed(box, "timeout")
    except BaseException:
        box.spec = replace(box.spec, timeout_s=was.timeout_s)
        raise
    await mounting.settle(living)


async def hibernate(living: Living) -> None:
    """Write it to the disk and give its memory back; nothing where that is so already.

    Raises:
        UnsupportedError: Its driver cannot.
        SandlotError: It cannot be written, or recorded; it goes on as it was.
    """
    box, means = living.box, living.means
    if box.state is State.HIBERNATED:
        return
    await _require(living, Ability.SNAPSHOT, "be hibernated")
    instance, was = _instance(box), box.state
    await _intend(living, State.HIBERNATING)
    await means.images.remove(box.id)  # from here on an image that is there is the one that is written here
    try:
        if was is State.PAUSED:
            await step("resume", instance.resume())
        await (await _linked(living, instance)).quiesce(REST_TIMEOUT_S)
        into = await means.images.make(box.id)
        size_bytes = await step("hibernate", instance.snapshot(into, keep_running=False), WRITE_TIMEOUT_S)
    except BaseException as error:
        if isinstance(error, SandboxEndedError) and box.link is not None:
            raise  # the life notices it by the link
        if was is State.PAUSED:
            extend(box, means.clock, box.spec.timeout_s)  # it runs, until it is paused again
        if await _go_on(living, instance) or not await asyncio.to_thread(means.images.image(box.id).is_dir):
            await means.images.remove(box.id)
            if was is State.PAUSED:
                with contextlib.suppress(SandlotError):
                    await pause(living)
            raise
        # It took longer than anybody waits, and was done all the same: the image is all that there is of it.
        size_bytes = await asyncio.to_thread(_size, means.images.image(box.id))
    extend(box, means.clock, means.keep_resting_s)
    box.become(State.HIBERNATED)
    # Where this fails it is found as what was intended, with an image that is whole: it sleeps.
    await means.register.moved(box, "sandbox.hibernated", size_bytes=size_bytes)
    await _give_back(living, size_bytes)
    _log.info("sandbox.hibernated", sandbox=box.id, size_bytes=size_bytes)


async def write(living: Living, into: Path, *, durable: bool = True) -> int:
    """Write its memory and files into a folder that does not exist; it goes on as it was. How many bytes they are.

    Args:
        living: It: running, paused or hibernated.
        into: Where to.
        durable: Whether it is to survive a loss of power.

    Raises:
        UnsupportedError: Its driver cannot.
        SandlotError: It cannot be written; it goes on all the same.

    A paused sandbox that cannot be frozen again afterwards runs, also where its snapshot was written; see :func:`_pause_again`.
    """
    box, means = living.box, living.means
    await _require(living, Ability.SNAPSHOT, "be written to a snapshot")
    if box.state is State.HIBERNATED:
        return await means.images.copy(means.images.image(box.id), into)
    instance, was = _instance(box), box.state
    await _intend(living, State.SNAPSHOTTING)
    try:
        if was is State.PAUSED:
            await step("resume", instance.resume())
        async with _armed(await _linked(living, instance), stays=was is State.PAUSED):
            return await step("write", instance.snapshot(into, keep_running=True, durable=durable), WRITE_TIMEOUT_S)
    finally:
        if not (living.exits is not None and living.exits.done()):
            if was is State.PAUSED:
                await _pause_again(living, instance)
            else:
                box.become(was)


async def asleep(living: Living) -> None:
    """What becomes of one that an earlier service of this node hibernated, or was about to wake: it sleeps on.

    Whether it can be woken here shows when it is: what does not fit today, such as a build of the runtime that was put away, may tomorrow.

    Raises:
        ConflictError: It has no image, so that nothing is left of it.
    """
    box, means = living.box, living.means
    image = means.images.image(box.id)
    if not await asyncio.to_thread(image.is_dir):
        raise ConflictError(f"Sandbox {box.id} cannot be woken: its image is missing.", code=ErrorCode.SNAPSHOT_UNUSABLE)
    if box.state is not State.HIBERNATED:
        box.become(State.HIBERNATED)
    means.rested(box, await asyncio.to_thread(_size, image))


async def _pause_again(living: Living, instance: Instance) -> None:
    """Freeze a paused sandbox that was thawed for its snapshot.

    A sandbox that cannot be frozen must not be shown as paused: its processes run, while its guest counts no time and its timeout stands
    still. It is resumed instead, with its timeout anew, and its owner gets the event of a resume.
    """
    box, means = living.box, living.means
    try:
        await step("pause", instance.pause())
    except SandboxEndedError:
        return
    except SandlotError as error:
        _log.warning("sandbox.not_paused_again", sandbox=box.id, error=str(error))
        extend(box, means.clock, box.spec.timeout_s)
        await _go_on(living, instance, "sandbox.resumed")
        await mounting.settle(living)
    else:
        box.become(State.PAUSED)


async def _thaw(living: Living) -> None:
    box, means = living.box, living.means
    instance = _instance(box)
    before = box.expires_at, box.deadline_monotonic_s
    await step("resume", instance.resume())
    try:
        link = await _linked(living, instance)
        extend(box, means.clock, box.spec.timeout_s)
        await _both(_goes_on(box, link), means.register.rests(box, State.RUNNING, "sandbox.resumed"))
    except BaseException as error:
        box.expires_at, box.deadline_monotonic_s = before
        if not isinstance(error, SandboxEndedError):
            with contextlib.suppress(SandlotError):
                await _freeze(box, instance)
            await means.register.moved(box)
        raise
    box.become(State.RUNNING)
    _log.info("sandbox.resumed", sandbox=box.id)


async def _wake(living: Living) -> None:
    box, means = living.box, living.means
    image = means.images.image(box.id)
    if living.going:
        await asyncio.wait(living.going)
    await means.claim(box)
    before = box.expires_at, box.deadline_monotonic_s
    box.become(State.WAKING)
    try:
        started = await Restored(image)(box, means, living.holdings)
        living.exits = started.exits
        await _say_deadline(living)
        await means.register.rests(box, State.RUNNING, "sandbox.woken")
    except (Ended, Left):
        raise
    except BaseException:
        box.expires_at, box.deadline_monotonic_s = before
        box.become(State.HIBERNATED)
        await _give_back(living, await asyncio.to_thread(_size, image))
        await means.register.moved(box)
        raise
    box.become(State.RUNNING)
    _tell_woken(box)
    await means.images.remove(box.id)
    _log.info("sandbox.woken", sandbox=box.id)


async def _require(living: Living, ability: Ability, what: str) -> None:
    can = await living.means.can(ability)
    if not can.can(ability):
        reason = can.why_not(ability)
        raise UnsupportedError(
            f"This sandbox cannot {what}: {reason}.",
            code=ErrorCode.UNSUPPORTED,
            hint="Use another isolation for it; 'sandlot doctor' says what each can do here.",
            fields={"reason": reason, "isolation": living.box.spec.isolation},
        )


async def _intend(living: Living, state: State) -> None:
    """Record what is about to be done, where the next start of the service would make something else of it than of what it is.

    Raises:
        SandlotError: It cannot be recorded, and nothing is done.
        Ended: It was asked to end.
    """
    box = living.box
    check(box)
    if SETTLEMENT[state] is not SETTLEMENT[box.state]:
        await living.means.register.rests(box, state)
        check(box)
    box.become(state)


@contextlib.asynccontextmanager
async def _armed(link: Link, *, stays: bool) -> AsyncIterator[None]:
    """Around a checkpoint that the guest outlives; ``stays``: it is about to be frozen again."""
    await step("stand still", link.checkpoint(armed=True))
    try:
        yield
    finally:
        if not stays:
            with contextlib.suppress(SandboxEndedError):
                await step("go on", link.checkpoint(armed=False))


async def _both(work: Coroutine[Any, Any, None], record: Coroutine[Any, Any, None]) -> None:
    """Do something, and record at the same time that it is done; both to their ends, whatever becomes of the other.

    A service that is killed in between finds a record of what was not done yet, which is what it makes of it then.
    """
    for result in await asyncio.gather(work, record, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _freeze(box: Sandbox, instance: Instance) -> None:
    # Armed, it counts the time until it is told otherwise as none that it lived: no timeout inside passes.
    await step("stand still", _link(box).checkpoint(armed=True))
    await step("pause", instance.pause())


async def _goes_on(box: Sandbox, link: Link) -> None:
    # In this order on the link, and answered together.
    deadline_s = guest_deadline_s(box.spec.timeout_s)
    await asyncio.gather(step("go on", link.checkpoint(armed=False)), step("go on", link.set_deadline(deadline_s)))


async def _say_deadline(living: Living) -> None:
    """Begin its timeout anew, in its guest first."""
    box = living.box
    await step("go on", _link(box).set_deadline(guest_deadline_s(box.spec.timeout_s)))
    extend(box, living.means.clock, box.spec.timeout_s)


async def _linked(living: Living, instance: Instance) -> Link:
    """Its link; made where it has none, because an earlier service of this node froze it."""
    box = living.box
    if box.link is None or box.link.closed:
        box.link = await step("answer", reach(box, living.means, instance))
    return box.link


async def _go_on(living: Living, instance: Instance, event: str | None = None) -> bool:
    """Let a sandbox run again after a work on it failed. A sandbox that lives and cannot run again is ended.

    Args:
        living: The sandbox.
        instance: Its instance.
        event: Type of the event to record, where clients were told that the sandbox did not run.

    Returns:
        False if the sandbox had ended already.
    """
    box, means = living.box, living.means
    try:
        await step("resume", instance.resume())
        if box.link is not None and box.link.asleep:
            await step("answer", wake(box, means, box.link, await means.base(box.spec)))
        else:
            try:
                link = await _linked(living, instance)
                await step("go on", link.checkpoint(armed=False))
                await step("go on", link.set_deadline(guest_deadline_s(left_s(box, means.clock))))
            except UnavailableError:  # it did not come to rest in time, and this link takes no calls any more
                if box.link is not None:
                    await box.link.aclose()
                await _linked(living, instance)
    except SandboxEndedError:
        if box.link is None:  # by which the life would notice it
            box.end(Exit(ExitReason.CRASHED, "its guest cannot be reached"))
        return False
    except SandlotError as error:
        box.end(Exit(ExitReason.CRASHED, f"it could not be made to run again: {error.message}"))
        return True
    box.become(State.RUNNING)
    _tell_woken(box)
    box.deadline_changed.set()
    await means.register.moved(box, event)
    return True


async def _give_back(living: Living, size_bytes: int) -> None:
    """Give back all that it has of the host, off the path of who waits; what it keeps is so many bytes on the disk."""
    box, holdings = living.box, living.holdings[:]
    living.holdings.clear()
    if living.exits is not None:
        living.exits.cancel()
        living.exits = None
    link, box.link, box.instance = box.link, None, None
    if link is not None:
        await link.aclose()
    task = asyncio.ensure_future(destroy(box, holdings, living.means.disposer, asyncio.Event()))
    living.going.add(task)
    task.add_done_callback(living.going.discard)
    task.add_done_callback(lambda _: living.means.rested(box, size_bytes))


def _tell_woken(box: Sandbox) -> None:
    if box.woken is not None:
        box.woken()


def _instance(box: Sandbox) -> Instance:
    if box.instance is None:
        raise box.ended_error()
    return box.instance


def _link(box: Sandbox) -> Link:
    if box.link is None:
        raise box.ended_error()
    return box.link


def _size(image: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in image.iterdir()) if image.is_dir() else 0
