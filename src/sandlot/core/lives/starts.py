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

from sandlot.core.lives.means import Ended, Means, check, guest_deadline_s, left_s, step, turn, unless_ended
from sandlot.core.ports import Base
from sandlot.core.sandbox import Sandbox
from sandlot.link.client import Link
from sandlot.link.types import LinkLost, LostReason
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, SandboxEndedError, SandlotError
from sandlot.model.ports import Attachment, Blank, Exit, ExitReason, Instance
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


Start = Callable[[Sandbox, Means, list[Blank | Instance]], Coroutine[Any, Any, Started]]
"""How a sandbox comes to its first answer. It records the intent first, where a kill in the middle could leave what nobody else removes, and puts
what it takes into the list."""


class Prepare(Protocol):
    """Makes blank sandboxes: a driver's ``prepare``, or what has some made ahead."""

    def __call__(self, shape: Shape, *, snapshot: Path | None = None) -> Coroutine[Any, Any, Blank]:
        """One of a shape; ``snapshot`` is what it is going to be restored from."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
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


async def boot(box: Sandbox, means: Means, holdings: list[Blank | Instance]) -> Started:
    """From a template, as a machine starts."""
    await means.register.intend(box)
    base = await based(box, means)
    async with turn(box, means.turns):
        blank = await step("prepare", means.driver.prepare(shape_of(box, base)))
        holdings.append(blank)
        check(box)
        await attach(box, means, blank)
        instance = await step("start", blank.boot(box.spec))
        return await answering(box, means, holdings, instance, base)


@dataclass(frozen=True, slots=True)
class Restored:
    """From an image of memory and files.

    Args:
        image: The folder that a driver wrote.
    """

    image: Path

    async def __call__(self, box: Sandbox, means: Means, holdings: list[Blank | Instance]) -> Started:
        """Go on from it, as another sandbox, or as the same one."""
        await means.register.intend(box)
        return await restore(self.image, box, means, holdings)


async def restore(image: Path, box: Sandbox, means: Means, holdings: list[Blank | Instance]) -> Started:
    """Start a sandbox from an image of memory and files. The caller has recorded the intent."""
    base = await based(box, means)
    async with turn(box, means.turns):
        blank = await step("prepare", means.prepare(shape_of(box, base), snapshot=image))
        holdings.append(blank)
        check(box)
        await attach(box, means, blank)
        instance = await step("restore", blank.restore(image, box.spec))
        return await answering(box, means, holdings, instance, base)


async def attach(box: Sandbox, means: Means, to: Blank) -> None:
    """Let a sandbox have its volumes, before anything of it runs."""
    if volumes := await mounted(box, means):
        await step("attach a volume to", to.attach(volumes))


async def mounted(box: Sandbox, means: Means) -> tuple[Attachment, ...]:
    """Its volumes, mounted on the host; they are let go of when it is gone."""
    if not box.spec.volumes or means.volumes is None:
        return ()
    return await step("attach a volume to", means.volumes.attach(box.id, box.spec.volumes))


async def answering(box: Sandbox, means: Means, holdings: list[Blank | Instance], instance: Instance, base: Base) -> Started:
    """Reach the guest of what was just started, and wake it.

    Args:
        box: The sandbox.
        means: What its life is made with.
        holdings: What it has; the instance takes the place of its blank.
        instance: It.
        base: What it was started from.

    Raises:
        InvalidRequestError: It has too little memory to start.
        HostError: It died; says how.
        Ended: It was asked to end.
    """
    holdings[:] = [instance]
    box.instance = instance
    box.ref = instance.ref
    exits = asyncio.ensure_future(instance.wait())
    try:
        link = box.link = await first_answer(box, _open(box, means, instance, base), exits)
    except BaseException:
        exits.cancel()
        raise
    return Started(instance, link, exits)


async def wake(box: Sandbox, means: Means, link: Link, base: Base) -> None:
    """Make a guest that is asleep this sandbox's."""
    await link.wake(
        identity=box.id,
        hostname=box.id,
        env={**base.env, **box.spec.env},
        pids=box.spec.limits.pids,
        memory_bytes=box.spec.limits.memory_bytes,
        deadline_s=guest_deadline_s(left_s(box, means.clock) if box.told else box.spec.timeout_s),
    )


async def reach(box: Sandbox, means: Means, instance: Instance) -> Link:
    """A link to a guest that runs already, and woken where it is asleep: what an earlier service was doing with it is over."""
    link = await means.greet(await instance.connect(), services=means.services(box))
    try:
        if link.asleep:
            await wake(box, means, link, await means.base(box.spec))
        else:
            # Said again, also that there is none: of a change that was cut in half, what is recorded holds.
            await link.set_deadline(guest_deadline_s(left_s(box, means.clock)))
            with suppress(ConflictError):  # it runs more than that by now; what the host gives bounds it all the same
                await link.set_limits(pids=box.spec.limits.pids, memory_bytes=box.spec.limits.memory_bytes)
    except BaseException:
        await link.aclose()
        raise
    return link


async def first_answer(box: Sandbox, opening: Coroutine[Any, Any, Link], exits: asyncio.Future[Exit]) -> Link:
    """The link to a guest that was just started.

    Raises:
        InvalidRequestError: It has too little memory to start.
        HostError: It died; says how.
    """
    try:
        return await unless_ended(box, step("answer", opening), exits)
    except SandboxEndedError as error:
        died = await last_word(exits, LinkLost(LostReason.EOF, error.message))
    except Ended:
        if not exits.done():
            raise
        died = exits.result()
    detail = f"{died.reason}: {died.detail}" if died.detail else str(died.reason)
    if died.reason is ExitReason.OOM:
        raise InvalidRequestError(
            f"{box.spec.limits.memory_bytes} bytes of memory are too few for this sandbox to start ({detail}).",
            hint="Raise limits.memory_bytes.",
            fields={"field": "limits.memory_bytes"},
        )
    raise _bad_guest(detail, died.reason)


async def last_word(exits: asyncio.Future[Exit], lost: LinkLost) -> Exit:
    """How a sandbox ended whose link is gone: the driver's word, or, where it still lives, what became of the link."""
    if lost.reason is not LostReason.VIOLATION:
        await asyncio.wait({exits}, timeout=LAST_WORD_S)
    if exits.done():
        return exits.result()
    broke = "its guest broke the laws of the link" if lost.reason is LostReason.VIOLATION else "the link to its guest is gone"
    return Exit(ExitReason.CRASHED, f"{broke}: {lost.detail}" if lost.detail else broke)


async def based(box: Sandbox, means: Means) -> Base:
    """What a sandbox is started from; its spec says which that was, from now on."""
    base = await unless_ended(box, means.base(box.spec))
    box.spec = replace(box.spec, root=base.root.digest)
    return base


def shape_of(box: Sandbox, base: Base) -> Shape:
    """What a driver has to know of a sandbox before it is anyone's. Pure."""
    return Shape(root=base.root, limits=box.spec.limits, network=box.spec.network)


async def _open(box: Sandbox, means: Means, instance: Instance, base: Base) -> Link:
    link = await means.greet(await instance.connect(), services=means.services(box))
    try:
        await wake(box, means, link, base)
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
