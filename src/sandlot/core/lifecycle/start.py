"""Start of a sandbox: start strategies, which are tried in order, and the steps that connect to the guest and wake the guest.

====================  ========  =========================================================================================================
strategy              path      action
====================  ========  =========================================================================================================
WarmStart             warm      a claimed warm sandbox is thawed, its guest gets an identity in one request, and it is recorded in one commit
TemplateSnapshotStart prepared  a prepared sandbox of a pool is restored from the template snapshot, or from the snapshot of a user's build
TemplateSnapshotStart restored  the driver prepares a sandbox, which is then restored from the template snapshot
BootStart             booted    the sandbox boots from its root filesystem
MemoryImageStart                a sandbox is restored from a snapshot image or a hibernation image
FilesStart                      a hibernated sandbox without memory boots, and its own files are applied before clients reach it
====================  ========  =========================================================================================================

Invariants:
- The allocation of the sandbox owns each resource that a driver makes before the next step begins.
- If a strategy fails, the release of its allocation begins before the next strategy is tried with a new allocation. The request can still succeed,
  but takes longer. If the store refuses a record or the end of the sandbox was requested, no other strategy is tried.
- A claimed warm sandbox has had no other owner. A warm sandbox whose claim failed is never claimed again.
- A claim is recorded in one commit before the response, while the guest wakes up. If the wake then fails, the sandbox stays recorded as running while
  the next strategy starts it: ``sandbox.created`` is announced once, and ``sandbox.ended`` follows if no strategy succeeds.
- If the service is killed before the commit of a claim, the next service removes the warm sandbox. If the service is killed after the commit, the
  next service recovers the sandbox, and wakes its guest if the guest is still asleep.
- A restored guest receives no other request before it is woken with its own identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from sandlot.core.admission_controller import Admitted, SetupStep, StartSourceConstraints
from sandlot.core.execution.start_command import StartCommandStep
from sandlot.core.files import overlay
from sandlot.core.lifecycle.supervisor import SandboxSupervisor, SupervisionEndedError, guest_deadline_s
from sandlot.core.pools.build_snapshots import BuildSnapshotRequest
from sandlot.core.pools.pool import WarmSandbox
from sandlot.core.pools.pooled_sandboxes import PoolClaim
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.ports import ResolvedTemplate
from sandlot.core.resources.drivers import STEP_TIMEOUT_S, driver_step
from sandlot.core.resources.reservations import Reservation
from sandlot.core.resources.start_steps import ExitedError
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.types import LinkClosed, LinkClosedReason
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, SandboxEndedError, SandlotError
from sandlot.model.faults import Fault
from sandlot.model.network import local_domains
from sandlot.model.pools import StartPath
from sandlot.model.ports import Change, ExitReason
from sandlot.model.specs import Shape
from sandlot.model.states import State

_MAX_GUEST_MESSAGE_CHARS: Final = 500
"""Largest number of characters that an error quotes from a message of a guest."""

_log = structlog.get_logger("sandlot.core")


class StartStrategyError(Exception):
    """A start strategy failed, and the next strategy may be tried.

    Args:
        cause: Reason of the failure, for logs.
        release_wait_s: Maximum time in seconds to wait until the failed strategy's resources are removed, before the next strategy is tried.
    """

    def __init__(self, cause: str, *, release_wait_s: float = 0.0) -> None:
        super().__init__(cause)
        self.release_wait_s = release_wait_s


class StartStrategy(Protocol):
    """One way to start a sandbox, up to the first response of its guest.

    A strategy records the sandbox before it makes resources, unless the next service would find and remove these resources without a record.
    """

    async def start(self, supervisor: SandboxSupervisor) -> None:
        """Start the sandbox.

        Raises:
            StartStrategyError: The strategy failed; the next strategy may be tried.
            SandlotError: The start failed; no other strategy may be tried.
            SupervisionEndedError: The end of the sandbox was requested, or the sandbox has ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class StartSource:
    """Snapshot or sandbox from which a new sandbox starts, instead of its template.

    Args:
        strategies: Start strategies, in the order in which they are tried.
        constraints: Properties that the new sandbox takes from the source.
        setup: Steps that run after the guest's first response and before the response to the client.
        reservations: Reservations from which each new sandbox takes one. Empty: each new sandbox makes its own reservation.
        digest: Digest that identifies the create request for its idempotency key. None: the digest of ``CreateSandboxParams``.
    """

    strategies: Sequence[StartStrategy]
    constraints: StartSourceConstraints
    setup: Sequence[SetupStep] = ()
    reservations: list[Reservation] = field(default_factory=list)
    digest: str | None = None


