"""Pause, resume, hibernate and wake a sandbox, write its memory image, and carry out its ``on_timeout``.

The public functions are operations (:mod:`sandlot.core.operations`): the supervisor of a sandbox runs one operation at a time.

Invariants:
- Before an operation begins, its transient state is recorded if this state has a different recovery than the current state. If the service is killed
  during the operation, the next service recovers the sandbox accordingly. The result is recorded before the response.
- After a failed operation the sandbox has the same state as before, with two exceptions: a sandbox that cannot be paused again keeps running, and a
  sandbox that cannot run again is ended.
- A hibernated sandbox exists only as its hibernation image, or as its files if it was hibernated without memory. Image and files are removed only
  after the store has recorded that the sandbox runs again. If both the instance of a sandbox and a hibernation image exist, the instance is used.
- No deadline of the guest passes while its sandbox is frozen. The deadline of a suspended sandbox is ``AdmissionPolicy.max_suspended_s`` after the
  suspension.
- The resources of a hibernated sandbox stay reserved until they are freed on the host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.core.files import overlay
from sandlot.core.lifecycle import mounts
from sandlot.core.lifecycle.start import FilesStart, MemoryImageStart, StartStrategy, reconnect_guest, wake_guest
from sandlot.core.lifecycle.supervisor import SandboxSupervisor, SupervisionDetachedError, SupervisionEndedError, guest_deadline_s
from sandlot.core.resources.drivers import STEP_TIMEOUT_S, driver_step
from sandlot.core.resources.reservations import PRESSURE_RETRY_AFTER_S, Purpose
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.network import local_domains
from sandlot.model.ports import DriverCapability, Exit, ExitReason, Instance, Resources
from sandlot.model.sandboxes import SAME
from sandlot.model.specs import OnTimeout
from sandlot.model.states import LIFECYCLE, SUSPENDED, State

QUIESCE_TIMEOUT_S = 30.0
"""Seconds that a guest has to quiesce. A guest that takes longer probably waits for a full pipe that nothing reads."""

UNWILLING_TIMEOUT_S = 1.0
"""Seconds that a guest has to respond before a pause that does not depend on the guest. A guest responds within some milliseconds."""

WRITE_TIMEOUT_S = 600.0
"""Seconds within which a memory image must be written: enough for 60 GB at 100 MB/s."""

EXPIRY_RETRY_S: Final = 60.0
"""Seconds until the next attempt to suspend a sandbox that could neither be hibernated nor paused at its deadline."""


_log = structlog.get_logger("sandlot.core")


async def pause(supervisor: SandboxSupervisor, *, waits_for_disk: bool = False) -> None:
    """Freeze a running sandbox. Does nothing if the sandbox is suspended already.

    Args:
        supervisor: Supervisor of the sandbox.
        waits_for_disk: True: the sandbox is resumed when the host's disk has room again (``disk_guard``). False: a sandbox that is paused for this
            reason stays paused from now on.

    Raises:
        UnsupportedError: The driver cannot pause sandboxes.
        HostError: The new state cannot be recorded; the sandbox keeps running.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    if sandbox.state is not State.RUNNING:
        if sandbox.waits_for_disk and not waits_for_disk:
            sandbox.waits_for_disk = False
            await dependencies.recorder.save_eventually(sandbox)
        return
    await _require(supervisor, DriverCapability.PAUSE, "be paused")
    instance = sandbox.require_instance()
    await _intend(supervisor, State.PAUSING)
    sandbox.waits_for_disk = waits_for_disk
    try:
        with sandbox.deadline.restored_on_error():
            sandbox.deadline.extend(dependencies.policy.max_suspended_s)
            if waits_for_disk:
                await _freeze_anyway(sandbox, instance)
            else:
                await _both(_freeze(sandbox, instance), dependencies.recorder.save(sandbox, "sandbox.paused", state=State.PAUSED))
    except BaseException as error:
        sandbox.waits_for_disk = False
        if not isinstance(error, SandboxEndedError) and not sandbox.end_requested.is_set():
            await _go_on(supervisor, instance)
        raise
    sandbox.become(State.PAUSED)
    if waits_for_disk:  # the database may be on the full disk; a service that finds the old record resumes the sandbox, and pauses it again
        await dependencies.recorder.save_eventually(sandbox, "sandbox.paused", reason="disk")
    _log.info("sandbox.paused", sandbox=sandbox.id)


