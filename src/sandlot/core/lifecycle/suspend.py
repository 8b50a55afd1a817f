"""Pause, resume, hibernate and wake a sandbox, write its memory image, and carry out its ``on_timeout``.

Each function is an operation (:mod:`sandlot.core.operations`): the sandbox's supervisor runs operations one at a time.

Invariants:
- The intent of an operation is recorded before the operation begins, if the next service would otherwise treat the sandbox differently. The result
  is recorded before the response.
- A failed operation leaves the sandbox as it was. A sandbox that cannot be paused again runs. A sandbox that cannot run again is ended.
- A hibernated sandbox consists of its image. The image is removed only after the store has recorded that the sandbox runs again. A live sandbox
  takes precedence over its image.
- No deadline of the guest passes while its sandbox is frozen. A suspended sandbox has its own deadline (``AdmissionPolicy.max_suspended_s``).
- Resources that a hibernation frees stay reserved until they are released.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from sandlot.core.lifecycle import mounts
from sandlot.core.lifecycle.start import MemoryImageStart, reconnect_guest, wake_guest
from sandlot.core.lifecycle.supervisor import SandboxSupervisor, SupervisionDetachedError, SupervisionEndedError, guest_deadline_s
from sandlot.core.node.drivers import driver_step
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.model.errors import ConflictError, ErrorCode, SandboxEndedError, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.ports import DriverCapability, Exit, ExitReason, Instance
from sandlot.model.specs import OnTimeout
from sandlot.model.states import LIFECYCLE, SUSPENDED, State

QUIESCE_TIMEOUT_S = 30.0
"""Seconds that a guest has to quiesce. A full pipe without a reader is no reason to wait longer."""

WRITE_TIMEOUT_S = 600.0
"""Timeout for writing an image of many GiB to a slow disk: 60 GB at 100 MB/s."""

EXPIRY_RETRY_S: Final = 60.0
"""Seconds until a sandbox that could neither be hibernated nor paused at its deadline is tried again."""

SAME = -1.0
"""Value of ``timeout_s`` that keeps the timeout of the sandbox."""

_log = structlog.get_logger("sandlot.core")


async def pause(supervisor: SandboxSupervisor) -> None:
    """Freeze a running sandbox. Does nothing if the sandbox is suspended already.

    Raises:
        UnsupportedError: The driver cannot pause sandboxes.
        HostError: The state cannot be recorded; the sandbox keeps running.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    if sandbox.state is not State.RUNNING:
        return
    await _require(supervisor, DriverCapability.PAUSE, "be paused")
    instance = sandbox.require_instance()
    await _intend(supervisor, State.PAUSING)
    try:
        with sandbox.deadline.restored_on_error():
            sandbox.deadline.extend(dependencies.policy.max_suspended_s)
            await _both(_freeze(sandbox, instance), dependencies.recorder.save(sandbox, "sandbox.paused", state=State.PAUSED))
    except BaseException as error:
        if not isinstance(error, SandboxEndedError):
            await _go_on(supervisor, instance)
        raise
    sandbox.become(State.PAUSED)
    _log.info("sandbox.paused", sandbox=sandbox.id)


