"""Mounts: the volumes of a sandbox, mounted at its start, attached to a running sandbox and detached from it.

The host mounts a volume once. The driver shows the volume to the sandbox, and the guest mounts it at its path, as root inside, if the runtime cannot.

Invariants:
- The volumes of a new sandbox are mounted before the response. Memory of a snapshot contains no volumes but may contain their mount points: those
  are removed first.
- Attach, detach and settle are operations (:mod:`sandlot.core.operations`), so nothing else is done with the sandbox meanwhile.
- A move is recorded before it begins, and its result before the response. If the service is killed in between, the volume is *moving*: the next
  service attaches it or, if this fails, detaches it. The next attach, detach, resume, fork or snapshot does the same after a failure of the guest or
  the store.
- A volume belongs to the sandbox from the step in which its name is resolved until it has been detached: it cannot be deleted meanwhile.
- A volume is detached only if no process inside has a file of it open or mapped, or works in it. The guest checks first, then the host's kernel.
  A volume that is in use stays attached.
- No volume is attached or detached while a fork or a snapshot needs the volumes of its sandbox unchanged.
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
from sandlot.model.ports import Change, DriverCapability
from sandlot.model.specs import MOST_MOUNTS, User, VolumeMount, placed, slots
from sandlot.model.states import State

PROGRAM = "volumes"


def mount_step(gone: Sequence[VolumeMount], there: Sequence[VolumeMount]) -> SetupStep:
    """Return the setup step that mounts volumes inside a new sandbox.

    Args:
        gone: Volumes whose mount points the restored memory still has; unmounted first.
        there: Volumes to mount.
    """

    async def show(sandbox: Sandbox) -> None:
        hub = None if sandbox.instance is None else sandbox.instance.hub
        if hub is None:
            return
        places = [[f"{hub}/{slot}", mount.path, mount.read_only] for slot, mount in slots(there)]
        await ask(sandbox, gone=[mount.path for mount in gone], there=places)

    return show


async def ask(sandbox: Sandbox, **request: object) -> Mapping[str, Any]:
    """Run the guest program that mounts and unmounts volumes inside a sandbox.

    Args:
        sandbox: The sandbox.
        request: Request to the program: lists ``gone``, ``there`` and ``free``.

    Raises:
        SandlotError: The program failed; the message says why.
    """
    helper = await helpers.start(sandbox, PROGRAM, {"gone": [], "there": [], **request}, user=User.ROOT)
    try:
        return await helper.result()
    finally:
        helper.close()


WHAT: Final = "volumes"
"""Name of the changed property in the event of the sandbox."""
ROUNDS: Final = (4, 8, 24)
"""Rounds in which the sandbox's kernel drops unused folders, before a volume counts as used. A folder is dropped after the files in it."""
_log = structlog.get_logger("sandlot.core")


@contextlib.asynccontextmanager
async def pin_mounts(sandbox: Sandbox) -> AsyncIterator[None]:
    """Keep the volumes of a sandbox unchanged around a fork or a snapshot.

    Raises:
        ConflictError: A volume is being moved, or an interrupted move cannot be finished now.
        SandboxEndedError: The sandbox has ended.
    """
    if _moving(sandbox):
        await sandbox.operations.submit(settle)  # after what is under way
    if _moving(sandbox):
        raise ConflictError(
            f"A volume of sandbox {sandbox.id} is being attached or detached.",
            code=ErrorCode.CONFLICT,
            hint="Retry in a moment. If the sandbox is suspended, resume it first.",
            fields={"sandbox": sandbox.id},
        )
    sandbox.steady += 1
    try:
        yield
    finally:
        sandbox.steady -= 1


async def settle(supervisor: SandboxSupervisor) -> None:
    """Finish interrupted moves: attach each moving volume, or detach it if this fails."""
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
    """Attach a volume to a sandbox. Does nothing if the sandbox has the volume in this way already.

    Args:
        supervisor: Supervisor of the sandbox, which is resumed if it is suspended.
        principal: Owner of the volume.
        mount: The volume, by name or id, and its path.

    Raises:
        SandlotError: See :meth:`MountManager.attach`.
    """
    sandbox = supervisor.sandbox
    await _awake(supervisor)
    has = sandbox.spec.volumes
    (requested,) = supervisor.dependencies.volumes.resolve(principal, (mount,))
    if any((one.volume, one.path, one.read_only) == (requested.volume, requested.path, requested.read_only) for one in has):
        return
    _check_place(sandbox, requested)
    *_, moving = placed((*has, replace(requested, slot=None, moving=True)))
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
    _log.info("volume.attached", sandbox=sandbox.id, volume=requested.volume, path=requested.path, read_only=requested.read_only)