async def resume(supervisor: SandboxSupervisor, timeout_s: float | None = SAME, *, disk_has_room: bool = False) -> None:
    """Thaw a paused sandbox, or wake a hibernated sandbox. A running sandbox only gets the new timeout.

    Args:
        supervisor: Supervisor of the sandbox.
        timeout_s: New timeout in seconds from now. None: no timeout. :data:`SAME`: the sandbox keeps its timeout.
        disk_has_room: True: the host's disk has room again. Does nothing if the sandbox does not wait for this.

    Raises:
        UnavailableError: The node has no room for the hibernated sandbox, which stays hibernated, or the sandbox waits for room on the host's disk;
            code ``busy``.
        HostError: The sandbox cannot be restored, or its new state cannot be recorded; the sandbox stays suspended.
    """
    sandbox = supervisor.sandbox
    if disk_has_room and not sandbox.waits_for_disk:
        return
    if sandbox.waits_for_disk and not disk_has_room:
        raise UnavailableError(
            f"Sandbox {sandbox.id} is paused until the disk of the host has room again.",
            code=ErrorCode.BUSY,
            hint="Retry later, or ask the operator to free space in the data directory.",
            fields={"sandbox": sandbox.id, "resource": "disk_bytes", "retry_after_s": PRESSURE_RETRY_AFTER_S},
        )
    was = sandbox.spec
    if timeout_s is None or timeout_s != SAME:
        sandbox.spec = replace(was, timeout_s=timeout_s)
    try:
        if sandbox.state is State.PAUSED:
            await _thaw(supervisor)
        elif sandbox.state is State.HIBERNATED:
            await _wake(supervisor)
        elif sandbox.spec is not was:
            await _restart_timeout(sandbox)
            await supervisor.dependencies.recorder.save_update(sandbox, "timeout")
    except BaseException:
        sandbox.spec = replace(sandbox.spec, timeout_s=was.timeout_s)
        raise
    await mounts.settle(supervisor)


async def hibernate(supervisor: SandboxSupervisor) -> None:
    """Write the memory and files of a sandbox to disk, then release the memory. Does nothing if the sandbox is hibernated already.

    Raises:
        UnsupportedError: The driver cannot write the memory of a sandbox.
        LimitError: The owner has too many hibernated sandboxes; code ``quota_exceeded``. Nothing was changed.
        UnavailableError: The node is full, and the hibernation needs more than the suspend reserve; code ``busy``. Nothing was changed.
        SandlotError: The hibernation image cannot be written, or the operation cannot be recorded. The sandbox has the same state as before.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    if sandbox.state is State.HIBERNATED:
        return
    await _require(supervisor, DriverCapability.SNAPSHOT, "be hibernated")
    instance, was = sandbox.require_instance(), sandbox.state
    with dependencies.admission.admit_hibernation(sandbox):
        # The headroom is reserved before anything is changed: if even the suspend reserve is too small, the sandbox goes on as before.
        async with supervisor.allocation.headroom(await instance.snapshot_headroom(), is_hibernation=True) as headroom_bytes:
            await _intend(supervisor, State.HIBERNATING)
            await dependencies.memory_images.remove(sandbox.id)  # from here on, an image that exists was written by this operation
            size_bytes = await _write_hibernation_image(supervisor, instance, was, headroom_bytes)
        sandbox.waits_for_disk = False
        sandbox.deadline.extend(dependencies.policy.max_suspended_s)
        sandbox.become(State.HIBERNATED)
    # If this record cannot be saved, the next service finds the recorded intent and a complete image, and keeps the sandbox hibernated.
    await dependencies.recorder.save_eventually(sandbox, "sandbox.hibernated", size_bytes=size_bytes)
    supervisor.release_memory(size_bytes)
    _log.info("sandbox.hibernated", sandbox=sandbox.id, size_bytes=size_bytes)


async def hibernate_files(supervisor: SandboxSupervisor) -> None:
    """Write the files of a sandbox to disk, then end its processes. Its next start is a boot. Does nothing if the sandbox is hibernated already.

    New requests wait meanwhile. What programs write to a file after it was read is lost.

    Raises:
        LimitError: The owner has too many hibernated sandboxes (``quota_exceeded``), the files take too much space (``limit_exceeded``), or the
            host's disk is full (``node_disk_full``). Nothing was changed.
        SandlotError: The files cannot be written, or the operation cannot be recorded. The sandbox keeps running.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    if sandbox.state is State.HIBERNATED:
        return
    if sandbox.state is State.PAUSED:
        await resume(supervisor)
    with dependencies.admission.admit_hibernation(sandbox):
        await _intend(supervisor, State.HIBERNATING)
        try:
            size_bytes = await _write_files(supervisor)
            supervisor.check_end()
        except BaseException:
            await dependencies.memory_images.remove(sandbox.id)
            if not sandbox.end_requested.is_set():
                sandbox.become(State.RUNNING)
                await dependencies.recorder.save_eventually(sandbox)
            raise
        sandbox.deadline.extend(dependencies.policy.max_suspended_s)
        sandbox.become(State.HIBERNATED)
    # If this record cannot be saved, the next service finds the recorded intent: it adopts the instance, or keeps the sandbox hibernated.
    await dependencies.recorder.save_eventually(sandbox, "sandbox.hibernated", size_bytes=size_bytes)
    allocation = supervisor.allocation
    supervisor.release_memory(size_bytes)
    await allocation.release_soon(STEP_TIMEOUT_S)  # its processes are dead before the response, and before a wake could be interrupted
    _log.info("sandbox.hibernated", sandbox=sandbox.id, size_bytes=size_bytes, memory=False)