async def resume(supervisor: SandboxSupervisor, timeout_s: float | None = SAME) -> None:
    """Thaw a paused sandbox or wake a hibernated one. A running sandbox only gets the new timeout.

    Args:
        supervisor: Supervisor of the sandbox.
        timeout_s: Timeout from now on. None: no timeout. :data:`SAME`: the timeout of the sandbox.

    Raises:
        UnavailableError: ``busy``: there is no room for the hibernated sandbox, which stays hibernated.
        HostError: The sandbox cannot be restored or recorded; the sandbox stays suspended.
    """
    sandbox = supervisor.sandbox
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
    """Write a sandbox to disk and release its memory. Does nothing if the sandbox is hibernated already.

    Raises:
        UnsupportedError: The driver cannot write memory.
        SandlotError: The sandbox cannot be written or recorded; its state is as before.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    if sandbox.state is State.HIBERNATED:
        return
    await _require(supervisor, DriverCapability.SNAPSHOT, "be hibernated")
    instance, was = sandbox.require_instance(), sandbox.state
    await _intend(supervisor, State.HIBERNATING)
    await dependencies.memory_images.remove(sandbox.id)  # an image that exists later was written by this operation
    try:
        if was is State.PAUSED:
            await driver_step("resume", instance.resume())
        await (await _linked(supervisor, instance)).quiesce(QUIESCE_TIMEOUT_S)
        into = await dependencies.memory_images.make(sandbox.id)
        size_bytes = await driver_step("hibernate", instance.snapshot(into, keep_running=False), WRITE_TIMEOUT_S)
    except BaseException as error:
        if isinstance(error, SandboxEndedError) and sandbox.link is not None:
            raise  # the supervisor notices the end by the lost link
        if was is State.PAUSED:
            sandbox.deadline.extend(sandbox.spec.timeout_s)  # the sandbox runs until it is paused again
        if await _go_on(supervisor, instance) or not await asyncio.to_thread(dependencies.memory_images.image(sandbox.id).is_dir):
            await dependencies.memory_images.remove(sandbox.id)
            if was is State.PAUSED:
                with contextlib.suppress(SandlotError):
                    await pause(supervisor)
            raise
        # The hibernation exceeded its timeout and finished all the same: the image is all that is left of the sandbox.
        size_bytes = await asyncio.to_thread(_size, dependencies.memory_images.image(sandbox.id))
    sandbox.deadline.extend(dependencies.policy.max_suspended_s)
    sandbox.become(State.HIBERNATED)
    # If this fails, the next service finds the intent and a complete image, and keeps the sandbox hibernated.
    await dependencies.recorder.save_eventually(sandbox, "sandbox.hibernated", size_bytes=size_bytes)
    await supervisor.release_memory(size_bytes)
    _log.info("sandbox.hibernated", sandbox=sandbox.id, size_bytes=size_bytes)


async def write_image(supervisor: SandboxSupervisor, into: Path, *, durable: bool = True) -> int:
    """Write a sandbox's memory and files into a new folder and return their size in bytes. Afterwards the sandbox is in the same state as before.

    A paused sandbox that cannot be frozen again afterwards runs, even if its snapshot was written; see :func:`_pause_again`.

    Args:
        supervisor: Supervisor of a running, paused or hibernated sandbox.
        into: Folder to create.
        durable: Sync the image to disk, so that it survives a loss of power.

    Raises:
        UnsupportedError: The driver cannot write memory.
        SandlotError: The image cannot be written; the sandbox is in the same state as before.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    await _require(supervisor, DriverCapability.SNAPSHOT, "be written to a snapshot")
    if sandbox.state is State.HIBERNATED:
        return await dependencies.memory_images.copy(dependencies.memory_images.image(sandbox.id), into)
    instance, was = sandbox.require_instance(), sandbox.state
    await _intend(supervisor, State.SNAPSHOTTING)
    try:
        if was is State.PAUSED:
            await driver_step("resume", instance.resume())
        async with _armed(await _linked(supervisor, instance), stays=was is State.PAUSED):
            return await driver_step("write", instance.snapshot(into, keep_running=True, durable=durable), WRITE_TIMEOUT_S)
    finally:
        if not supervisor.has_exited:
            if was is State.PAUSED:
                await _pause_again(supervisor, instance)
            else:
                sandbox.become(was)


