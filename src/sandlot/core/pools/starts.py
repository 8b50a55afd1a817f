"""How a sandbox comes to its first answer where something was made ahead: claimed, or restored from its template's snapshot.

=======  ===============================================================================================================================
hot      thaw, one message that makes it somebody, one commit
blank    a prepared one takes the template's snapshot
direct   one is prepared, and takes the template's snapshot
boot     as a machine starts
=======  ===============================================================================================================================

Each gives way to the next: whatever fails on the way to the first answer is given back, and the request still succeeds, only later.

Laws:
- A claimed one has been said nothing by anybody, and nothing that failed is given to another.
- A claim is recorded once, before it is answered: a service that is killed before that leaves what the next one removes like any stray, and one
  that is killed after it leaves a sandbox like any other, which the next one wakes where that was not done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from sandlot.core.lifecycle.dependencies import LifecycleDependencies, SupervisionEndedError, extend_deadline, until_end
from sandlot.core.lifecycle.start import Started, boot, mounted, restore, wake
from sandlot.core.node.drivers import driver_step
from sandlot.core.pools.pool import WarmSandbox
from sandlot.core.pools.template_snapshot_cache import TemplateSnapshot
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandboxEndedError, SandlotError
from sandlot.model.ports import Attachment, Change, Instance, PreparedSandbox
from sandlot.model.specs import SandboxSpec, Shape

if TYPE_CHECKING:
    from sandlot.core.lifecycle.start import Start

HOT, BLANK, DIRECT, BOOT = "hot", "blank", "direct", "boot"
PATHS: Final = (HOT, BLANK, DIRECT, BOOT)

_log = structlog.get_logger("sandlot.core")

Holdings = list[PreparedSandbox | Instance]


class WarmStart:
    """One that waited becomes the sandbox that was asked for.

    Args:
        member: It; nobody else's any more.
        otherwise: What is done where it turns out to be of no use.
        came: Told once it has come to its first answer.
        spoilt: Given what is of no use, to be removed while the request goes on.
    """

    def __init__(self, member: WarmSandbox, otherwise: Start, came: Callable[[], None], spoilt: Callable[[WarmSandbox], None]) -> None:
        self.member = member
        self._otherwise = otherwise
        self._came = came
        self._spoilt = spoilt

    async def __call__(self, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: Holdings) -> Started:
        """Thaw it, and make it somebody."""
        member, instance, link = self.member, self.member.asleep.instance, self.member.asleep.link
        holdings.append(instance)
        sandbox.spec = replace(sandbox.spec, root=member.base.root.digest)
        sandbox.instance, sandbox.ref, sandbox.link = instance, instance.ref, link
        link.offer(dependencies.services(sandbox))
        # The disk and the guest work at the same time. Where something is put into it first, it is recorded afterwards.
        recording = None
        if dependencies.inject is None:
            extend_deadline(sandbox, dependencies.clock, sandbox.spec.timeout_s)
            recording = asyncio.ensure_future(dependencies.recorder.runs(sandbox))
        try:
            await until_end(sandbox, driver_step("answer", self._become(sandbox, dependencies)), member.asleep.exits)
            if recording is not None:
                await asyncio.shield(recording)
        except BaseException as error:
            if recording is not None:
                await asyncio.wait({recording})  # one save after the other
            refused = recording is not None and recording.exception() is not None
            if refused or not isinstance(error, SandlotError | SupervisionEndedError) or sandbox.end_requested.is_set() or sandbox.detaching.is_set():
                raise
            _log.warning("pool.spoilt", sandbox=sandbox.id, ref=instance.ref, error=str(error))
            sandbox.instance = sandbox.ref = sandbox.link = None
            holdings.remove(instance)
            self._spoilt(member)
            return await self._otherwise(sandbox, dependencies, holdings)
        self._came()
        return Started(instance, link, member.asleep.exits, recorded=recording is not None)

    async def _become(self, sandbox: Sandbox, dependencies: LifecycleDependencies) -> None:
        member = self.member
        await member.asleep.instance.resume()
        if volumes := await mounted(sandbox, dependencies):
            await member.asleep.instance.configure(Change(volumes=volumes))
        await wake(sandbox, dependencies, member.asleep.link, member.base)
        if sandbox.spec.limits.pids != member.kind.limits.pids:
            await member.asleep.instance.configure(Change(pids=sandbox.spec.limits.pids))


class TemplateSnapshotStart:
    """It is restored from its template's snapshot, and booted where that fails or there is none.

    Args:
        held: The snapshot.
        came: Told the path by which it has come to its first answer.
        unusable: Told why the snapshot could not be restored from.
    """

    def __init__(self, held: TemplateSnapshot | None, came: Callable[[str], None], unusable: Callable[[TemplateSnapshot, str], None]) -> None:
        self._held = held
        self._came = came
        self._unusable = unusable

    async def __call__(self, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: Holdings) -> Started:
        """Restore it, or boot it."""
        if self._held is not None:
            path = DIRECT

            async def prepare(shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
                nonlocal path
                prepared = await dependencies.prepare(shape, snapshot=snapshot)
                path = BLANK if isinstance(prepared, Lent) else DIRECT
                return prepared

            # Outside of the `try`: a store that refuses the record says nothing about the snapshot, and refuses the boot as well.
            await dependencies.recorder.intend(sandbox)
            try:
                started = await restore(self._held.image, sandbox, replace(dependencies, prepare=prepare), holdings)
            except SandlotError as error:
                if sandbox.end_requested.is_set() or sandbox.detaching.is_set():
                    raise
                _log.warning("sandbox.not_restored", sandbox=sandbox.id, error=str(error))
                self._unusable(self._held, str(error))
                await asyncio.shield(_undo(sandbox, holdings))
            else:
                self._came(path)
                return started
        started = await boot(sandbox, dependencies, holdings)
        self._came(BOOT)
        return started


class Lent:
    """A blank that was prepared ahead. Where it turns out not to take a snapshot, another one is prepared for it.

    Args:
        prepared: It.
        anew: Prepares another one for a snapshot.
    """

    def __init__(self, prepared: PreparedSandbox, anew: Callable[[], Coroutine[Any, Any, PreparedSandbox]]) -> None:
        self._prepared = prepared
        self._anew = anew
        self._volumes: tuple[Attachment, ...] = ()

    async def warm(self) -> None:
        """It is."""
        await self._prepared.warm()

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Let it have volumes."""
        self._volumes = tuple(volumes)
        await self._prepared.attach(volumes)

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the guest."""
        return await self._prepared.boot(spec)

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> Instance:
        """Start from a snapshot."""
        try:
            return await self._prepared.restore(snapshot, spec)
        except SandboxEndedError:
            raise
        except SandlotError as error:
            if error.code is not ErrorCode.SNAPSHOT_UNUSABLE:
                raise
            await asyncio.shield(self._prepared.destroy())
            self._prepared = await self._anew()
            if self._volumes:
                await self._prepared.attach(self._volumes)
            return await self._prepared.restore(snapshot, spec)

    async def destroy(self) -> None:
        """Give everything back. Idempotent."""
        await self._prepared.destroy()


async def _undo(sandbox: Sandbox, holdings: Holdings) -> None:
    """Give back what a start that failed had taken."""
    link, sandbox.link = sandbox.link, None
    if link is not None:
        await link.aclose()
    sandbox.instance = sandbox.ref = None
    while holdings:
        await holdings[-1].destroy()
        holdings.pop()
