"""A sandbox that is nobody's yet: started, made warm, asleep.

Laws:
- What is said to it while it is made is the same for all of a kind: a neutral name, its template's environment, no deadline.
- It becomes somebody by the one message that wakes it, which brings everything that is its own: name, environment, randomness, limits.
- What cannot be finished is given back whole, by whoever began it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandlot.core.node.drivers import driver_step
from sandlot.core.node.start_steps import ExitedError, connect_guest, restore_image
from sandlot.core.ports import GuestLinkFactory, ResolvedTemplate
from sandlot.link.client import Link
from sandlot.model.errors import HostError, InvalidRequestError, NotFoundError, UnsupportedError
from sandlot.model.ids import SandboxId
from sandlot.model.ports import Driver, Exit, Instance, PreparedSandbox
from sandlot.model.specs import Limits, Network, ProcessSpec, SandboxSpec, Shape

NEUTRAL: Final = "template"
"""Who a sandbox is while it is made; nothing of it is left once it is woken as somebody."""

_TRY_TIMEOUT_S = 60.0


@dataclass(slots=True)
class StartedWarmSandbox:
    """It.

    Args:
        instance: It, as its driver knows it.
        link: To its guest, which is asleep.
        exits: Resolved when its processes end.
        restored: Whether it was restored from a snapshot; otherwise it was booted.
    """

    instance: Instance
    link: Link
    exits: asyncio.Future[Exit]
    restored: bool

    async def destroy(self) -> None:
        """End it and remove every trace. Idempotent."""
        self.exits.cancel()
        await self.link.aclose()
        await self.instance.destroy()


@dataclass(frozen=True, slots=True)
class WarmSandboxFactory:
    """What such a sandbox is made with.

    Args:
        driver: Who isolates.
        greet: Makes a link to a guest.
        template: What it is made from, by name.
        base: What that gives.
        limits: What it may use.
    """

    driver: Driver
    greet: GuestLinkFactory
    template: str
    base: ResolvedTemplate
    limits: Limits

    @property
    def shape(self) -> Shape:
        """What must be known of it to prepare it."""
        return Shape(root=self.base.root, limits=self.limits, network=Network.NONE)

    def spec(self, id_: SandboxId) -> SandboxSpec:
        """It, as a driver is told."""
        return SandboxSpec(
            id=id_,
            template=self.template,
            limits=self.limits,
            timeout_s=None,
            network=Network.NONE,
            isolation=self.driver.name,
            root=self.base.root.digest,
        )

    async def boot(self, id_: SandboxId) -> StartedWarmSandbox:
        """Start it as a machine starts, make it warm, and let it fall asleep.

        Raises:
            SandlotError: It could not; nothing of it is left.
        """
        prepared = await driver_step("prepare", self.driver.prepare(self.shape))
        instance = await _or_destroyed(prepared, driver_step("start", prepared.boot(self.spec(id_))))
        made = await self._reached(instance, restored=False)
        await self._warmed(made)
        return made

    async def restore(self, id_: SandboxId, image: Path) -> StartedWarmSandbox:
        """Restore it from a snapshot: asleep, and said nothing but hello.

        Raises:
            SandlotError: It could not; nothing of it is left.
        """
        owner = _Owner()
        try:
            instance = await restore_image(owner, self.driver, image, self.shape, self.spec(id_))
        except BaseException:
            await asyncio.shield(owner.destroy())
            raise
        made = await self._reached(instance, restored=True)
        if not made.link.asleep:
            await asyncio.shield(made.destroy())
            raise HostError("What was restored from a template snapshot is awake.", hint="It is made anew.")
        return made

    async def rehearse(self, id_: SandboxId, image: Path) -> StartedWarmSandbox:
        """Restore it, and let it go through once what it will go through when it is claimed, as nobody: then its memory is where that needs it.

        Raises:
            SandlotError: It could not; nothing of it is left.
        """
        made = await self.restore(id_, image)
        await self._warmed(made, rehearsed=True)
        return made

    async def _warmed(self, made: StartedWarmSandbox, *, rehearsed: bool = False) -> None:
        """Woken as nobody, made warm, asleep again."""
        try:
            has_python = await driver_step("answer", self.wake(made.link, NEUTRAL, NEUTRAL))
            if rehearsed:
                await _rehearse(made.link)
            if has_python:
                await made.link.warm(lean=True)
            await made.link.quiesce()
        except BaseException:
            await asyncio.shield(made.destroy())
            raise

    async def wake(self, link: Link, identity: str, hostname: str, env: Mapping[str, str] | None = None) -> bool:
        """Make it somebody, for as long as it is tried; whether its image has a python."""
        python = await link.wake(
            identity=identity,
            hostname=hostname,
            env=self.base.env if env is None else env,
            pids=self.limits.pids,
            memory_bytes=self.limits.memory_bytes,
            deadline_s=None,
        )
        return python is not None

    async def _reached(self, instance: Instance, *, restored: bool) -> StartedWarmSandbox:
        exits = asyncio.ensure_future(instance.wait())
        try:
            link = await connect_guest(instance, exits, self.greet, {}, timeout_s=_TRY_TIMEOUT_S)
        except BaseException as error:
            exits.cancel()
            await asyncio.shield(instance.destroy())
            if isinstance(error, ExitedError):
                raise _ended_early(error.exit) from None
            raise
        return StartedWarmSandbox(instance, link, exits, restored)


class _Owner:
    """Owner of a prepared sandbox that no supervisor owns."""

    def __init__(self) -> None:
        self._prepared: PreparedSandbox | None = None

    def take(self, resource: PreparedSandbox) -> None:
        """Own a prepared sandbox from now on."""
        self._prepared = resource

    def check_end(self) -> None:
        """Do nothing: a warm sandbox that is being made is ended by cancelling."""

    async def destroy(self) -> None:
        """Destroy the prepared sandbox, if there is one."""
        if self._prepared is not None:
            await self._prepared.destroy()


async def verify_restored(making: WarmSandboxFactory, made: StartedWarmSandbox) -> None:
    """See that what was restored works: it is woken, runs a command and, where it has a python, a cell. It is of no more use afterwards.

    Raises:
        HostError: It does not.
        SandlotError: It ended, or did not answer.
    """
    async with asyncio.timeout(_TRY_TIMEOUT_S):
        has_python = await making.wake(made.link, "tried", "tried")
        process = await made.link.start(ProcessSpec(argv=("/bin/sh", "-c", "true"), timeout_s=_TRY_TIMEOUT_S))
        ended = await process.result()
        if ended.exit_code != 0:
            raise HostError(f"A template snapshot cannot be used: 'true' ended with {ended.exit_code} in it.")
        if has_python:
            cell = await made.link.execute("print(1)", language="python", timeout_s=_TRY_TIMEOUT_S)
            done = await cell.result()
            if str(done.status) != "ok":
                raise HostError(f"A template snapshot cannot be used: print(1) ended with {done.status} in it.")


async def _rehearse(link: Link) -> None:
    """Run a command: what the guest does for one it has done once.

    After a restore each page of memory costs a moment when it is first touched (50 us in gVisor, where a cell and its way there touch a thousand).
    The python kernel that waits rehearses by itself (``guest.warm``).
    """
    async with asyncio.timeout(_TRY_TIMEOUT_S):
        with contextlib.suppress(NotFoundError, UnsupportedError, InvalidRequestError):  # an image without it does not need it
            process = await link.start(ProcessSpec(argv=("/bin/true",), timeout_s=_TRY_TIMEOUT_S, hidden=True))
            await process.result()


def _ended_early(how: Exit) -> HostError:
    return HostError(f"The sandbox ended before it answered ({how.reason}: {how.detail}).", hint="The service's log may have more.")


async def _or_destroyed(prepared: PreparedSandbox, work: Coroutine[Any, Any, Instance]) -> Instance:
    try:
        return await work
    except BaseException:
        await asyncio.shield(prepared.destroy())
        raise