async def _write_files(supervisor: SandboxSupervisor) -> int:
    """Write the overlay of a sandbox, and return its size in bytes."""
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    link, usage = _link(sandbox), await sandbox.require_instance().usage()
    needed = Resources(memory_bytes=0, disk_bytes=max(1, usage.disk_bytes), pids=0)
    room = await dependencies.reservations.make_room(needed)
    reservation = dependencies.reservations.reserve(Purpose.SNAPSHOT, needed, room, owner=sandbox.owner)
    try:
        await dependencies.memory_images.remove(sandbox.id)
        await dependencies.memory_images.make(sandbox.id)
        template = await dependencies.templates.resolve(sandbox.spec.template, sandbox.spec.isolation)
        return await overlay.pack_overlay(sandbox, dependencies.memory_images.overlay(sandbox.id), template.root, link)
    finally:
        reservation.release()


async def _write_hibernation_image(supervisor: SandboxSupervisor, instance: Instance, was: State, headroom_bytes: int) -> int:
    """Write the hibernation image, which ends the processes of the sandbox, and return its size in bytes. A failure leaves the sandbox in ``was``."""
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    waits_for_disk = sandbox.waits_for_disk
    try:
        if was is State.PAUSED:
            await driver_step("resume", instance.resume())
        await (await _linked(supervisor)).quiesce(QUIESCE_TIMEOUT_S)
        into = await dependencies.memory_images.make(sandbox.id)
        writing = instance.snapshot(into, keep_running=False, headroom_bytes=headroom_bytes)
        return await driver_step("hibernate", writing, WRITE_TIMEOUT_S)
    except BaseException as error:
        if sandbox.end_requested.is_set() or (isinstance(error, SandboxEndedError) and sandbox.link is not None):
            raise  # the supervisor notices the end of the sandbox because the link is lost
        if was is State.PAUSED:
            sandbox.deadline.extend(sandbox.spec.timeout_s)  # the sandbox runs until it is paused again below
        if await _go_on(supervisor, instance) or not await dependencies.memory_images.exists(sandbox.id):
            await dependencies.memory_images.remove(sandbox.id)
            if was is State.PAUSED:
                with contextlib.suppress(SandlotError):
                    await pause(supervisor, waits_for_disk=waits_for_disk)
            raise
        # The driver exceeded the timeout but completed the hibernation image. The sandbox exists only as this image, so it is hibernated.
        return await dependencies.memory_images.size_bytes(sandbox.id)


