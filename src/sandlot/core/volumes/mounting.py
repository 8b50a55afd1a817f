"""Volumes of a sandbox that runs: attached to it, and detached.

Each is a work for :mod:`sandlot.core.lives.orders`, so that nothing else is done with the sandbox meanwhile.

Laws:
- What is about to be moved is recorded before it is begun, and what came of it before it is answered. A service that is killed in between leaves a
  volume that is *moving*: the next one attaches it, or where it cannot, detaches it; so the record and the inside agree. So does, where a guest
  or the store failed in between, whatever comes next and has to know: an attach or detach, a resume, a fork, a snapshot.
- From the step in which it is resolved until the step after it was taken away a volume is among those that the sandbox has: nobody deletes it.
- Detached is what nothing inside has open, mapped or as a working folder: the guest refuses first, and then the host's kernel, which knows. What is
  refused stays attached.
- While something is made that has to have the same volumes, a fork or a snapshot, none is moved.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import structlog

from sandlot.core.lives.means import Living, check, step
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import attaching
from sandlot.core.volumes.volume import placed
from sandlot.core.volumes.volumes import Volumes
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, InvalidRequestError, NotFoundError, SandlotError, UnsupportedError
from sandlot.model.ports import Change, Instance
from sandlot.model.specs import MOST_MOUNTS, VolumeMount
from sandlot.model.states import State

WHAT: Final = "volumes"
"""What of a sandbox was changed, in its event."""

ROUNDS: Final = (4, 8, 24)
"""How often its kernel is made to let go of what nobody uses, before what it holds is taken for used: a folder goes later than what is in it."""

_log = structlog.get_logger("sandlot.core")


@contextlib.asynccontextmanager
async def steady(box: Sandbox) -> AsyncIterator[None]:
    """Around making what has to have the volumes that a sandbox has now: none is attached or detached meanwhile.

    Raises:
        ConflictError: One is at this moment; or it was cut in half, and cannot be finished now.
        SandboxEndedError: It has ended.
    """
    if _moving(box):
        await box.orders.put(settle)  # after what is under way
    if _moving(box):
        raise ConflictError(
            f"A volume of sandbox {box.id} is being attached or detached.",
            code=ErrorCode.CONFLICT,
            hint="Try again in a moment; where it rests, resume it first.",
            fields={"sandbox": box.id},
        )
    box.steady += 1
    try:
        yield
    finally:
        box.steady -= 1


async def settle(living: Living) -> None:
    """Finish what was cut in half: what was being moved is attached, or where that cannot be, it is not."""
    box = living.box
    if not _moving(box) or box.state is not State.RUNNING:
        return
    for mount in _moving(box):
        try:
            await _put(living, mount)
        except SandlotError as error:
            _log.warning("volume.not_attached", sandbox=box.id, volume=mount.volume, path=mount.path, error=str(error))
            await _undo(living, mount)
        else:
            _become(box, mount, replace(mount, moving=False))
    await living.means.register.moved(box)


async def attach(living: Living, *, who: Principal, mount: VolumeMount) -> None:
    """Let it have a volume; nothing where it has it so.

    Args:
        living: It; resumed where it rests by now.
        who: Whose volume it is.
        mount: It, by its name or id.

    Raises:
        SandlotError: As :meth:`Mounts.attach` says.
    """
    box = living.box
    await _awake(living)
    has = box.spec.volumes
    (asked,) = _volumes(living).resolve(who, (mount,))
    if any((one.volume, one.path, one.read_only) == (asked.volume, asked.path, asked.read_only) for one in has):
        return
    _check_place(box, asked)
    *_, moving = placed((*has, replace(asked, slot=None, moving=True)))
    box.spec = replace(box.spec, volumes=(*has, moving))
    try:
        await living.means.register.intend(box)
        await _put(living, moving)
        _become(box, moving, replace(moving, moving=False))
        await living.means.register.changed(box, WHAT)
    except BaseException:
        await _undo(living, moving)
        await living.means.register.moved(box)
        raise
    _log.info("volume.attached", sandbox=box.id, volume=asked.volume, path=asked.path, read_only=asked.read_only)


async def detach(living: Living, *, which: str) -> None:
    """Take a volume away from it.

    Args:
        living: It; resumed where it rests by now.
        which: The volume's path, name or id.

    Raises:
        SandlotError: As :meth:`Mounts.detach` says.
    """
    box = living.box
    await _awake(living)
    mount = found(box, which)
    moving = replace(mount, moving=True)
    _become(box, mount, moving)
    try:
        await living.means.register.intend(box)
        await _take(living, mount)
        _become(box, mount, None)
        await living.means.register.changed(box, WHAT)
    except BaseException:
        if not box.wanted.is_set():
            _become(box, mount, None)
            box.spec = replace(box.spec, volumes=(*box.spec.volumes, moving))
            await settle(living)
        raise
    _volumes(living).release(box.id, mount.volume)
    _log.info("volume.detached", sandbox=box.id, volume=mount.volume, path=mount.path)


async def _awake(living: Living) -> None:
    """It runs, and nothing is made of it that has to have the volumes that it has."""
    box = living.box
    if box.state is not State.RUNNING:  # it came to rest before it was this one's turn
        if not box.spec.auto_resume or box.rouse is None:
            raise box.resting_error()
        await box.rouse(living)
    check(box)
    await settle(living)
    if box.steady:
        raise ConflictError(
            f"Sandbox {box.id} is being forked, or written to a snapshot: its volumes stay as they are meanwhile.",
            code=ErrorCode.CONFLICT,
            hint="Try again when that is done.",
            fields={"sandbox": box.id},
        )


async def _put(living: Living, mount: VolumeMount) -> None:
    """Have it in its place: on the host, in the sandbox's view, inside."""
    box = living.box
    attachments = await step("attach a volume to", _volumes(living).attach(box.id, (mount,)))
    instance = _instance(box)
    await step("attach a volume to", instance.configure(Change(volumes=attachments)))
    place = [f"{instance.hub}/{mount.slot}", mount.path, mount.read_only]
    await step("attach a volume to", attaching.ask(box, there=[place]))


