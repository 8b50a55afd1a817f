"""Mounts: mount the volumes of a new sandbox, and attach volumes to a running sandbox or detach them from it.

The host mounts a volume once, for all sandboxes that have it. The driver makes the volume visible to a sandbox. If the runtime cannot mount the
volume at its path in the sandbox, the guest mounts the volume there, as root of the sandbox.

Invariants:
- The volumes of a new sandbox are mounted before the response to the create request. A sandbox that is restored from a snapshot may still have the
  volumes of the source mounted. These volumes are unmounted first.
- Attaching a volume, detaching a volume, and finishing an interrupted attachment or detachment are operations (:mod:`sandlot.core.operations`), so
  no other operation changes the sandbox meanwhile.
- An attachment or detachment is recorded before it begins: ``VolumeMount.changing`` marks the volume as *moving*. The result is recorded before the
  response. If the service is killed in between, the next service attaches the moving volume or, if this fails, detaches it. If the guest or the store
  fails, the next attach, detach, resume, fork or snapshot does the same.
- A volume cannot be deleted while a request to attach it is in progress, or while a sandbox has it.
- A volume is detached only if no process in the sandbox has a file of the volume open or mapped, or has its working directory on the volume. The
  guest checks this first, then the host's kernel. A volume that is in use stays attached.
- No volume is attached to a sandbox or detached from it while a fork or a snapshot needs the volumes of the sandbox unchanged.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from sandlot.core.admission_controller import SetupStep
from sandlot.core.execution import helpers
from sandlot.core.lifecycle.supervisor import SandboxSupervisor
from sandlot.core.operations import Operation
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.drivers import Drivers, driver_step
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes.manager import VolumeManager
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, InternalError, InvalidRequestError, NotFoundError, SandlotError, UnsupportedError
from sandlot.model.ports import Change, DriverCapability
from sandlot.model.specs import MAX_VOLUMES, User, VolumeMount, placed, slots
from sandlot.model.states import State
from sandlot.protocol.helpers import VOLUMES


def mount_step(to_unmount: Sequence[VolumeMount], to_mount: Sequence[VolumeMount]) -> SetupStep:
    """Return the setup step that mounts volumes inside a new sandbox.

    Args:
        to_unmount: Volumes that are still mounted in the restored memory. They are unmounted first.
        to_mount: Volumes to mount.
    """

    async def show(sandbox: Sandbox) -> None:
        hub = None if sandbox.instance is None else sandbox.instance.hub
        if hub is None:
            return
        places = [[f"{hub}/{slot}", mount.path, mount.read_only] for slot, mount in slots(to_mount)]
        await ask(sandbox, unbind=[mount.path for mount in to_unmount], bind=places)

    return show


async def ask(sandbox: Sandbox, **request: object) -> Mapping[str, Any]:
    """Run the helper program that mounts and unmounts volumes inside a sandbox, and return its result.

    Args:
        sandbox: The sandbox.
        request: Request to the program: the lists ``unbind`` (paths to unmount, even if they are in use), ``unbind_if_unused`` (volumes to unmount
            if they are not in use) and ``bind`` (volumes to mount).
    """
    helper = await helpers.start(sandbox, VOLUMES, {"unbind": [], "bind": [], **request}, user=User.ROOT)
    try:
        return await helper.result()
    finally:
        helper.close()


WHAT: Final = "volumes"
"""Name of the changed property in the event that records an update of a sandbox."""
ROUNDS: Final = (4, 8, 24)
"""Number of rounds in each successive attempt to detach a volume. In a round, the sandbox's kernel drops unused files and folders from its caches.
Several rounds are needed, because a folder is dropped only after the files in it."""
_log = structlog.get_logger("sandlot.core")


@contextlib.asynccontextmanager
async def pin_mounts(sandbox: Sandbox) -> AsyncIterator[None]:
    """Keep the volumes of a sandbox unchanged during the body of the ``async with`` block, which forks the sandbox or takes a snapshot.

    Raises:
        ConflictError: A volume was not completely attached or detached, and the change cannot be completed now.
    """
    if _moving(sandbox):
        await sandbox.operations.submit(settle)  # runs after the operations that are in progress
    if _moving(sandbox):
        raise ConflictError(
            f"A volume of sandbox {sandbox.id} was not completely attached or detached.",
            hint="Resume the sandbox if it is suspended, and retry.",
            fields={"sandbox": sandbox.id},
        )
    sandbox.mount_pins += 1
    try:
        yield
    finally:
        sandbox.mount_pins -= 1


async def settle(supervisor: SandboxSupervisor) -> None:
    """Finish interrupted attachments and detachments: attach each volume that is marked as *moving* or, if this fails, detach the volume."""
    sandbox = supervisor.sandbox
    if not _moving(sandbox) or sandbox.state is not State.RUNNING or sandbox.end_requested.is_set():
        return
    for mount in _moving(sandbox):
        try:
            await _put(supervisor, mount)
        except SandlotError as error:
            if sandbox.end_requested.is_set():
                return
            _log.warning("volume.not_attached", sandbox=sandbox.id, volume=mount.volume, path=mount.path, error=str(error))
            await _undo(supervisor, mount)
        else:
            _become(sandbox, mount, replace(mount, changing=False))
    await supervisor.dependencies.recorder.save_eventually(sandbox)


async def attach(supervisor: SandboxSupervisor, *, principal: Principal, mount: VolumeMount) -> None:
    """Attach a volume to a sandbox. Do nothing if the sandbox has the volume at this path already, with the same ``read_only``.

    Args:
        supervisor: Supervisor of the sandbox. A suspended sandbox is resumed.
        principal: Owner of the volume.
        mount: Name or id of the volume, its path inside the sandbox, and ``read_only``.
    """
    sandbox = supervisor.sandbox
    await _awake(supervisor)
    has = sandbox.spec.volumes
    (requested,) = supervisor.dependencies.volumes.resolve(principal, (mount,))
    if any((one.volume, one.path, one.read_only) == (requested.volume, requested.path, requested.read_only) for one in has):
        return
    _check_place(sandbox, requested)
    *_, moving = placed((*has, replace(requested, slot=None, changing=True)))
    sandbox.spec = replace(sandbox.spec, volumes=(*has, moving))
    try:
        await supervisor.dependencies.recorder.save(sandbox)
        await _put(supervisor, moving)
        _become(sandbox, moving, replace(moving, changing=False))
        await supervisor.dependencies.recorder.save_update(sandbox, WHAT)
    except BaseException:
        if not sandbox.end_requested.is_set():
            await _undo(supervisor, moving)
            await supervisor.dependencies.recorder.save_eventually(sandbox)
        raise
    _log.info("volume.attached", sandbox=sandbox.id, volume=requested.volume, path=requested.path, read_only=requested.read_only)


async def detach(supervisor: SandboxSupervisor, *, which: str) -> None:
    """Detach a volume from a sandbox.

    Args:
        supervisor: Supervisor of the sandbox. A suspended sandbox is resumed.
        which: Path, name or id of the volume.
    """
    sandbox = supervisor.sandbox
    await _awake(supervisor)
    mount = found(sandbox, which)
    moving = replace(mount, changing=True)
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
    supervisor.dependencies.volume_mounter.release(supervisor.allocation, mount.volume)
    _log.info("volume.detached", sandbox=sandbox.id, volume=mount.volume, path=mount.path)


async def _awake(supervisor: SandboxSupervisor) -> None:
    """Prepare a sandbox for a change of its volumes: resume the sandbox if it is suspended, and finish interrupted attachments and detachments.

    Raises:
        ConflictError: A fork or a snapshot needs the volumes unchanged, or the sandbox is suspended and its ``auto_resume`` is not set.
    """
    sandbox = supervisor.sandbox
    await supervisor.ensure_running()
    await settle(supervisor)
    if sandbox.mount_pins:
        raise ConflictError(
            f"Sandbox {sandbox.id} is being forked or written to a snapshot; its volumes cannot be changed meanwhile.",
            hint="Retry when the fork or the snapshot is complete.",
            fields={"sandbox": sandbox.id},
        )


async def _put(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Mount a volume on the host, make the volume visible to the sandbox, and mount the volume at its path in the sandbox."""
    sandbox = supervisor.sandbox
    attachments = await driver_step("attach a volume to", supervisor.dependencies.volume_mounter.attach(supervisor.allocation, (mount,)))
    instance = sandbox.require_instance()
    await driver_step("attach a volume to", instance.configure(Change(volumes=attachments)))
    place = [f"{instance.hub}/{mount.slot}", mount.path, mount.read_only]
    await driver_step("attach a volume to", ask(sandbox, bind=[place]))


