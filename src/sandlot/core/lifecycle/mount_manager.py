"""Which volumes the sandboxes of this node have: attached to one that runs, and detached (:mod:`sandlot.core.lifecycle.mounts`)."""

from __future__ import annotations

import functools
from dataclasses import replace

from sandlot.core.lifecycle import mounts
from sandlot.core.manager import SandboxManager
from sandlot.core.operations import Work
from sandlot.core.sandbox import Sandbox
from sandlot.core.volumes import VolumeManager
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, UnsupportedError
from sandlot.model.ports import DriverCapability
from sandlot.model.specs import VolumeMount


class MountManager:
    """Which volumes the sandboxes of this node have.

    Args:
        manager: They.
        volumes: The volumes.
    """

    def __init__(self, manager: SandboxManager, volumes: VolumeManager) -> None:
        self._manager = manager
        self._volumes = volumes

    async def attach(self, sandbox_id: str, principal: Principal, mount: VolumeMount) -> Sandbox:
        """Let a sandbox have a volume from now on; one that rests is resumed for it. What it has so already, it has.

        Args:
            sandbox_id: Its id.
            principal: Who asks. The volume is one of the sandbox's owner.
            mount: The volume, by its name or id, and where it is to be.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``.
            UnsupportedError: Its isolation cannot; or the image has no such place for it.
            ConflictError: The place is another volume's, it has the volume elsewhere, or as many as it may; it is being forked or written to a
                snapshot; ``sandbox_paused``.
            HostError: The host cannot, or it cannot be recorded; nothing is attached.
            SandboxEndedError: It has ended.
        """
        sandbox = self._manager.find(sandbox_id, principal)
        owner = principal if sandbox.owner == principal.owner else replace(principal, owner=sandbox.owner, operator=False)
        self._volumes.resolve(owner, (mount,))  # before anything is resumed for it
        await self._check(sandbox)
        await self._ordered(sandbox, functools.partial(mounts.attach, principal=owner, mount=mount))
        return sandbox

    async def detach(self, sandbox_id: str, principal: Principal, which: str) -> Sandbox:
        """Take a volume away from a sandbox; what is in it stays. One that rests is resumed for it.

        Args:
            sandbox_id: Its id.
            principal: Who asks.
            which: Where it is: a path; or the volume's name or id.

        Raises:
            NotFoundError: ``sandbox_not_found``; ``volume_not_found``: it has none there.
            UnsupportedError: Its isolation cannot.
            ConflictError: Something inside uses it; it is being forked or written to a snapshot; ``sandbox_paused``.
            HostError: The host cannot, or it cannot be recorded; it stays attached.
            SandboxEndedError: It has ended.
        """
        sandbox = self._manager.find(sandbox_id, principal)
        await self._check(sandbox)
        mounts.found(sandbox, which)
        await self._ordered(sandbox, functools.partial(mounts.detach, which=which))
        return sandbox

    async def _check(self, sandbox: Sandbox) -> None:
        if sandbox.end_requested.is_set() or sandbox.ended.is_set():
            raise sandbox.ended_error()
        can = await self._manager.supply.capabilities(sandbox.spec.isolation)
        for ability in (DriverCapability.VOLUMES, DriverCapability.CONFIGURE_VOLUMES):
            if not can.can(ability):
                raise UnsupportedError(
                    f"The volumes of a sandbox that runs cannot be changed with the isolation {sandbox.spec.isolation!r}: {can.why_not(ability)}.",
                    code=ErrorCode.UNSUPPORTED,
                    hint="Say which volumes it has when it is created.",
                    fields={"ability": str(ability)},
                )

    async def _ordered(self, sandbox: Sandbox, work: Work[None]) -> None:
        await sandbox.wait_reachable()
        async with sandbox.change_lock:
            await sandbox.operations.submit(work)
        sandbox.activity.touch()