async def _take(living: Living, mount: VolumeMount) -> None:
    """Have it in its place no more: inside first, and then in the sandbox's view, where the kernel refuses what is in use."""
    box, instance = living.box, _instance(living.box)
    place = [mount.path, f"{instance.hub}/{mount.slot}", f"{instance.hub}/{MOST_MOUNTS}"]
    if mount.slot is None:
        raise InternalError(f"Nobody knows which place of sandbox {box.id} volume {mount.volume} has.")
    away = Change(without=(mount.slot,))
    for rounds in ROUNDS:
        with contextlib.suppress(ConflictError):  # the first time it is in its place inside; but then there is what to look at
            return await step("detach a volume from", instance.configure(away))
        told = await step("detach a volume from", attaching.ask(box, free=[[*place, rounds]]))
        if told.get("used"):
            raise _used(box, mount)
    try:
        await step("detach a volume from", instance.configure(away))
    except ConflictError as error:
        raise _used(box, mount) from error


async def _undo(living: Living, mount: VolumeMount) -> None:
    """What could not be attached, or not recorded, is detached. Where it is in use by now, it stays; where nobody can tell, it is still moving."""
    box = living.box
    if box.wanted.is_set():
        return
    try:
        await _take(living, mount)
    except SandlotError as error:
        _log.warning("volume.stays", sandbox=box.id, volume=mount.volume, path=mount.path, error=str(error))
        _become(box, mount, replace(mount, moving=not isinstance(error, ConflictError)))
    else:
        _become(box, mount, None)
        _volumes(living).release(box.id, mount.volume)


def _used(box: Sandbox, mount: VolumeMount) -> ConflictError:
    return ConflictError(
        f"The volume at {mount.path} is in use inside of sandbox {box.id}.",
        code=ErrorCode.CONFLICT,
        hint="End what has files of it open or works in it, or kill the sandbox; then detach it again.",
        fields={"sandbox": box.id, "volume": mount.volume, "path": mount.path},
    )


def _moving(box: Sandbox) -> list[VolumeMount]:
    return [mount for mount in box.spec.volumes if mount.moving]


def _become(box: Sandbox, mount: VolumeMount, now: VolumeMount | None) -> None:
    """Another way to have a volume, or none."""
    kept = (one if one.volume != mount.volume else now for one in box.spec.volumes)
    box.spec = replace(box.spec, volumes=tuple(one for one in kept if one is not None))


def _check_place(box: Sandbox, asked: VolumeMount) -> None:
    """Refuse what the volumes that a sandbox has leave no room for."""
    has = box.spec.volumes
    same = next((one for one in has if one.volume == asked.volume), None)
    if same is not None:
        message, hint = f"Sandbox {box.id} has this volume already, at {same.path}.", "Detach it first."
    elif len(has) >= MOST_MOUNTS:
        message, hint = f"Sandbox {box.id} has {len(has)} volumes, and may have no more.", "Detach one first."
    else:
        try:
            replace(box.spec, volumes=(*has, asked))
        except InvalidRequestError as error:
            message, hint = error.message, error.hint
        else:
            return
    raise ConflictError(message, code=ErrorCode.CONFLICT, hint=hint, fields={"sandbox": box.id, "path": asked.path})


def found(box: Sandbox, which: str) -> VolumeMount:
    """A volume that a sandbox has, by its path, name or id.

    Raises:
        NotFoundError: ``volume_not_found``: it has none such.
    """
    there = next((one for one in box.spec.volumes if which in {one.path, one.volume} or (which and which == one.asked)), None)
    if there is None:
        raise NotFoundError(
            f"Sandbox {box.id} has no volume {'at ' if which.startswith('/') else ''}{which[:64]!r}.",
            code=ErrorCode.VOLUME_NOT_FOUND,
            hint="Look at the sandbox: its volumes are told with their paths.",
            fields={"sandbox": box.id, "volume": which[:256]},
        )
    return there


def _instance(box: Sandbox) -> Instance:
    if box.instance is None:
        raise box.ended_error()
    return box.instance


def _volumes(living: Living) -> Volumes:
    if living.means.volumes is None:
        raise UnsupportedError("This service has no volumes.", code=ErrorCode.UNSUPPORTED)
    return living.means.volumes
