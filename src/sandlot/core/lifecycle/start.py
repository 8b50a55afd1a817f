"""How a sandbox comes to its first answer: it boots, or goes on from an image; and how its guest is reached and woken.

Laws:
- What was taken of the host is in the holdings before anything else is done with it.
- Nothing that is restored answers anything before it was woken as what it is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from sandlot.core.lifecycle.dependencies import (
    LifecycleDependencies,
    SupervisionEndedError,
    check_end,
    guest_deadline_s,
    left_s,
    start_slot,
    until_end,
)
from sandlot.core.node.drivers import driver_step
from sandlot.core.ports import ResolvedTemplate
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.types import LinkLost, LostReason
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, SandboxEndedError, SandlotError
from sandlot.model.ports import Attachment, Exit, ExitReason, Instance, PreparedSandbox
from sandlot.model.specs import SandboxSpec, Shape, VolumeMount

LAST_WORD_S = 3.0
"""How long a driver may take to say how a sandbox ended whose link broke."""

_SAID_CHARS = 500
"""Of what a guest says of itself, in an error."""


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox that answers.

    Args:
        instance: It, as its driver knows it.
        link: To its guest, awake.
        exits: Resolved when its processes end.
        recorded: Whether it is recorded already that it runs.
    """

    instance: Instance
    link: Link
    exits: asyncio.Future[Exit]
    recorded: bool = False


Start = Callable[[Sandbox, LifecycleDependencies, list[PreparedSandbox | Instance]], Coroutine[Any, Any, Started]]
"""How a sandbox comes to its first answer. It records the intent first, where a kill in the middle could leave what nobody else removes, and puts
what it takes into the list."""


class Prepare(Protocol):
    """Makes blank sandboxes: a driver's ``prepare``, or what has some made ahead."""

    def __call__(self, shape: Shape, *, snapshot: Path | None = None) -> Coroutine[Any, Any, PreparedSandbox]:
        """One of a shape; ``snapshot`` is what it is going to be restored from."""
        ...


@dataclass(frozen=True, slots=True)
class StartSource:
    """What a new sandbox goes on from, in place of a template.

    Args:
        word: What it is, for metrics: ``snapshot`` or ``fork``.
        start: How it comes to its first answer.
        spec: What it was taken of. The new one is of the same template, isolation and root, and has its environment below its own.
        restored: What of a snapshot it goes on from: ``memory`` or ``files``.
        inject: What is done in it first, before its client is told that it runs.
        digest: Of the request, where what is asked for does not say all of it.
        volumes: What the memory that it goes on from has in places that are to be taken away.
        shares: Whether it has the volumes of what it goes on from, in their places.
    """

    word: str
    start: Start
    spec: SandboxSpec
    restored: str = ""
    inject: Callable[[Sandbox], Coroutine[Any, Any, object]] | None = None
    digest: str | None = None
    volumes: tuple[VolumeMount, ...] = ()
    shares: bool = False


async def boot(sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance]) -> Started:
    """From a template, as a machine starts."""
    await dependencies.recorder.intend(sandbox)
    base = await resolved_template(sandbox, dependencies)
    async with start_slot(sandbox, dependencies.turns):
        prepared = await driver_step("prepare", dependencies.driver.prepare(shape_of(sandbox, base)))
        holdings.append(prepared)
        check_end(sandbox)
        await attach(sandbox, dependencies, prepared)
        instance = await driver_step("start", prepared.boot(sandbox.spec))
        return await connect_guest(sandbox, dependencies, holdings, instance, base)


@dataclass(frozen=True, slots=True)
class MemoryImageStart:
    """From an image of memory and files.

    Args:
        image: The folder that a driver wrote.
    """

    image: Path

    async def __call__(self, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance]) -> Started:
        """Go on from it, as another sandbox, or as the same one."""
        await dependencies.recorder.intend(sandbox)
        return await restore(self.image, sandbox, dependencies, holdings)


async def restore(image: Path, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance]) -> Started:
    """Start a sandbox from an image of memory and files. The caller has recorded the intent."""
    base = await resolved_template(sandbox, dependencies)
    async with start_slot(sandbox, dependencies.turns):
        prepared = await driver_step("prepare", dependencies.prepare(shape_of(sandbox, base), snapshot=image))
        holdings.append(prepared)
        check_end(sandbox)
        await attach(sandbox, dependencies, prepared)
        instance = await driver_step("restore", prepared.restore(image, sandbox.spec))
        return await connect_guest(sandbox, dependencies, holdings, instance, base)


async def attach(sandbox: Sandbox, dependencies: LifecycleDependencies, to: PreparedSandbox) -> None:
    """Let a sandbox have its volumes, before anything of it runs."""
    if volumes := await mounted(sandbox, dependencies):
        await driver_step("attach a volume to", to.attach(volumes))


async def mounted(sandbox: Sandbox, dependencies: LifecycleDependencies) -> tuple[Attachment, ...]:
    """Its volumes, mounted on the host; they are let go of when it is gone."""
    if not sandbox.spec.volumes or dependencies.volumes is None:
        return ()
    return await driver_step("attach a volume to", dependencies.volumes.attach(sandbox.id, sandbox.spec.volumes))