async def detach(supervisor: SandboxSupervisor, *, which: str) -> None:
    """Detach a volume from a sandbox.

    Args:
        supervisor: Supervisor of the sandbox, which is resumed if it is suspended.
        which: Path, name or id of the volume.

    Raises:
        SandlotError: See :meth:`MountManager.detach`.
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
    supervisor.dependencies.volumes.release(sandbox.id, mount.volume)
    _log.info("volume.detached", sandbox=sandbox.id, volume=mount.volume, path=mount.path)


async def _awake(supervisor: SandboxSupervisor) -> None:
    """Resume the sandbox if it is suspended, finish interrupted moves, and refuse if a fork or a snapshot needs the volumes unchanged."""
    sandbox = supervisor.sandbox
    if sandbox.state is not State.RUNNING:  # the sandbox was suspended while this operation waited
        if not sandbox.spec.auto_resume or sandbox.resume_operation is None:
            raise sandbox.suspended_error()
        await sandbox.resume_operation(supervisor)
    supervisor.check_end()
    await settle(supervisor)
    if sandbox.steady:
        raise ConflictError(
            f"Sandbox {sandbox.id} is being forked or written to a snapshot; its volumes cannot be changed meanwhile.",
            code=ErrorCode.CONFLICT,
            hint="Retry when the fork or the snapshot is complete.",
            fields={"sandbox": sandbox.id},
        )


async def _put(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Mount a volume on the host, in the sandbox's view, and at its path inside."""
    sandbox = supervisor.sandbox
    attachments = await driver_step("attach a volume to", supervisor.dependencies.volumes.attach(sandbox.id, (mount,)))
    instance = sandbox.require_instance()
    await driver_step("attach a volume to", instance.configure(Change(volumes=attachments)))
    place = [f"{instance.hub}/{mount.slot}", mount.path, mount.read_only]
    await driver_step("attach a volume to", ask(sandbox, there=[place]))


