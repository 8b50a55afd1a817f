"""A sandbox and its volumes: which are mounted for it on the host, and what its guest makes of them.

Laws:
- They are attached before anybody hears of the sandbox. Where a runtime cannot put them into their places, the guest does, as root inside.
- A snapshot holds none of them. What goes on from one's memory may have their places still: those are taken away first.

Volumes of a sandbox that runs: attached to it, and detached.

Each is a work for :mod:`sandlot.core.operations`, so that nothing else is done with the sandbox meanwhile.

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
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from sandlot.core.execution import helpers
from sandlot.core.lifecycle.supervisor import SandboxSupervisor
from sandlot.core.node.drivers import Drivers, driver_step
from sandlot.core.operations import Operation
from sandlot.core.registry import SandboxRegistry
from sandlot.core.sandbox import Sandbox
from sandlot.core.scheduler import SetupStep
from sandlot.core.volumes import VolumeManager
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, InvalidRequestError, NotFoundError, SandlotError, UnsupportedError
from sandlot.model.ports import Change, DriverCapability, Instance
from sandlot.model.specs import MOST_MOUNTS, User, VolumeMount, placed, slots
from sandlot.model.states import State

PROGRAM = "attaching"


def hold(volumes: VolumeManager | None, sandbox: Sandbox) -> None:
    """An earlier service left a sandbox that may live: what it has stays mounted."""
    if volumes is not None and sandbox.state is not State.HIBERNATED:
        volumes.hold(sandbox.id, sandbox.spec.volumes)


def mount_steps(gone: Sequence[VolumeMount], there: Sequence[VolumeMount]) -> Sequence[SetupStep]:
    """Return the setup step that mounts volumes inside a sandbox. Empty if there is nothing to mount or to unmount.

    Args:
        gone: Volumes whose mount points the restored memory still has; unmounted first.
        there: Volumes of the sandbox.
    """
    if not gone and not there:
        return ()

    async def show(sandbox: Sandbox) -> None:
        hub = None if sandbox.instance is None else sandbox.instance.hub
        if hub is None:
            return
        places = [[f"{hub}/{slot}", mount.path, mount.read_only] for slot, mount in slots(there)]
        await ask(sandbox, gone=[mount.path for mount in gone], there=places)

    return (show,)


async def ask(sandbox: Sandbox, **request: object) -> Mapping[str, Any]:
    """Have the guest put volumes into their places, or take them away: see the program.

    Raises:
        SandlotError: It could not; says why.
    """
    helper = await helpers.start(sandbox, PROGRAM, {"gone": [], "there": [], **request}, user=User.ROOT)
    try:
        return await helper.result()
    finally:
        helper.close()


WHAT: Final = "volumes"
"""What of a sandbox was changed, in its event."""
ROUNDS: Final = (4, 8, 24)
"""How often its kernel is made to let go of what nobody uses, before what it holds is taken for used: a folder goes later than what is in it."""
_log = structlog.get_logger("sandlot.core")


@contextlib.asynccontextmanager
async def pin_mounts(sandbox: Sandbox) -> AsyncIterator[None]:
    """Around making what has to have the volumes that a sandbox has now: none is attached or detached meanwhile.

    Raises:
        ConflictError: One is at this moment; or it was cut in half, and cannot be finished now.
        SandboxEndedError: It has ended.
    """
    if _moving(sandbox):
        await sandbox.operations.submit(settle)  # after what is under way
    if _moving(sandbox):
        raise ConflictError(
            f"A volume of sandbox {sandbox.id} is being attached or detached.",
            code=ErrorCode.CONFLICT,
            hint="Try again in a moment; where it rests, resume it first.",
            fields={"sandbox": sandbox.id},
        )
    sandbox.steady += 1
    try:
        yield
    finally:
        sandbox.steady -= 1


async def settle(supervisor: SandboxSupervisor) -> None:
    """Finish what was cut in half: what was being moved is attached, or where that cannot be, it is not."""
    sandbox = supervisor.sandbox
    if not _moving(sandbox) or sandbox.state is not State.RUNNING:
        return
    for mount in _moving(sandbox):
        try:
            await _put(supervisor, mount)
        except SandlotError as error:
            _log.warning("volume.not_attached", sandbox=sandbox.id, volume=mount.volume, path=mount.path, error=str(error))
            await _undo(supervisor, mount)
        else:
            _become(sandbox, mount, replace(mount, moving=False))
    await supervisor.dependencies.recorder.save_eventually(sandbox)


async def attach(supervisor: SandboxSupervisor, *, principal: Principal, mount: VolumeMount) -> None:
    """Let it have a volume; nothing where it has it so.

    Args:
        supervisor: It; resumed where it rests by now.
        principal: Whose volume it is.
        mount: It, by its name or id.

    Raises:
        SandlotError: As :meth:`Mounts.attach` says.
    """
    sandbox = supervisor.sandbox
    await _awake(supervisor)
    has = sandbox.spec.volumes
    (asked,) = _volumes(supervisor).resolve(principal, (mount,))
    if any((one.volume, one.path, one.read_only) == (asked.volume, asked.path, asked.read_only) for one in has):
        return
    _check_place(sandbox, asked)
    *_, moving = placed((*has, replace(asked, slot=None, moving=True)))
    sandbox.spec = replace(sandbox.spec, volumes=(*has, moving))
    try:
        await supervisor.dependencies.recorder.save(sandbox)
        await _put(supervisor, moving)
        _become(sandbox, moving, replace(moving, moving=False))
        await supervisor.dependencies.recorder.save_update(sandbox, WHAT)
    except BaseException:
        await _undo(supervisor, moving)
        await supervisor.dependencies.recorder.save_eventually(sandbox)
        raise
    _log.info("volume.attached", sandbox=sandbox.id, volume=asked.volume, path=asked.path, read_only=asked.read_only)


async def detach(supervisor: SandboxSupervisor, *, which: str) -> None:
    """Take a volume away from it.

    Args:
        supervisor: It; resumed where it rests by now.
        which: The volume's path, name or id.

    Raises:
        SandlotError: As :meth:`Mounts.detach` says.
    """
    sandbox = supervisor.sandbox
    await _awake(supervisor)
    mount = found(sandbox, which)
    moving = replace(mount, moving=True)
    _become(sandbox, mount, moving)
    try:
        await supervisor.dependencies.recorder.save(sandbox)
        await _take(supervisor, mount)
        _become(sandbox, mount, None)
        await supervisor.dependencies.recorder.save_update(sandbox, WHAT)
    except BaseException:
        if not sandbox.end_requested.is_set():
            _become(sandbox, mount, None)
            sandbox.spec = replace(sandbox.spec, volumes=(*sandbox.spec.volumes, moving))
            await settle(supervisor)
        raise
    _volumes(supervisor).release(sandbox.id, mount.volume)
    _log.info("volume.detached", sandbox=sandbox.id, volume=mount.volume, path=mount.path)


async def _awake(supervisor: SandboxSupervisor) -> None:
    """It runs, and nothing is made of it that has to have the volumes that it has."""
    sandbox = supervisor.sandbox
    if sandbox.state is not State.RUNNING:  # it came to rest before it was this one's turn
        if not sandbox.spec.auto_resume or sandbox.resume_operation is None:
            raise sandbox.suspended_error()
        await sandbox.resume_operation(supervisor)
    supervisor.check_end()
    await settle(supervisor)
    if sandbox.steady:
        raise ConflictError(
            f"Sandbox {sandbox.id} is being forked, or written to a snapshot: its volumes stay as they are meanwhile.",
            code=ErrorCode.CONFLICT,
            hint="Try again when that is done.",
            fields={"sandbox": sandbox.id},
        )


async def _put(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Have it in its place: on the host, in the sandbox's view, inside."""
    sandbox = supervisor.sandbox
    attachments = await driver_step("attach a volume to", _volumes(supervisor).attach(sandbox.id, (mount,)))
    instance = _instance(sandbox)
    await driver_step("attach a volume to", instance.configure(Change(volumes=attachments)))
    place = [f"{instance.hub}/{mount.slot}", mount.path, mount.read_only]
    await driver_step("attach a volume to", ask(sandbox, there=[place]))