async def connect_guest(
    sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance], instance: Instance, base: ResolvedTemplate
) -> Started:
    """Reach the guest of what was just started, and wake it.

    Args:
        sandbox: The sandbox.
        dependencies: What its life is made with.
        holdings: What it has; the instance takes the place of its blank.
        instance: It.
        base: What it was started from.

    Raises:
        InvalidRequestError: It has too little memory to start.
        HostError: It died; says how.
        Ended: It was asked to end.
    """
    holdings[:] = [instance]
    sandbox.instance = instance
    sandbox.ref = instance.ref
    exits = asyncio.ensure_future(instance.wait())
    try:
        link = sandbox.link = await wait_first_response(sandbox, _open(sandbox, dependencies, instance, base), exits)
    except BaseException:
        exits.cancel()
        raise
    return Started(instance, link, exits)


async def wake(sandbox: Sandbox, dependencies: LifecycleDependencies, link: Link, base: ResolvedTemplate) -> None:
    """Make a guest that is asleep this sandbox's."""
    await link.wake(
        identity=sandbox.id,
        hostname=sandbox.id,
        env={**base.env, **sandbox.spec.env},
        pids=sandbox.spec.limits.pids,
        memory_bytes=sandbox.spec.limits.memory_bytes,
        deadline_s=guest_deadline_s(left_s(sandbox, dependencies.clock) if sandbox.is_announced else sandbox.spec.timeout_s),
    )


async def reconnect_guest(sandbox: Sandbox, dependencies: LifecycleDependencies, instance: Instance) -> Link:
    """A link to a guest that runs already, and woken where it is asleep: what an earlier service was doing with it is over."""
    link = await dependencies.greet(await instance.connect(), services=dependencies.services(sandbox))
    try:
        if link.asleep:
            await wake(sandbox, dependencies, link, await dependencies.base(sandbox.spec))
        else:
            # Said again, also that there is none: of a change that was cut in half, what is recorded holds.
            await link.set_deadline(guest_deadline_s(left_s(sandbox, dependencies.clock)))
            with suppress(ConflictError):  # it runs more than that by now; what the host gives bounds it all the same
                await link.set_limits(pids=sandbox.spec.limits.pids, memory_bytes=sandbox.spec.limits.memory_bytes)
    except BaseException:
        await link.aclose()
        raise
    return link


async def wait_first_response(sandbox: Sandbox, opening: Coroutine[Any, Any, Link], exits: asyncio.Future[Exit]) -> Link:
    """The link to a guest that was just started.

    Raises:
        InvalidRequestError: It has too little memory to start.
        HostError: It died; says how.
    """
    try:
        return await until_end(sandbox, driver_step("answer", opening), exits)
    except SandboxEndedError as error:
        died = await exit_after_link_lost(exits, LinkLost(LostReason.EOF, error.message))
    except SupervisionEndedError:
        if not exits.done():
            raise
        died = exits.result()
    detail = f"{died.reason}: {died.detail}" if died.detail else str(died.reason)
    if died.reason is ExitReason.OOM:
        raise InvalidRequestError(
            f"{sandbox.spec.limits.memory_bytes} bytes of memory are too few for this sandbox to start ({detail}).",
            hint="Raise limits.memory_bytes.",
            fields={"field": "limits.memory_bytes"},
        )
    raise _bad_guest(detail, died.reason)


async def exit_after_link_lost(exits: asyncio.Future[Exit], lost: LinkLost) -> Exit:
    """How a sandbox ended whose link is gone: the driver's word, or, where it still lives, what became of the link."""
    if lost.reason is not LostReason.VIOLATION:
        await asyncio.wait({exits}, timeout=LAST_WORD_S)
    if exits.done():
        return exits.result()
    broke = "its guest broke the laws of the link" if lost.reason is LostReason.VIOLATION else "the link to its guest is gone"
    return Exit(ExitReason.CRASHED, f"{broke}: {lost.detail}" if lost.detail else broke)


async def resolved_template(sandbox: Sandbox, dependencies: LifecycleDependencies) -> ResolvedTemplate:
    """What a sandbox is started from; its spec says which that was, from now on."""
    base = await until_end(sandbox, dependencies.base(sandbox.spec))
    sandbox.spec = replace(sandbox.spec, root=base.root.digest)
    return base


def shape_of(sandbox: Sandbox, base: ResolvedTemplate) -> Shape:
    """What a driver has to know of a sandbox before it is anyone's. Pure."""
    return Shape(root=base.root, limits=sandbox.spec.limits, network=sandbox.spec.network)


async def _open(sandbox: Sandbox, dependencies: LifecycleDependencies, instance: Instance, base: ResolvedTemplate) -> Link:
    link = await dependencies.greet(await instance.connect(), services=dependencies.services(sandbox))
    try:
        await wake(sandbox, dependencies, link, base)
    except BaseException as error:
        await link.aclose()
        if isinstance(error, SandlotError) and not isinstance(error, SandboxEndedError):
            # Whatever it says: the client asked for a sandbox, and its guest is not one to answer with a refusal.
            raise _bad_guest(f"its guest refused to begin: {error.message[:_SAID_CHARS]}") from None
        raise
    return link


def _bad_guest(detail: str, reason: ExitReason = ExitReason.CRASHED) -> HostError:
    return HostError(
        f"The sandbox ended while it was starting ({detail}).",
        code=ErrorCode.HOST_NOT_READY,
        hint="'sandlot doctor' checks the host and names every fix.",
        fields={"reason": str(reason)},
    )