async def write_image(supervisor: SandboxSupervisor, into: Path, *, durable: bool = True) -> int:
    """Write a memory image of a sandbox, with its files, into a new folder, and return its size in bytes. The sandbox keeps its state.

    A paused sandbox is thawed for the image. If it cannot be frozen again, it keeps running, even if the image was written; see :func:`_pause_again`.

    Args:
        supervisor: Supervisor of a running, paused or hibernated sandbox.
        into: Folder to create.
        durable: True if the image must survive a loss of power: it is synced to disk.

    Raises:
        UnsupportedError: The driver cannot write the memory of a sandbox.
        ConflictError: The sandbox is hibernated without its memory.
        UnavailableError: The node has no room for the headroom of the snapshot now; code ``busy``. Nothing was changed.
        SandlotError: The image cannot be written. The sandbox keeps its state.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    await _require(supervisor, DriverCapability.SNAPSHOT, "be written to a snapshot")
    if sandbox.state is State.HIBERNATED:
        if not await dependencies.memory_images.exists(sandbox.id):
            raise ConflictError(
                f"Sandbox {sandbox.id} was hibernated without its memory.", hint="Resume the sandbox first.", fields={"sandbox": sandbox.id}
            )
        return await dependencies.memory_images.copy(dependencies.memory_images.image(sandbox.id), into)
    instance, was = sandbox.require_instance(), sandbox.state
    async with supervisor.allocation.headroom(await instance.snapshot_headroom()) as headroom_bytes:
        await _intend(supervisor, State.SNAPSHOTTING)
        try:
            if was is State.PAUSED:
                await driver_step("resume", instance.resume())
            async with _armed(sandbox, await _linked(supervisor), stays=was is State.PAUSED):
                writing = instance.snapshot(into, keep_running=True, durable=durable, headroom_bytes=headroom_bytes)
                return await driver_step("write", writing, WRITE_TIMEOUT_S)
        finally:
            if not supervisor.has_exited and not sandbox.end_requested.is_set():
                if was is State.PAUSED:
                    await _pause_again(supervisor, instance)
                else:
                    sandbox.become(was)


async def keep_hibernated(supervisor: SandboxSupervisor) -> None:
    """Recover a sandbox that an earlier service hibernated or was about to wake, and keep the sandbox hibernated.

    The method checks only that the hibernation image or the files exist. An image that cannot be restored now, because a build of the runtime is
    missing, may be restorable later.

    Raises:
        ConflictError: Both are missing, so the sandbox is lost.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    if not await dependencies.memory_images.exists(sandbox.id) and not await dependencies.memory_images.has_overlay(sandbox.id):
        raise ConflictError(f"Sandbox {sandbox.id} cannot be resumed: its hibernation image is missing.", code=ErrorCode.SNAPSHOT_UNUSABLE)
    if sandbox.state is not State.HIBERNATED:
        sandbox.become(State.HIBERNATED)
    supervisor.release_memory(await dependencies.memory_images.size_bytes(sandbox.id))


async def expire(supervisor: SandboxSupervisor) -> None:
    """Carry out the ``on_timeout`` of a sandbox whose deadline has passed.

    A suspended sandbox is ended. A sandbox that can neither be hibernated nor paused keeps running, so that its data is not lost. The action is tried
    again after ``EXPIRY_RETRY_S``.
    """
    sandbox = supervisor.sandbox
    operations = {
        OnTimeout.HIBERNATE: (hibernate, pause),
        OnTimeout.HIBERNATE_FILES: (hibernate_files, pause),
        OnTimeout.PAUSE: (pause,),
        OnTimeout.KILL: (),
    }[sandbox.spec.on_timeout]
    if sandbox.state in SUSPENDED:
        sandbox.request_end(Exit(ExitReason.KILLED, "it was suspended for as long as the operator allows"))
    elif not operations:
        sandbox.request_end(Exit(ExitReason.KILLED, "its timeout passed"))
    else:
        for operation in operations:
            try:
                await operation(supervisor)
            except SandlotError as error:
                _log.warning("sandbox.not_suspended", sandbox=sandbox.id, on_timeout=str(sandbox.spec.on_timeout), error=str(error))
            else:
                return
        with contextlib.suppress(SandlotError):  # a guest that does not respond ends the sandbox at its old deadline
            await driver_step("go on", _link(sandbox).set_deadline(guest_deadline_s(EXPIRY_RETRY_S)))
        sandbox.deadline.extend(EXPIRY_RETRY_S)
        sandbox.activity.touch()