def template_strategies(admitted: Admitted, *, has_setup: bool) -> Sequence[StartStrategy]:
    """Return the strategies for a sandbox that starts from its template.

    Args:
        admitted: The admitted sandbox.
        has_setup: True if setup steps follow. The claim of a warm sandbox is then recorded only after these steps.
    """
    claim = admitted.claim
    if claim is None:
        return [BootStart()]
    strategies: list[StartStrategy] = [TemplateSnapshotStart(claim, admitted.snapshot, admitted.start), BootStart(claim)]
    if claim.warm is not None:
        strategies.insert(0, WarmStart(claim, claim.warm, admitted.start, records=not has_setup))
    return strategies


async def begin(supervisor: SandboxSupervisor, strategies: Sequence[StartStrategy], setup: Sequence[SetupStep]) -> None:
    """Start a sandbox, run its setup steps, record it as running, and resolve ``Sandbox.ready``.

    Args:
        supervisor: Supervisor of the sandbox.
        strategies: Start strategies, in the order in which they are tried. The last strategy never raises ``StartStrategyError``.
        setup: Steps that run after the guest's first response and before the response to the client.

    Raises:
        SupervisionEndedError: The end of the sandbox was requested, or the sandbox has ended.
    """
    sandbox = supervisor.sandbox
    for strategy in strategies:
        try:
            await strategy.start(supervisor)
        except StartStrategyError as failure:
            await supervisor.replace_allocation(wait_s=failure.release_wait_s)
        else:
            break
    sandbox.become(State.RUNNING)
    for step in setup:
        await supervisor.until_end(step(sandbox))
    await supervisor.save_running()
    supervisor.check_end()
    supervisor.dependencies.recorder.count_created(sandbox)
    sandbox.ready.set_result(None)


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Strategy that turns a claimed warm sandbox into the sandbox of a create request.

    Args:
        start_command: Step that runs the start command, if the template has one.
        records: True: record the sandbox as running while the guest wakes up. False: the caller records the sandbox after the setup steps.
    """

    claim: PoolClaim
    warm: WarmSandbox
    start_command: StartCommandStep | None
    records: bool

    async def start(self, supervisor: SandboxSupervisor) -> None:
        """Thaw the warm sandbox and give its guest an identity; see :meth:`StartStrategy.start`."""
        sandbox, warm = supervisor.sandbox, self.warm
        sandbox.spec = sandbox.spec.started_from(warm.template.root, warm.template.build, warm.template.env)
        sandbox.ref = warm.instance.ref
        warm.link.set_services(supervisor.dependencies.guest_services.of(sandbox))
        saving = asyncio.ensure_future(supervisor.save_running()) if self.records else None
        try:
            await supervisor.until_end(driver_step("answer", self._wake(supervisor)))
        except BaseException as error:
            if saving is not None:
                await asyncio.wait({saving})  # saves of one sandbox never overlap
                if saving.exception() is not None:
                    raise  # the store refused the record, and would refuse it for any other strategy
            if not isinstance(error, SandlotError | SupervisionEndedError):
                raise
            supervisor.check_end()
            _log.warning("pool.claim_failed", sandbox=sandbox.id, ref=warm.instance.ref, error=str(error))
            raise StartStrategyError(str(error)) from error
        if saving is not None:
            await asyncio.shield(saving)
        if self.start_command is not None:
            self.start_command.is_done = warm.runs_programs
        supervisor.dependencies.pools.started(StartPath.WARM, self.claim)

    async def _wake(self, supervisor: SandboxSupervisor) -> None:
        sandbox, instance, link = supervisor.sandbox, self.warm.instance, self.warm.link
        await instance.resume()
        if sandbox.spec.volumes:
            await instance.configure(Change(volumes=await supervisor.mount_volumes()))
        await wake_guest(supervisor, link)
        if sandbox.spec.limits.pids != self.warm.spec.limits.pids:
            await instance.configure(Change(pids=sandbox.spec.limits.pids))


@dataclass(frozen=True, slots=True)
class TemplateSnapshotStart:
    """Strategy that restores a sandbox from the snapshot of its template.

    Args:
        claim: Result of the search for a warm sandbox.
        build: Snapshot of the build of a user, if the sandbox can start from one.
        start_command: Step that runs the start command, if the template has one.
    """

    claim: PoolClaim
    build: BuildSnapshotRequest | None = None
    start_command: StartCommandStep | None = None

    async def start(self, supervisor: SandboxSupervisor) -> None:
        """Restore the template snapshot; see :meth:`StartStrategy.start`."""
        snapshots = supervisor.dependencies.build_snapshots
        if self.build is None:
            snapshot = supervisor.dependencies.pools.current_snapshot(self.claim.spec, supervisor.sandbox.spec.template.build)
        else:
            snapshot = await supervisor.until_end(snapshots.find(self.build, await supervisor.resolve_template()))
        if snapshot is None:
            raise StartStrategyError("the template has no snapshot")
        try:
            await self._start(supervisor, snapshot)
        finally:
            if self.build is not None:
                snapshot.release()

    async def _start(self, supervisor: SandboxSupervisor, snapshot: TemplateSnapshot) -> None:
        sandbox, pools = supervisor.sandbox, supervisor.dependencies.pools
        # An error of the store is no reason to discard the snapshot or to try another strategy, so the record is saved outside of the `try`.
        await supervisor.save_starting()
        try:
            was_prepared = await _restore(supervisor, snapshot.image, is_template=self.build is None and not snapshot.runs_programs)
        except SandlotError as error:
            supervisor.check_end()
            if error.code is ErrorCode.NODE_DISK_FULL:
                raise  # the snapshot is good, and a boot would need the same disk
            _log.warning("sandbox.not_restored", sandbox=sandbox.id, error=str(error))
            if error.code is ErrorCode.BUSY:  # the snapshot is good, and a boot needs no headroom
                raise StartStrategyError(str(error), release_wait_s=STEP_TIMEOUT_S) from error
            if self.build is None:
                pools.discard_snapshot(snapshot, str(error))
            else:
                await supervisor.dependencies.build_snapshots.discard(self.build, snapshot, str(error))
            raise StartStrategyError(str(error), release_wait_s=STEP_TIMEOUT_S) from error
        if self.start_command is not None:
            self.start_command.is_done = snapshot.runs_programs
        pools.started(StartPath.PREPARED if was_prepared else StartPath.RESTORED, self.claim)


@dataclass(frozen=True, slots=True)
class MemoryImageStart:
    """Strategy that restores a sandbox from a snapshot image, or from its own hibernation image."""

    image: Path

    async def start(self, supervisor: SandboxSupervisor) -> None:
        """Restore the sandbox from the memory image; see :meth:`StartStrategy.start`."""
        await supervisor.dependencies.recorder.save(supervisor.sandbox)
        await _restore(supervisor, self.image)


@dataclass(frozen=True, slots=True)
class BootStart:
    """Strategy that boots a sandbox from its root filesystem image.

    Args:
        claim: Result of the search for a warm sandbox. The pools count the start in their statistics. None: the request cannot use a pool.
    """

    claim: PoolClaim | None = None

    async def start(self, supervisor: SandboxSupervisor) -> None:
        """Boot the sandbox; see :meth:`StartStrategy.start`. Never raises ``StartStrategyError``."""
        await supervisor.save_starting()
        await _boot(supervisor)
        if self.claim is not None:
            supervisor.dependencies.pools.started(StartPath.BOOTED, self.claim)


@dataclass(frozen=True, slots=True)
class FilesStart:
    """Strategy that boots a hibernated sandbox and applies its own files.

    Args:
        file: File with the overlay: files that differ from the root filesystem image.
    """

    file: Path

    async def start(self, supervisor: SandboxSupervisor) -> None:
        """Boot the sandbox and apply its files; see :meth:`StartStrategy.start`."""
        await supervisor.dependencies.recorder.save(supervisor.sandbox)
        await _boot(supervisor)
        await supervisor.until_end(overlay.apply_overlay(supervisor.sandbox, self.file, supervisor.link))


async def _boot(supervisor: SandboxSupervisor) -> None:
    """Boot a sandbox from its root filesystem image. The caller has recorded the sandbox."""
    sandbox = supervisor.sandbox
    template = await supervisor.resolve_template()
    async with supervisor.start_slot():
        prepared = await supervisor.allocation.prepare(shape_of(sandbox, template))
        supervisor.check_end()
        if sandbox.spec.volumes:
            await driver_step("attach a volume to", prepared.attach(await supervisor.mount_volumes()))
        await supervisor.allocation.boot(prepared, sandbox.spec)
        await connect_and_wake(supervisor)


async def _restore(supervisor: SandboxSupervisor, image: Path, *, is_template: bool = False) -> bool:
    """Restore a sandbox from a memory image. Return True if the prepared sandbox came from a pool. The caller has recorded the sandbox."""
    sandbox = supervisor.sandbox
    template = await supervisor.resolve_template()
    async with supervisor.start_slot():
        volumes, shape = await supervisor.mount_volumes(), shape_of(sandbox, template)
        prepared = supervisor.dependencies.pools.take_prepared(sandbox.spec.isolation, shape)
        await supervisor.allocation.restore(
            image, shape, sandbox.spec, volumes, prepared=prepared, check_end=supervisor.check_end, is_template=is_template
        )
        await connect_and_wake(supervisor)
    return prepared is not None


def shape_of(sandbox: Sandbox, template: ResolvedTemplate) -> Shape:
    """Return the shape of a sandbox: its root filesystem and limits."""
    return Shape(root=template.root, limits=sandbox.spec.limits)


async def connect_and_wake(supervisor: SandboxSupervisor) -> None:
    """Connect to the guest of the sandbox that was just started, and give the guest its identity.

    Raises:
        InvalidRequestError: The sandbox has too little memory to start.
        HostError: The sandbox ended, or its guest refused its identity.
        SupervisionEndedError: The end of the sandbox was requested.
    """
    supervisor.sandbox.ref = supervisor.sandbox.require_instance().ref
    supervisor.allocation.link = await wait_first_response(supervisor, _connect_and_wake(supervisor))


async def _connect_and_wake(supervisor: SandboxSupervisor) -> Link:
    link = await _connect(supervisor)
    try:
        await wake_guest(supervisor, link)
    except BaseException as error:
        await link.aclose()
        if isinstance(error, SandlotError) and not isinstance(error, SandboxEndedError):
            # The error of the guest may have a code that would blame the client's request, so another error is raised.
            raise _bad_guest(f"its guest refused to begin: {error.message[:_MAX_GUEST_MESSAGE_CHARS]}") from None
        raise
    return link


async def _connect(supervisor: SandboxSupervisor) -> Link:
    dependencies = supervisor.dependencies
    return await supervisor.allocation.connect(dependencies.guest_services.of(supervisor.sandbox), dependencies.drivers.link_turns)


async def wake_guest(supervisor: SandboxSupervisor, link: Link) -> None:
    """Wake a guest that is asleep, with the identity, environment, limits and deadline of its sandbox."""
    sandbox = supervisor.sandbox
    timeout_s = sandbox.deadline.remaining_s() if sandbox.is_announced else sandbox.spec.timeout_s
    await link.wake(
        identity=sandbox.id,
        hostname=sandbox.id,
        env={**sandbox.spec.template_env, **sandbox.spec.env},
        pids=sandbox.spec.limits.pids,
        memory_bytes=sandbox.spec.limits.memory_bytes,
        processors=await supervisor.dependencies.drivers.shown_processors(sandbox.spec.isolation, sandbox.spec.limits),
        deadline_s=guest_deadline_s(timeout_s),
        user=sandbox.spec.user,
        workspace=sandbox.spec.cwd,
        local_domains=local_domains(sandbox.spec.network),
    )


async def reconnect_guest(supervisor: SandboxSupervisor) -> Link:
    """Connect again to the guest of a running sandbox, after the service has restarted or the link was lost. A guest that is asleep is woken."""
    sandbox, dependencies = supervisor.sandbox, supervisor.dependencies
    link = await _connect(supervisor)
    try:
        if link.asleep:
            await wake_guest(supervisor, link)
        else:
            # All is sent, also if the sandbox has no deadline: an update that was interrupted may have changed it in the guest and not in the record.
            await link.set_deadline(guest_deadline_s(sandbox.deadline.remaining_s()))
            await link.set_local_domains(local_domains(sandbox.spec.network))
            limits = sandbox.spec.limits
            processors = await dependencies.drivers.shown_processors(sandbox.spec.isolation, limits)
            with suppress(ConflictError):  # more processes run than the guest's limit allows; the host's limit still holds
                await link.set_limits(pids=limits.pids, memory_bytes=limits.memory_bytes, processors=processors)
    except BaseException:
        await link.aclose()
        raise
    return link


async def wait_first_response(supervisor: SandboxSupervisor, connecting: Coroutine[Any, Any, Link]) -> Link:
    """Wait for the first response of the guest of a sandbox that was just started or adopted, and return the link to the guest.

    Raises:
        InvalidRequestError: The sandbox has too little memory to start.
        HostError: The sandbox ended before the response; the message gives the reason.
        SupervisionEndedError: The end of the sandbox was requested.
    """
    sandbox = supervisor.sandbox
    try:
        return await supervisor.until_end(driver_step("answer", connecting))
    except SandboxEndedError as error:
        exit_ = await supervisor.exit_after_link_lost(LinkClosed(LinkClosedReason.EOF, error.message))
    except ExitedError as error:
        exit_ = error.exit
    except SupervisionEndedError as error:
        if not supervisor.has_exited:
            raise
        exit_ = error.exit
    detail = f"{exit_.reason}: {exit_.detail}" if exit_.detail else str(exit_.reason)
    if exit_.reason is ExitReason.OOM:
        raise InvalidRequestError(
            f"The sandbox ran out of memory while it was starting ({detail}): limits.memory_bytes is {sandbox.spec.limits.memory_bytes}.",
            hint="Raise limits.memory_bytes.",
            fields={"field": "limits.memory_bytes"},
            fault=Fault.LIMIT,
        )
    raise _bad_guest(detail, exit_.reason)


def _bad_guest(detail: str, reason: ExitReason = ExitReason.CRASHED) -> HostError:
    return HostError(
        f"The sandbox ended while it was starting ({detail}).",
        hint="Run 'sandlot doctor' to check the host.",
        fields={"reason": str(reason)},
    )
