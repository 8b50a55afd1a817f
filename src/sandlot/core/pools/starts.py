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

from sandlot.core.lives.means import Ended, Means, extend, step, unless_ended
from sandlot.core.lives.starts import Started, boot, mounted, restore, wake
from sandlot.core.pools.pool import Member
from sandlot.core.pools.shelf import Held
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandboxEndedError, SandlotError
from sandlot.model.ports import Attachment, Blank, Change, Instance
from sandlot.model.specs import SandboxSpec, Shape

if TYPE_CHECKING:
    from sandlot.core.lives.starts import Start

HOT, BLANK, DIRECT, BOOT = "hot", "blank", "direct", "boot"
PATHS: Final = (HOT, BLANK, DIRECT, BOOT)

_log = structlog.get_logger("sandlot.core")

Holdings = list[Blank | Instance]


class Claim:
    """One that waited becomes the sandbox that was asked for.

    Args:
        member: It; nobody else's any more.
        otherwise: What is done where it turns out to be of no use.
        came: Told once it has come to its first answer.
        spoilt: Given what is of no use, to be removed while the request goes on.
    """

    def __init__(self, member: Member, otherwise: Start, came: Callable[[], None], spoilt: Callable[[Member], None]) -> None:
        self.member = member
        self._otherwise = otherwise
        self._came = came
        self._spoilt = spoilt

    async def __call__(self, box: Sandbox, means: Means, holdings: Holdings) -> Started:
        """Thaw it, and make it somebody."""
        member, instance, link = self.member, self.member.asleep.instance, self.member.asleep.link
        holdings.append(instance)
        box.spec = replace(box.spec, root=member.base.root.digest)
        box.instance, box.ref, box.link = instance, instance.ref, link
        link.offer(means.services(box))
        # The disk and the guest work at the same time. Where something is put into it first, it is recorded afterwards.
        recording = None
        if means.inject is None:
            extend(box, means.clock, box.spec.timeout_s)
            recording = asyncio.ensure_future(means.register.runs(box))
        try:
            await unless_ended(box, step("answer", self._become(box, means)), member.asleep.exits)
            if recording is not None:
                await asyncio.shield(recording)
        except BaseException as error:
            if recording is not None:
                await asyncio.wait({recording})  # one save after the other
            refused = recording is not None and recording.exception() is not None
            if refused or not isinstance(error, SandlotError | Ended) or box.wanted.is_set() or box.leaving.is_set():
                raise
            _log.warning("pool.spoilt", sandbox=box.id, ref=instance.ref, error=str(error))
            box.instance = box.ref = box.link = None
            holdings.remove(instance)
            self._spoilt(member)
            return await self._otherwise(box, means, holdings)
        self._came()
        return Started(instance, link, member.asleep.exits, recorded=recording is not None)

    async def _become(self, box: Sandbox, means: Means) -> None:
        member = self.member
        await member.asleep.instance.resume()
        if volumes := await mounted(box, means):
            await member.asleep.instance.configure(Change(volumes=volumes))
        await wake(box, means, member.asleep.link, member.base)
        if box.spec.limits.pids != member.kind.limits.pids:
            await member.asleep.instance.configure(Change(pids=box.spec.limits.pids))


class Direct:
    """It is restored from its template's snapshot, and booted where that fails or there is none.

    Args:
        held: The snapshot.
        came: Told the path by which it has come to its first answer.
        unusable: Told why the snapshot could not be restored from.
    """

    def __init__(self, held: Held | None, came: Callable[[str], None], unusable: Callable[[Held, str], None]) -> None:
        self._held = held
        self._came = came
        self._unusable = unusable

    async def __call__(self, box: Sandbox, means: Means, holdings: Holdings) -> Started:
        """Restore it, or boot it."""
        if self._held is not None:
            path = DIRECT

            async def prepare(shape: Shape, *, snapshot: Path | None = None) -> Blank:
                nonlocal path
                blank = await means.prepare(shape, snapshot=snapshot)
                path = BLANK if isinstance(blank, Lent) else DIRECT
                return blank

            # Outside of the `try`: a store that refuses the record says nothing about the snapshot, and refuses the boot as well.
            await means.register.intend(box)
            try:
                started = await restore(self._held.image, box, replace(means, prepare=prepare), holdings)
            except SandlotError as error:
                if box.wanted.is_set() or box.leaving.is_set():
                    raise
                _log.warning("sandbox.not_restored", sandbox=box.id, error=str(error))
                self._unusable(self._held, str(error))
                await asyncio.shield(_undo(box, holdings))
            else:
                self._came(path)
                return started
        started = await boot(box, means, holdings)
        self._came(BOOT)
        return started


class Lent:
    """A blank that was prepared ahead. Where it turns out not to take a snapshot, another one is prepared for it.

    Args:
        blank: It.
        anew: Prepares another one for a snapshot.
    """

    def __init__(self, blank: Blank, anew: Callable[[], Coroutine[Any, Any, Blank]]) -> None:
        self._blank = blank
        self._anew = anew
        self._volumes: tuple[Attachment, ...] = ()

    async def warm(self) -> None:
        """It is."""
        await self._blank.warm()

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Let it have volumes."""
        self._volumes = tuple(volumes)
        await self._blank.attach(volumes)

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the guest."""
        return await self._blank.boot(spec)

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> Instance:
        """Start from a snapshot."""
        try:
            return await self._blank.restore(snapshot, spec)
        except SandboxEndedError:
            raise
        except SandlotError as error:
            if error.code is not ErrorCode.SNAPSHOT_UNUSABLE:
                raise
            await asyncio.shield(self._blank.destroy())
            self._blank = await self._anew()
            if self._volumes:
                await self._blank.attach(self._volumes)
            return await self._blank.restore(snapshot, spec)

    async def destroy(self) -> None:
        """Give everything back. Idempotent."""
        await self._blank.destroy()


async def _undo(box: Sandbox, holdings: Holdings) -> None:
    """Give back what a start that failed had taken."""
    link, box.link = box.link, None
    if link is not None:
        await link.aclose()
    box.instance = box.ref = None
    while holdings:
        await holdings[-1].destroy()
        holdings.pop()
