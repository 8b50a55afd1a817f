"""Make warm and prepared sandboxes, and verify restored sandboxes. None of these sandboxes has an owner yet.

Invariants:
- While a warm sandbox is made, its guest gets a neutral identity, the environment of the template and no deadline, and no data of an owner.
- A claim sends the guest one request, which wakes the guest with the identity, environment, entropy and limits of the owner's sandbox.
- The caller makes the allocation of a sandbox and releases the allocation if the sandbox cannot be finished.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sandlot.core.pools.models import PoolSpec
from sandlot.core.pools.pool import PreparedPoolEntry, WarmSandbox
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.ports import Clock, ResolvedTemplate
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.drivers import Drivers, driver_step
from sandlot.core.resources.start_steps import ExitedError
from sandlot.link.client import Link
from sandlot.link.services import GuestService
from sandlot.model.errors import ErrorCode, HostError, InvalidRequestError, NotFoundError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.paths import WORKSPACE
from sandlot.model.ports import Exit
from sandlot.model.specs import CellSpec, ProcessSpec, SandboxSpec, Shape, User

NEUTRAL_IDENTITY: Final = "template"
"""Identity and host name of a sandbox until it is claimed. The wake request of the claim replaces both."""
_VERIFY_IDENTITY: Final = "tried"
_STEP_TIMEOUT_S: Final = 60.0

StartPrograms = Callable[[Link], Awaitable[None]]
"""Function that starts the programs of a template in a sandbox, and returns when they are ready."""


@dataclass(frozen=True, slots=True)
class WarmSandboxFactory:
    """Makes warm sandboxes of one spec."""

    clock: Clock
    drivers: Drivers
    spec: PoolSpec
    template: ResolvedTemplate
    workspace: str = WORKSPACE
    user: User = User.USER

    @property
    def shape(self) -> Shape:
        """Root filesystem and limits of the sandboxes before a claim."""
        return Shape(root=self.template.root, limits=self.spec.limits)

    async def make_warm(self, allocation: Allocation, id_: SandboxId, snapshot: TemplateSnapshot | None) -> WarmSandbox:
        """Make a warm sandbox and freeze it.

        Args:
            allocation: Allocation for the resources of the sandbox.
            id_: Id of the sandbox.
            snapshot: Template snapshot to restore. None: the sandbox is booted.
        """
        if snapshot is None:
            warm = await self.boot(allocation, id_)
        else:
            warm = await self.rehearse(allocation, id_, snapshot.image, snapshot.key, runs_programs=snapshot.runs_programs)
        await warm.instance.pause()
        return warm

    async def make_prepared(self, allocation: Allocation, _id: SandboxId, snapshot: TemplateSnapshot | None) -> PreparedPoolEntry:
        """Make a prepared sandbox. If the template has a snapshot, also start the runtime.

        Args:
            allocation: Allocation for the resources of the sandbox.
            snapshot: Template snapshot that the runtime must be able to restore. None: the template has no snapshot, and the runtime is not started.
        """
        prepared = await allocation.prepare(self.shape, snapshot=None if snapshot is None else snapshot.image)
        if snapshot is not None:
            await prepared.warm()
        return PreparedPoolEntry(self.spec, self.template, prepared, allocation, "" if snapshot is None else snapshot.key)

    async def boot(
        self, allocation: Allocation, id_: SandboxId, services: Mapping[str, GuestService] | None = None, programs: StartPrograms | None = None
    ) -> WarmSandbox:
        """Boot a sandbox, warm up its spare kernel, and quiesce its guest.

        Args:
            allocation: Allocation for the resources of the sandbox.
            id_: Id of the sandbox.
            services: Services that the guest may call until it is quiesced. None: no services.
            programs: Function that starts programs before the guest is quiesced. None: no program of the template runs.
        """
        await allocation.boot(await allocation.prepare(self.shape), self._sandbox_spec(id_))
        warm = await self._connect(allocation, id_, services=services)
        await self._warm_up(warm, programs=programs)
        return warm

    async def restore(
        self, allocation: Allocation, id_: SandboxId, image: Path, snapshot_key: str = "", *, runs_programs: bool = False
    ) -> WarmSandbox:
        """Restore a sandbox from a template snapshot and connect to its guest, which stays asleep.

        Args:
            allocation: Allocation for the resources of the sandbox.
            id_: Id of the sandbox.
            image: Folder of the driver's snapshot.
            snapshot_key: Key of the template snapshot; empty for a snapshot that is not published yet.
            runs_programs: True if the start command of the template runs in the snapshot.
        """
        await allocation.restore(image, self.shape, self._sandbox_spec(id_), is_template=not runs_programs)
        warm = await self._connect(allocation, id_, snapshot_key)
        warm.runs_programs = runs_programs
        if not warm.link.asleep:
            raise HostError(
                "A sandbox that was restored from a template snapshot is invalid: its guest does not wait for the wake request.",
                hint="Retry when the service has made a new template snapshot.",
            )
        return warm

    async def rehearse(
        self, allocation: Allocation, id_: SandboxId, image: Path, snapshot_key: str = "", *, runs_programs: bool = False
    ) -> WarmSandbox:
        """Restore a sandbox, wake its guest once with the neutral identity, and quiesce the guest again.

        This loads the memory pages that a later claim needs, so that the claim is fast. The arguments are those of :meth:`restore`.
        """
        warm = await self.restore(allocation, id_, image, snapshot_key, runs_programs=runs_programs)
        await self._warm_up(warm, rehearse=True)
        return warm

    async def wake(self, link: Link, identity: str) -> bool:
        """Wake a guest with an identity, which is also its host name. Return True if the sandbox's image has Python."""
        python = await link.wake(
            identity=identity,
            hostname=identity,
            env=self.template.env,
            pids=self.spec.limits.pids,
            memory_bytes=self.spec.limits.memory_bytes,
            processors=await self.drivers.shown_processors(self.spec.isolation, self.spec.limits),
            deadline_s=None,
            user=self.user,
            workspace=self.workspace,
        )
        return python is not None

    async def _warm_up(self, warm: WarmSandbox, *, rehearse: bool = False, programs: StartPrograms | None = None) -> None:
        has_python = await driver_step("answer", self.wake(warm.link, NEUTRAL_IDENTITY))
        if rehearse:
            await _rehearse_command(warm.link)
        if has_python:
            await warm.link.warm(lean=True)
        if programs is not None:
            await programs(warm.link)
        await warm.link.quiesce()

    async def _connect(
        self, allocation: Allocation, id_: SandboxId, snapshot_key: str = "", services: Mapping[str, GuestService] | None = None
    ) -> WarmSandbox:
        try:
            allocation.link = await allocation.connect(services or {}, self.drivers.link_turns)
        except ExitedError as error:
            raise _ended_early(error.exit) from None
        return WarmSandbox(id_, self.spec, self.template, allocation, self.clock.monotonic_s(), snapshot_key)

    def _sandbox_spec(self, id_: SandboxId) -> SandboxSpec:
        return SandboxSpec(
            id=id_,
            template=replace(self.spec.template, digest=self.template.root.digest, build=self.template.build, tag=""),
            limits=self.spec.limits,
            timeout_s=None,
            network=NetworkPolicy(NetworkMode.NONE),
            isolation=self.spec.isolation,
        )