async def _pause_again(supervisor: SandboxSupervisor, instance: Instance) -> None:
    """Freeze a paused sandbox again after it was thawed for a snapshot.

    If the sandbox cannot be frozen, its processes run, so its state must not be paused. The sandbox is resumed instead: its timeout starts again, and
    its owner gets the event ``sandbox.resumed``.
    """
    sandbox = supervisor.sandbox
    try:
        await driver_step("pause", instance.pause())
    except SandboxEndedError:
        return
    except SandlotError as error:
        _log.warning("sandbox.repause_failed", sandbox=sandbox.id, error=str(error))
        sandbox.deadline.extend(sandbox.spec.timeout_s)
        await _go_on(supervisor, instance, "sandbox.resumed")
        await mounts.settle(supervisor)
    else:
        sandbox.become(State.PAUSED)


async def _thaw(supervisor: SandboxSupervisor) -> None:
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    instance, waits_for_disk = sandbox.require_instance(), sandbox.waits_for_disk
    await driver_step("resume", instance.resume())
    try:
        with sandbox.deadline.restored_on_error():
            link = await _linked(supervisor)
            supervisor.check_end()
            sandbox.deadline.extend(sandbox.spec.timeout_s)
            sandbox.waits_for_disk = False
            reason = {"reason": "disk"} if waits_for_disk else {}
            saving = dependencies.recorder.save(sandbox, "sandbox.resumed", state=State.RUNNING, **reason)
            await _both(_goes_on(sandbox, link), saving)
    except BaseException as error:
        sandbox.waits_for_disk = waits_for_disk
        if not isinstance(error, SandboxEndedError) and not sandbox.end_requested.is_set():
            with contextlib.suppress(SandlotError):
                await _freeze_anyway(sandbox, instance)
            await dependencies.recorder.save_eventually(sandbox)
        raise
    sandbox.become(State.RUNNING)
    sandbox.activity.touch()
    _log.info("sandbox.resumed", sandbox=sandbox.id)


async def _wake(supervisor: SandboxSupervisor) -> None:
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    has_memory = await dependencies.memory_images.exists(sandbox.id)
    images = dependencies.memory_images
    strategy: StartStrategy = MemoryImageStart(images.image(sandbox.id)) if has_memory else FilesStart(images.overlay(sandbox.id))
    await supervisor.reserve_again()
    supervisor.check_end()
    sandbox.become(State.WAKING)
    try:
        with sandbox.deadline.restored_on_error():
            await strategy.start(supervisor)
            await _restart_timeout(sandbox)
            supervisor.check_end()
            await dependencies.recorder.save(sandbox, "sandbox.woken", state=State.RUNNING)
    except (SupervisionEndedError, SupervisionDetachedError):
        raise
    except BaseException:
        if sandbox.end_requested.is_set():
            raise
        sandbox.become(State.HIBERNATED)
        supervisor.release_memory(await dependencies.memory_images.size_bytes(sandbox.id))
        await dependencies.recorder.save_eventually(sandbox)
        raise
    sandbox.become(State.RUNNING)
    _notify_wake(supervisor)
    await dependencies.memory_images.remove(sandbox.id)
    _log.info("sandbox.woken", sandbox=sandbox.id)


async def _require(supervisor: SandboxSupervisor, ability: DriverCapability, what: str) -> None:
    can = await supervisor.dependencies.drivers.capabilities_for(supervisor.sandbox.spec.isolation, ability)
    if not can.can(ability):
        reason = can.why_not(ability)
        raise UnsupportedError(
            f"This sandbox cannot {what}: {reason}.",
            hint="Use another isolation; 'sandlot doctor' lists what each isolation can do on this host.",
            fields={"reason": reason, "isolation": supervisor.sandbox.spec.isolation},
        )


async def _intend(supervisor: SandboxSupervisor, state: State) -> None:
    """Change the state of a sandbox before an operation. Record the new state first if its recovery differs from that of the current state.

    Raises:
        SandlotError: The store refused the record; the state was not changed.
    """
    sandbox = supervisor.sandbox
    supervisor.check_end()
    if LIFECYCLE[state].recovery is not LIFECYCLE[sandbox.state].recovery:
        await supervisor.dependencies.recorder.save(sandbox, state=state)
        supervisor.check_end()
    sandbox.become(state)


@contextlib.asynccontextmanager
async def _armed(sandbox: Sandbox, link: Link, *, stays: bool) -> AsyncIterator[None]:
    """Stop the guest's clock while the body of the ``async with`` block runs. Start the clock again afterwards, unless ``stays`` is True."""
    await driver_step("quiesce", link.checkpoint(armed=True))
    try:
        yield
    finally:
        if not stays and not sandbox.end_requested.is_set():
            with contextlib.suppress(SandboxEndedError):
                await driver_step("go on", link.checkpoint(armed=False))