async def _take(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Unmount a volume inside first, then in the sandbox's view, where the kernel refuses if the volume is in use."""
    sandbox, instance = supervisor.sandbox, supervisor.sandbox.require_instance()
    place = [mount.path, f"{instance.hub}/{mount.slot}", f"{instance.hub}/{MOST_MOUNTS}"]
    if mount.slot is None:
        raise InternalError(f"Volume {mount.volume} has no slot in sandbox {sandbox.id}.")
    away = Change(without=(mount.slot,))
    for rounds in ROUNDS:
        with contextlib.suppress(ConflictError):  # the first attempt fails because the guest still has the volume mounted
            return await driver_step("detach a volume from", instance.configure(away))
        response = await driver_step("detach a volume from", ask(sandbox, free=[[*place, rounds]]))
        if response.get("used"):
            raise _used(sandbox, mount)
    try:
        await driver_step("detach a volume from", instance.configure(away))
    except ConflictError as error:
        raise _used(sandbox, mount) from error


async def _undo(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Detach a volume after a failed attach. A volume in use stays attached. If the result is unknown, the volume stays moving."""
    sandbox = supervisor.sandbox
    if sandbox.end_requested.is_set():
        return
    try:
        await _take(supervisor, mount)
    except SandlotError as error:
        _log.warning("volume.not_detached", sandbox=sandbox.id, volume=mount.volume, path=mount.path, error=str(error))
        _become(sandbox, mount, replace(mount, moving=not isinstance(error, ConflictError)))
    else:
        _become(sandbox, mount, None)
        supervisor.dependencies.volumes.release(sandbox.id, mount.volume)


def _used(sandbox: Sandbox, mount: VolumeMount) -> ConflictError:
    return ConflictError(
        f"The volume at {mount.path} is in use inside sandbox {sandbox.id}.",
        code=ErrorCode.CONFLICT,
        hint="End the processes that have files of the volume open or work in it, or kill the sandbox; then detach the volume again.",
        fields={"sandbox": sandbox.id, "volume": mount.volume, "path": mount.path},
    )


def _moving(sandbox: Sandbox) -> list[VolumeMount]:
    return [mount for mount in sandbox.spec.volumes if mount.moving]


def _become(sandbox: Sandbox, mount: VolumeMount, now: VolumeMount | None) -> None:
    """Replace a volume in the spec of the sandbox, or remove it."""
    kept = (one if one.volume != mount.volume else now for one in sandbox.spec.volumes)
    sandbox.spec = replace(sandbox.spec, volumes=tuple(one for one in kept if one is not None))


def _check_place(sandbox: Sandbox, requested: VolumeMount) -> None:
    """Refuse a volume that conflicts with the volumes of the sandbox."""
    has = sandbox.spec.volumes
    same = next((one for one in has if one.volume == requested.volume), None)
    if same is not None:
        message, hint = f"Sandbox {sandbox.id} has this volume already, at {same.path}.", "Detach it first."
    elif len(has) >= MOST_MOUNTS:
        message, hint = f"Sandbox {sandbox.id} has {len(has)} volumes, and may have no more.", "Detach one first."
    else:
        try:
            replace(sandbox.spec, volumes=(*has, requested))
        except InvalidRequestError as error:
            message, hint = error.message, error.hint
        else:
            return
    raise ConflictError(message, code=ErrorCode.CONFLICT, hint=hint, fields={"sandbox": sandbox.id, "path": requested.path})


def found(sandbox: Sandbox, which: str) -> VolumeMount:
    """Return a volume of a sandbox by its path, name or id.

    Raises:
        NotFoundError: ``volume_not_found``: the sandbox has no such volume.
    """
    there = next((one for one in sandbox.spec.volumes if which in {one.path, one.volume} or (which and which == one.asked)), None)
    if there is None:
        raise NotFoundError(
            f"Sandbox {sandbox.id} has no volume {'at ' if which.startswith('/') else ''}{which[:64]!r}.",
            code=ErrorCode.VOLUME_NOT_FOUND,
            hint="Get the sandbox to see its volumes and their paths.",
            fields={"sandbox": sandbox.id, "volume": which[:256]},
        )
    return there


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
        """Attach a volume to a sandbox, which is resumed if it is suspended. Does nothing if the sandbox has the volume in this way already.

        Args:
            sandbox_id: Id of the sandbox.
            principal: Caller. The volume belongs to the owner of the sandbox.
            mount: The volume, by name or id, and its path.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``.
            UnsupportedError: The isolation cannot attach volumes, or the path cannot be created in the image.
            ConflictError: The path or the volume is in use in this sandbox, the sandbox has the maximum of volumes, or is being forked or written to
                a snapshot; ``sandbox_paused``.
            HostError: The host cannot mount the volume, or the change cannot be recorded; nothing is attached.
            SandboxEndedError: The sandbox has ended.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        owner = principal if sandbox.owner == principal.owner else replace(principal, owner=sandbox.owner, operator=False)
        self._volumes.resolve(owner, (mount,))  # before anything is resumed for it
        await self._check(sandbox)
        await self._ordered(sandbox, functools.partial(attach, principal=owner, mount=mount))
        return sandbox

    async def detach(self, sandbox_id: str, principal: Principal, which: str) -> Sandbox:
        """Detach a volume from a sandbox, which is resumed if it is suspended. The contents of the volume stay.

        Args:
            sandbox_id: Id of the sandbox.
            principal: Caller.
            which: Path, name or id of the volume.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``: the sandbox has no such volume.
            UnsupportedError: The isolation cannot detach volumes.
            ConflictError: A process inside uses the volume, or the sandbox is being forked or written to a snapshot; ``sandbox_paused``.
            HostError: The host cannot unmount the volume, or the change cannot be recorded; the volume stays attached.
            SandboxEndedError: The sandbox has ended.
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
                    f"Isolation {sandbox.spec.isolation!r} cannot change the volumes of a running sandbox: {can.why_not(ability)}.",
                    code=ErrorCode.UNSUPPORTED,
                    hint="Name the volumes when the sandbox is created.",
                    fields={"ability": str(ability)},
                )

    async def _ordered(self, sandbox: Sandbox, work: Operation[None]) -> None:
        await sandbox.wait_reachable()
        async with sandbox.change_lock:
            await sandbox.operations.submit(work)
        sandbox.activity.touch()