async def _take(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Have it in its place no more: inside first, and then in the sandbox's view, where the kernel refuses what is in use."""
    sandbox, instance = supervisor.sandbox, _instance(supervisor.sandbox)
    place = [mount.path, f"{instance.hub}/{mount.slot}", f"{instance.hub}/{MOST_MOUNTS}"]
    if mount.slot is None:
        raise InternalError(f"Nobody knows which place of sandbox {sandbox.id} volume {mount.volume} has.")
    away = Change(without=(mount.slot,))
    for rounds in ROUNDS:
        with contextlib.suppress(ConflictError):  # the first time it is in its place inside; but then there is what to look at
            return await driver_step("detach a volume from", instance.configure(away))
        told = await driver_step("detach a volume from", ask(sandbox, free=[[*place, rounds]]))
        if told.get("used"):
            raise _used(sandbox, mount)
    try:
        await driver_step("detach a volume from", instance.configure(away))
    except ConflictError as error:
        raise _used(sandbox, mount) from error


async def _undo(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """What could not be attached, or not recorded, is detached. Where it is in use by now, it stays; where nobody can tell, it is still moving."""
    sandbox = supervisor.sandbox
    if sandbox.end_requested.is_set():
        return
    try:
        await _take(supervisor, mount)
    except SandlotError as error:
        _log.warning("volume.stays", sandbox=sandbox.id, volume=mount.volume, path=mount.path, error=str(error))
        _become(sandbox, mount, replace(mount, moving=not isinstance(error, ConflictError)))
    else:
        _become(sandbox, mount, None)
        _volumes(supervisor).release(sandbox.id, mount.volume)


def _used(sandbox: Sandbox, mount: VolumeMount) -> ConflictError:
    return ConflictError(
        f"The volume at {mount.path} is in use inside of sandbox {sandbox.id}.",
        code=ErrorCode.CONFLICT,
        hint="End what has files of it open or works in it, or kill the sandbox; then detach it again.",
        fields={"sandbox": sandbox.id, "volume": mount.volume, "path": mount.path},
    )


def _moving(sandbox: Sandbox) -> list[VolumeMount]:
    return [mount for mount in sandbox.spec.volumes if mount.moving]


def _become(sandbox: Sandbox, mount: VolumeMount, now: VolumeMount | None) -> None:
    """Another way to have a volume, or none."""
    kept = (one if one.volume != mount.volume else now for one in sandbox.spec.volumes)
    sandbox.spec = replace(sandbox.spec, volumes=tuple(one for one in kept if one is not None))


def _check_place(sandbox: Sandbox, asked: VolumeMount) -> None:
    """Refuse what the volumes that a sandbox has leave no room for."""
    has = sandbox.spec.volumes
    same = next((one for one in has if one.volume == asked.volume), None)
    if same is not None:
        message, hint = f"Sandbox {sandbox.id} has this volume already, at {same.path}.", "Detach it first."
    elif len(has) >= MOST_MOUNTS:
        message, hint = f"Sandbox {sandbox.id} has {len(has)} volumes, and may have no more.", "Detach one first."
    else:
        try:
            replace(sandbox.spec, volumes=(*has, asked))
        except InvalidRequestError as error:
            message, hint = error.message, error.hint
        else:
            return
    raise ConflictError(message, code=ErrorCode.CONFLICT, hint=hint, fields={"sandbox": sandbox.id, "path": asked.path})


def found(sandbox: Sandbox, which: str) -> VolumeMount:
    """A volume that a sandbox has, by its path, name or id.

    Raises:
        NotFoundError: ``volume_not_found``: it has none such.
    """
    there = next((one for one in sandbox.spec.volumes if which in {one.path, one.volume} or (which and which == one.asked)), None)
    if there is None:
        raise NotFoundError(
            f"Sandbox {sandbox.id} has no volume {'at ' if which.startswith('/') else ''}{which[:64]!r}.",
            code=ErrorCode.VOLUME_NOT_FOUND,
            hint="Look at the sandbox: its volumes are told with their paths.",
            fields={"sandbox": sandbox.id, "volume": which[:256]},
        )
    return there


def _instance(sandbox: Sandbox) -> Instance:
    if sandbox.instance is None:
        raise sandbox.ended_error()
    return sandbox.instance


def _volumes(supervisor: SandboxSupervisor) -> VolumeManager:
    if supervisor.dependencies.volumes is None:
        raise UnsupportedError("This service has no volumes.", code=ErrorCode.UNSUPPORTED)
    return supervisor.dependencies.volumes


class MountManager:
    """Attaches volumes to running sandboxes and detaches them.

    Args:
        registry: Sandboxes of this service.
        drivers: Drivers by isolation name.
        volumes: Volumes of this node.
    """

    def __init__(self, registry: SandboxRegistry, drivers: Drivers, volumes: VolumeManager) -> None:
        self._registry = registry
        self._drivers = drivers
        self._volumes = volumes

    async def attach(self, sandbox_id: str, principal: Principal, mount: VolumeMount) -> Sandbox:
        """Let a sandbox have a volume from now on; one that rests is resumed for it. What it has so already, it has.

        Args:
            sandbox_id: Its id.
            principal: Who asks. The volume is one of the sandbox's owner.
            mount: The volume, by its name or id, and where it is to be.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``.
            UnsupportedError: Its isolation cannot; or the image has no such place for it.
            ConflictError: The place is another volume's, it has the volume elsewhere, or as many as it may; it is being forked or written to a
                snapshot; ``sandbox_paused``.
            HostError: The host cannot, or it cannot be recorded; nothing is attached.
            SandboxEndedError: It has ended.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        owner = principal if sandbox.owner == principal.owner else replace(principal, owner=sandbox.owner, operator=False)
        self._volumes.resolve(owner, (mount,))  # before anything is resumed for it
        await self._check(sandbox)
        await self._ordered(sandbox, functools.partial(attach, principal=owner, mount=mount))
        return sandbox

    async def detach(self, sandbox_id: str, principal: Principal, which: str) -> Sandbox:
        """Take a volume away from a sandbox; what is in it stays. One that rests is resumed for it.

        Args:
            sandbox_id: Its id.
            principal: Who asks.
            which: Where it is: a path; or the volume's name or id.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``: it has none there.
            UnsupportedError: Its isolation cannot.
            ConflictError: Something inside uses it; it is being forked or written to a snapshot; ``sandbox_paused``.
            HostError: The host cannot, or it cannot be recorded; it stays attached.
            SandboxEndedError: It has ended.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        await self._check(sandbox)
        found(sandbox, which)
        await self._ordered(sandbox, functools.partial(detach, which=which))
        return sandbox

    async def _check(self, sandbox: Sandbox) -> None:
        if sandbox.end_requested.is_set() or sandbox.ended.is_set():
            raise sandbox.ended_error()
        can = await self._drivers.capabilities(sandbox.spec.isolation)
        for ability in (DriverCapability.VOLUMES, DriverCapability.CONFIGURE_VOLUMES):
            if not can.can(ability):
                raise UnsupportedError(
                    f"The volumes of a sandbox that runs cannot be changed with the isolation {sandbox.spec.isolation!r}: {can.why_not(ability)}.",
                    code=ErrorCode.UNSUPPORTED,
                    hint="Say which volumes it has when it is created.",
                    fields={"ability": str(ability)},
                )

    async def _ordered(self, sandbox: Sandbox, work: Operation[None]) -> None:
        await sandbox.wait_reachable()
        async with sandbox.change_lock:
            await sandbox.operations.submit(work)
        sandbox.activity.touch()