async def _both(work: Coroutine[Any, Any, None], record: Coroutine[Any, Any, None]) -> None:
    """Do the work and write its record concurrently. If one of the two fails, wait for the other one, then raise the error.

    If the service is killed when only the record has been written, the next service does the work.
    """
    for result in await asyncio.gather(work, record, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _freeze(sandbox: Sandbox, instance: Instance) -> None:
    # ``armed=True`` stops the guest's clock until the request ``armed=False``, so that no timeout in the guest expires during the pause.
    await driver_step("quiesce", _link(sandbox).checkpoint(armed=True))
    await driver_step("pause", instance.pause())


async def _freeze_anyway(sandbox: Sandbox, instance: Instance) -> None:
    """Freeze a sandbox although its guest may not respond. The timeouts inside of such a guest go on during the pause."""
    try:
        await driver_step("quiesce", _link(sandbox).checkpoint(armed=True), UNWILLING_TIMEOUT_S)
    except SandboxEndedError:
        raise
    except SandlotError as error:
        _log.warning("sandbox.not_quiesced", sandbox=sandbox.id, error=str(error))
    await driver_step("pause", instance.pause())


async def _goes_on(sandbox: Sandbox, link: Link) -> None:
    # The guest gets the requests below in this order. Each request is sent without waiting for the response to the one before.
    await asyncio.gather(
        driver_step("go on", link.checkpoint(armed=False)),
        driver_step("go on", link.set_deadline(guest_deadline_s(sandbox.spec.timeout_s))),
        # An update of a paused sandbox changes the policy without a request to the guest.
        driver_step("go on", link.set_local_domains(local_domains(sandbox.spec.network))),
    )


async def _restart_timeout(sandbox: Sandbox) -> None:
    """Start the timeout of a sandbox again, first in the guest and then in the service."""
    await driver_step("go on", _link(sandbox).set_deadline(guest_deadline_s(sandbox.spec.timeout_s)))
    sandbox.deadline.extend(sandbox.spec.timeout_s)
    sandbox.activity.touch()


async def _linked(supervisor: SandboxSupervisor) -> Link:
    """Return the link to the guest. If there is no open link, connect: a sandbox that an earlier service paused has no link yet."""
    sandbox = supervisor.sandbox
    if sandbox.link is None or sandbox.link.closed:
        supervisor.allocation.link = await driver_step("answer", reconnect_guest(supervisor))
    return _link(sandbox)


async def _go_on(supervisor: SandboxSupervisor, instance: Instance, event: str | None = None) -> bool:
    """Resume a sandbox after a failed operation. If the sandbox lives but cannot be resumed, request its end.

    Return False if the sandbox had already ended. If ``event`` is None, clients get no event: they do not learn that the sandbox was not running.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    try:
        await driver_step("resume", instance.resume())
        if sandbox.link is not None and sandbox.link.asleep:
            await driver_step("answer", wake_guest(supervisor, sandbox.link))
        else:
            try:
                link = await _linked(supervisor)
                await driver_step("go on", link.checkpoint(armed=False))
                await driver_step("go on", link.set_deadline(guest_deadline_s(sandbox.deadline.remaining_s())))
            except UnavailableError:  # the guest did not quiesce in time, so the link accepts no more calls and is replaced
                if sandbox.link is not None:
                    await sandbox.link.aclose()
                await _linked(supervisor)
    except SandboxEndedError:
        if sandbox.link is None:  # without a link, the supervisor does not notice the end of the sandbox
            sandbox.request_end(Exit(ExitReason.CRASHED, "its guest cannot be reached"))
        return False
    except SandlotError as error:
        sandbox.request_end(Exit(ExitReason.CRASHED, f"it could not be made to run again: {error.message}"))
        return True
    sandbox.become(State.RUNNING)
    sandbox.waits_for_disk = False
    sandbox.activity.touch()
    _notify_wake(supervisor)
    await dependencies.recorder.save_eventually(sandbox, event)
    return True


def _notify_wake(supervisor: SandboxSupervisor) -> None:
    for listener in supervisor.dependencies.on_wake:
        listener(supervisor.sandbox)


def _link(sandbox: Sandbox) -> Link:
    if sandbox.link is None:
        raise sandbox.ended_error()
    return sandbox.link