async def verify_restored(factory: WarmSandboxFactory, warm: WarmSandbox) -> None:
    """Wake a restored sandbox and run a command in it, if it has a shell. If the template has Python, also run a cell.

    Raises:
        HostError: The command or the cell failed.
        SandlotError: The sandbox ended, or its guest did not respond within 60 s.
    """
    async with asyncio.timeout(_STEP_TIMEOUT_S):
        has_python = await factory.wake(warm.link, _VERIFY_IDENTITY)
        exit_code = await _run_true(warm.link)
        if exit_code != 0:
            raise HostError(f"A template snapshot failed its verification: the command 'true' ended with exit code {exit_code}.")
        if has_python:
            cell = await warm.link.kernels.execute(CellSpec("print(1)", language="python", timeout_s=_STEP_TIMEOUT_S))
            outcome = await cell.result()
            if str(outcome.status) != "ok":
                raise HostError(f"A template snapshot failed its verification: the cell 'print(1)' ended with status {outcome.status}.")


async def _run_true(link: Link) -> int | None:
    """Run a command, and return its exit code. In an image without a shell, a guest that looks for the shell is verified, and the result is 0."""
    try:
        process = await link.processes.start(ProcessSpec(argv=("/bin/sh", "-c", "true"), timeout_s=_STEP_TIMEOUT_S))
    except NotFoundError as error:
        if error.code is ErrorCode.PROGRAM_NOT_FOUND:
            return 0
        raise
    return (await process.result()).exit_code


async def _rehearse_command(link: Link) -> None:
    """Run a command, so that the memory pages that the guest needs for commands are in memory before a claim.

    After a restore, the first access to each page takes about 50 us in gVisor, and a cell accesses a thousand pages. The spare Python kernel accesses
    its own pages in advance (``guest.warm``).
    """
    async with asyncio.timeout(_STEP_TIMEOUT_S):
        with contextlib.suppress(NotFoundError, UnsupportedError, InvalidRequestError):  # the image may not have /bin/true
            process = await link.processes.start(ProcessSpec(argv=("/bin/true",), timeout_s=_STEP_TIMEOUT_S, hidden=True))
            await process.result()


def _ended_early(exit_: Exit) -> HostError:
    return HostError(
        f"The sandbox ended before its guest responded ({exit_.reason}: {exit_.detail}).", hint="Look for the reason in the service's log."
    )