async def keep_hibernated(supervisor: SandboxSupervisor) -> None:
    """Keep a sandbox hibernated that an earlier service hibernated or was about to wake.

    The image is not checked here. An image that cannot be restored today, because a build of the runtime is missing, may be restorable later.

    Raises:
        ConflictError: The image is missing, so nothing is left of the sandbox.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    image = dependencies.memory_images.image(sandbox.id)
    if not await asyncio.to_thread(image.is_dir):
        raise ConflictError(f"Sandbox {sandbox.id} cannot be woken: its image is missing.", code=ErrorCode.SNAPSHOT_UNUSABLE)
    if sandbox.state is not State.HIBERNATED:
        sandbox.become(State.HIBERNATED)
    supervisor.reserve_disk_only(await asyncio.to_thread(_size, image))


async def expire(supervisor: SandboxSupervisor) -> None:
    """Carry out the ``on_timeout`` of a sandbox whose deadline has passed.

    A suspended sandbox is ended. A sandbox that can neither be hibernated nor paused runs for ``EXPIRY_RETRY_S`` more, so that its data is not lost.
    """
    sandbox = supervisor.sandbox
    operations = {OnTimeout.HIBERNATE: (hibernate, pause), OnTimeout.PAUSE: (pause,), OnTimeout.KILL: ()}[sandbox.spec.on_timeout]
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
        with contextlib.suppress(SandlotError):  # without an answer, the guest ends the sandbox at its own deadline
            await driver_step("go on", _link(sandbox).set_deadline(guest_deadline_s(EXPIRY_RETRY_S)))
        sandbox.deadline.extend(EXPIRY_RETRY_S)
        sandbox.activity.touch()


async def _pause_again(supervisor: SandboxSupervisor, instance: Instance) -> None:
    """Freeze a paused sandbox that was thawed for its snapshot.

    A sandbox that cannot be frozen must not be shown as paused: its processes run, while its guest counts no time and its timeout does not
    pass. The sandbox is resumed instead, its timeout starts again, and its owner gets the event of a resume.
    """
    sandbox = supervisor.sandbox
    try:
        await driver_step("pause", instance.pause())
    except SandboxEndedError:
        return
    except SandlotError as error:
        _log.warning("sandbox.not_paused_again", sandbox=sandbox.id, error=str(error))
        sandbox.deadline.extend(sandbox.spec.timeout_s)
        await _go_on(supervisor, instance, "sandbox.resumed")
        await mounts.settle(supervisor)
    else:
        sandbox.become(State.PAUSED)


async def _thaw(supervisor: SandboxSupervisor) -> None:
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    instance = sandbox.require_instance()
    await driver_step("resume", instance.resume())
    try:
        with sandbox.deadline.restored_on_error():
            link = await _linked(supervisor, instance)
            sandbox.deadline.extend(sandbox.spec.timeout_s)
            await _both(_goes_on(sandbox, link), dependencies.recorder.save(sandbox, "sandbox.resumed", state=State.RUNNING))
    except BaseException as error:
        if not isinstance(error, SandboxEndedError):
            with contextlib.suppress(SandlotError):
                await _freeze(sandbox, instance)
            await dependencies.recorder.save_eventually(sandbox)
        raise
    sandbox.become(State.RUNNING)
    sandbox.activity.touch()
    _log.info("sandbox.resumed", sandbox=sandbox.id)


async def _wake(supervisor: SandboxSupervisor) -> None:
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    image = dependencies.memory_images.image(sandbox.id)
    await supervisor.wait_released()
    await dependencies.scheduler.readmit(sandbox)
    sandbox.become(State.WAKING)
    try:
        with sandbox.deadline.restored_on_error():
            await MemoryImageStart(image).start(supervisor)
            await _restart_timeout(sandbox)
            await dependencies.recorder.save(sandbox, "sandbox.woken", state=State.RUNNING)
    except (SupervisionEndedError, SupervisionDetachedError):
        raise
    except BaseException:
        sandbox.become(State.HIBERNATED)
        await supervisor.release_memory(await asyncio.to_thread(_size, image))
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
            code=ErrorCode.UNSUPPORTED,
            hint="Use another isolation; 'sandlot doctor' lists what each isolation can do on this host.",
            fields={"reason": reason, "isolation": supervisor.sandbox.spec.isolation},
        )


async def _intend(supervisor: SandboxSupervisor, state: State) -> None:
    """Enter a state, and record the state first if the next service would treat it differently from the current one.

    Raises:
        SandlotError: The store refused the record; nothing was changed.
        SupervisionEndedError: The end of the sandbox was requested.
    """
    sandbox = supervisor.sandbox
    supervisor.check_end()
    if LIFECYCLE[state].recovery is not LIFECYCLE[sandbox.state].recovery:
        await supervisor.dependencies.recorder.save(sandbox, state=state)
        supervisor.check_end()
    sandbox.become(state)


@contextlib.asynccontextmanager
async def _armed(link: Link, *, stays: bool) -> AsyncIterator[None]:
    """Arm the guest for a checkpoint that the guest survives, and disarm the guest afterwards unless ``stays`` is set."""
    await driver_step("stand still", link.checkpoint(armed=True))
    try:
        yield
    finally:
        if not stays:
            with contextlib.suppress(SandboxEndedError):
                await driver_step("go on", link.checkpoint(armed=False))


async def _both(work: Coroutine[Any, Any, None], record: Coroutine[Any, Any, None]) -> None:
    """Do some work and record its result at the same time. Each is finished even if the other one fails.

    If the service is killed in between, the next service finds a record of work that was not done, and does the work then.
    """
    for result in await asyncio.gather(work, record, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def _freeze(sandbox: Sandbox, instance: Instance) -> None:
    # An armed guest does not count time until it is disarmed: no timeout inside passes.
    await driver_step("stand still", _link(sandbox).checkpoint(armed=True))
    await driver_step("pause", instance.pause())


async def _goes_on(sandbox: Sandbox, link: Link) -> None:
    # Both requests are sent in this order, without waiting for a response in between.
    deadline_s = guest_deadline_s(sandbox.spec.timeout_s)
    await asyncio.gather(driver_step("go on", link.checkpoint(armed=False)), driver_step("go on", link.set_deadline(deadline_s)))


async def _restart_timeout(sandbox: Sandbox) -> None:
    """Start the timeout of a sandbox again, in the guest first."""
    await driver_step("go on", _link(sandbox).set_deadline(guest_deadline_s(sandbox.spec.timeout_s)))
    sandbox.deadline.extend(sandbox.spec.timeout_s)
    sandbox.activity.touch()


async def _linked(supervisor: SandboxSupervisor, instance: Instance) -> Link:
    """Return the link. A sandbox that an earlier service froze has none and is connected."""
    sandbox = supervisor.sandbox
    if sandbox.link is None or sandbox.link.closed:
        sandbox.link = await driver_step("answer", reconnect_guest(supervisor, instance))
    return sandbox.link


async def _go_on(supervisor: SandboxSupervisor, instance: Instance, event: str | None = None) -> bool:
    """Let a sandbox run again after a failed operation. A live sandbox that cannot run again is ended.

    Args:
        supervisor: Supervisor of the sandbox.
        instance: Instance of the sandbox.
        event: Type of the event to record, if clients know that the sandbox did not run.

    Returns:
        False if the sandbox had ended already.
    """
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    try:
        await driver_step("resume", instance.resume())
        if sandbox.link is not None and sandbox.link.asleep:
            await driver_step("answer", wake_guest(supervisor, sandbox.link, await dependencies.templates.resolve_for(sandbox.spec)))
        else:
            try:
                link = await _linked(supervisor, instance)
                await driver_step("go on", link.checkpoint(armed=False))
                await driver_step("go on", link.set_deadline(guest_deadline_s(sandbox.deadline.remaining_s())))
            except UnavailableError:  # the guest did not quiesce in time, and its link accepts no more calls
                if sandbox.link is not None:
                    await sandbox.link.aclose()
                await _linked(supervisor, instance)
    except SandboxEndedError:
        if sandbox.link is None:  # the supervisor cannot notice the end by a lost link
            sandbox.request_end(Exit(ExitReason.CRASHED, "its guest cannot be reached"))
        return False
    except SandlotError as error:
        sandbox.request_end(Exit(ExitReason.CRASHED, f"it could not be made to run again: {error.message}"))
        return True
    sandbox.become(State.RUNNING)
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


def _size(image: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in image.iterdir()) if image.is_dir() else 0