async def _take(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Unmount a volume inside the sandbox, then hide the volume from the sandbox. The host's kernel refuses this if the volume is in use.

    Raises:
        ConflictError: The volume is in use inside the sandbox.
    """
    sandbox, instance = supervisor.sandbox, supervisor.sandbox.require_instance()
    place = [mount.path, f"{instance.hub}/{mount.slot}", f"{instance.hub}/{MAX_VOLUMES}"]
    if mount.slot is None:
        raise InternalError(f"Volume {mount.volume} of sandbox {sandbox.id} cannot be detached: it has no slot.")
    away = Change(without=(mount.slot,))
    for rounds in ROUNDS:
        with contextlib.suppress(ConflictError):  # the first attempt fails if the volume is still mounted in the sandbox
            return await driver_step("detach a volume from", instance.configure(away))
        response = await driver_step("detach a volume from", ask(sandbox, unbind_if_unused=[[*place, rounds]]))
        if response.get("used"):
            raise _used(sandbox, mount)
    try:
        await driver_step("detach a volume from", instance.configure(away))
    except ConflictError as error:
        raise _used(sandbox, mount) from error


async def _undo(supervisor: SandboxSupervisor, mount: VolumeMount) -> None:
    """Detach a volume whose attachment failed. A volume in use stays attached. If the result is unknown, the volume stays marked as *moving*."""
    sandbox = supervisor.sandbox
    try:
        await _take(supervisor, mount)
    except SandlotError as error:
        _log.warning("volume.not_detached", sandbox=sandbox.id, volume=mount.volume, path=mount.path, error=str(error))
        _become(sandbox, mount, replace(mount, changing=not isinstance(error, ConflictError)))
    else:
        _become(sandbox, mount, None)
        supervisor.dependencies.volume_mounter.release(supervisor.allocation, mount.volume)


def _used(sandbox: Sandbox, mount: VolumeMount) -> ConflictError:
    return ConflictError(
        f"The volume at {mount.path} is in use inside sandbox {sandbox.id}.",
        hint="End the processes that have open files or a working directory on the volume, then detach the volume again.",
        fields={"sandbox": sandbox.id, "volume": mount.volume, "path": mount.path},
    )


def _moving(sandbox: Sandbox) -> list[VolumeMount]:
    return [mount for mount in sandbox.spec.volumes if mount.changing]


def _become(sandbox: Sandbox, mount: VolumeMount, now: VolumeMount | None) -> None:
    """Replace a volume in the spec of the sandbox. If ``now`` is None, remove the volume."""
    kept = (one if one.volume != mount.volume else now for one in sandbox.spec.volumes)
    sandbox.spec = replace(sandbox.spec, volumes=tuple(one for one in kept if one is not None))


def _check_place(sandbox: Sandbox, requested: VolumeMount) -> None:
    """Refuse to attach a volume if the sandbox has the volume or ``MAX_VOLUMES`` volumes already, or if the path conflicts with another volume."""
    has = sandbox.spec.volumes
    same = next((one for one in has if one.volume == requested.volume), None)
    if same is not None:
        message, hint = f"Sandbox {sandbox.id} already has volume {same.volume} at {same.path}.", "Detach the volume first."
    elif len(has) >= MAX_VOLUMES:
        message, hint = f"Sandbox {sandbox.id} has {len(has)} volumes, the maximum number.", "Detach a volume first."
    else:
        try:
            replace(sandbox.spec, volumes=(*has, requested))
        except InvalidRequestError as error:
            message, hint = error.message, error.hint
        else:
            return
    raise ConflictError(message, hint=hint, fields={"sandbox": sandbox.id, "path": requested.path})


def found(sandbox: Sandbox, which: str) -> VolumeMount:
    """Return a volume of a sandbox by its path, name or id.

    Raises:
        NotFoundError: The sandbox has no such volume; code ``volume_not_found``.
    """
    there = next((one for one in sandbox.spec.volumes if which in {one.path, one.volume} or (which and which == one.requested_as)), None)
    if there is None:
        raise NotFoundError(
            f"Sandbox {sandbox.id} has no volume {'at ' if which.startswith('/') else ''}{which[:64]!r}.",
            code=ErrorCode.VOLUME_NOT_FOUND,
            hint="Get the sandbox; its `volumes` lists the volumes and their paths.",
            fields={"sandbox": sandbox.id, "volume": which[:256]},
        )
    return there


class MountManager:
    """Attaches volumes to running sandboxes and detaches them."""

    def __init__(self, registry: SandboxRegistry, drivers: Drivers, volumes: VolumeManager) -> None:
        self._registry = registry
        self._drivers = drivers
        self._volumes = volumes

    async def attach(self, principal: Principal, sandbox_id: str, mount: VolumeMount) -> Sandbox:
        """Attach a volume to a sandbox. A suspended sandbox is resumed.

        Does nothing if the sandbox has the volume at this path already, with the same ``read_only``.

        Args:
            principal: Caller. The volume belongs to the owner of the sandbox.
            sandbox_id: Id of the sandbox.
            mount: Name or id of the volume, its path inside the sandbox, and ``read_only``.

        Raises:
            NotFoundError: The sandbox or the volume does not exist; code ``sandbox_not_found`` or ``volume_not_found``.
            UnsupportedError: The isolation cannot attach volumes, or the path cannot be created in the root filesystem.
            ConflictError: The sandbox has the volume at another path, has another volume at the path, has the maximum number of volumes, or is being
                forked or written to a snapshot. Or the sandbox is suspended and its ``auto_resume`` is not set; code ``sandbox_paused``.
            HostError: The host cannot mount the volume, or the change cannot be recorded; nothing is attached.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        owner = principal if sandbox.owner == principal.owner else replace(principal, owner=sandbox.owner, operator=False)
        self._volumes.resolve(owner, (mount,))  # a request for a missing volume must not resume the sandbox
        await self._check(sandbox)
        await self._submit(sandbox, functools.partial(attach, principal=owner, mount=mount))
        return sandbox

    async def detach(self, principal: Principal, sandbox_id: str, which: str) -> Sandbox:
        """Detach a volume from a sandbox. A suspended sandbox is resumed. The contents of the volume are kept.

        Args:
            principal: Caller.
            sandbox_id: Id of the sandbox.
            which: Path, name or id of the volume.

        Raises:
            NotFoundError: The sandbox does not exist or does not have the volume; code ``sandbox_not_found`` or ``volume_not_found``.
            UnsupportedError: The isolation cannot detach volumes.
            ConflictError: A process inside uses the volume, or the sandbox is being forked or written to a snapshot. Or the sandbox is suspended and
                its ``auto_resume`` is not set; code ``sandbox_paused``.
            HostError: The host cannot unmount the volume, or the change cannot be recorded; the volume stays attached.
        """
        sandbox = self._registry.find(sandbox_id, principal)
        await self._check(sandbox)
        found(sandbox, which)
        await self._submit(sandbox, functools.partial(detach, which=which))
        return sandbox

    async def _check(self, sandbox: Sandbox) -> None:
        if sandbox.end_requested.is_set() or sandbox.ended.is_set():
            raise sandbox.ended_error()
        can = await self._drivers.capabilities(sandbox.spec.isolation)
        for ability in (DriverCapability.VOLUMES, DriverCapability.CONFIGURE_VOLUMES):
            if not can.can(ability):
                raise UnsupportedError(
                    f"Isolation {sandbox.spec.isolation!r} cannot change the volumes of a running sandbox: {can.why_not(ability)}.",
                    hint="Create a sandbox with the volumes that are needed.",
                    fields={"ability": str(ability)},
                )

    async def _submit(self, sandbox: Sandbox, operation: Operation[None]) -> None:
        await sandbox.recovered.wait()
        await sandbox.operations.submit(operation)
        sandbox.activity.touch()
