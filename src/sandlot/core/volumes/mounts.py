"""Which volumes the sandboxes of this node have: attached to one that runs, and detached (:mod:`sandlot.core.volumes.mounting`)."""

from __future__ import annotations

import functools
from dataclasses import replace

from sandlot.core.lives.orders import Work
from sandlot.core.sandbox import Sandbox
from sandlot.core.sandboxes import Sandboxes
from sandlot.core.volumes import mounting
from sandlot.core.volumes.volumes import Volumes
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, UnsupportedError
from sandlot.model.ports import Ability
from sandlot.model.specs import VolumeMount


class Mounts:
    """Which volumes the sandboxes of this node have.

    Args:
        sandboxes: They.
        volumes: The volumes.
    """

    def __init__(self, sandboxes: Sandboxes, volumes: Volumes) -> None:
        self._sandboxes = sandboxes
        self._volumes = volumes

    async def attach(self, sandbox: str, who: Principal, mount: VolumeMount) -> Sandbox:
        """Let a sandbox have a volume from now on; one that rests is resumed for it. What it has so already, it has.

        Args:
            sandbox: Its id.
            who: Who asks. The volume is one of the sandbox's owner.
            mount: The volume, by its name or id, and where it is to be.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``.
            UnsupportedError: Its isolation cannot; or the image has no such place for it.
            ConflictError: The place is another volume's, it has the volume elsewhere, or as many as it may; it is being forked or written to a
                snapshot; ``sandbox_paused``.
            HostError: The host cannot, or it cannot be recorded; nothing is attached.
            SandboxEndedError: It has ended.
        """
        box = self._sandboxes.find(sandbox, who)
        owner = who if box.owner == who.owner else replace(who, owner=box.owner, operator=False)
        self._volumes.resolve(owner, (mount,))  # before anything is resumed for it
        await self._check(box)
        await self._ordered(box, functools.partial(mounting.attach, who=owner, mount=mount))
        return box

    async def detach(self, sandbox: str, who: Principal, which: str) -> Sandbox:
        """Take a volume away from a sandbox; what is in it stays. One that rests is resumed for it.

        Args:
            sandbox: Its id.
            who: Who asks.
            which: Where it is: a path; or the volume's name or id.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``: it has none there.
            UnsupportedError: Its isolation cannot.
            ConflictError: Something inside uses it; it is being forked or written to a snapshot; ``sandbox_paused``.
            HostError: The host cannot, or it cannot be recorded; it stays attached.
            SandboxEndedError: It has ended.
        """
        box = self._sandboxes.find(sandbox, who)
        await self._check(box)
        mounting.found(box, which)
        await self._ordered(box, functools.partial(mounting.detach, which=which))
        return box

    async def _check(self, box: Sandbox) -> None:
        if box.wanted.is_set() or box.ended.is_set():
            raise box.ended_error()
        can = await self._sandboxes.supply.capabilities(box.spec.isolation)
        for ability in (Ability.VOLUMES, Ability.CONFIGURE_VOLUMES):
            if not can.can(ability):
                raise UnsupportedError(
                    f"The volumes of a sandbox that runs cannot be changed with the isolation {box.spec.isolation!r}: {can.why_not(ability)}.",
                    code=ErrorCode.UNSUPPORTED,
                    hint="Say which volumes it has when it is created.",
                    fields={"ability": str(ability)},
                )

    async def _ordered(self, box: Sandbox, work: Work[None]) -> None:
        await box.within_reach()
        async with box.changing:
            await box.orders.put(work)
        box.activity.touch()
