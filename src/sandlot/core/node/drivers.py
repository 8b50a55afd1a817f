"""What sandboxes are made of: templates and drivers, probed and built once however many ask."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

import structlog

from sandlot.core.ports import ResolvedTemplate, Template, Templates
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError
from sandlot.model.ports import Capabilities, Driver, DriverCapability
from sandlot.model.specs import SandboxSpec

_log = structlog.get_logger("sandlot.core")


class Supply:
    """Drivers and templates of one service.

    Args:
        drivers: Isolation name -> driver.
        templates: What sandboxes start from.
    """

    def __init__(self, drivers: Mapping[str, Driver], templates: Templates) -> None:
        self.drivers = drivers
        self._templates = templates
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}
        self._building: dict[str, asyncio.Task[ResolvedTemplate]] = {}

    def names(self) -> Collection[str]:
        """What a sandbox can be started from, by name."""
        return self._templates.names()

    async def templates(self) -> list[Template]:
        """What a sandbox can be started from."""
        return list(await asyncio.to_thread(self._templates.all))

    async def capabilities(self, isolation: str) -> Capabilities:
        """What a driver can do here. A driver that can start sandboxes is probed once; one that cannot, whenever it is asked for."""
        probe = self._probes.get(isolation)
        if probe is None:
            probe = self._probes[isolation] = asyncio.create_task(asyncio.to_thread(self.drivers[isolation].probe))
        try:
            found = await asyncio.shield(probe)
        except Exception:
            self._probes.pop(isolation, None)
            raise
        if not found.can(DriverCapability.BOOT):
            self._probes.pop(isolation, None)
        return found

    async def able(self, isolation: str, ability: DriverCapability) -> Capabilities:
        """The same, where somebody needs one ability: a driver that has said no to it is asked anew, and looks again when it sees fit."""
        found = await self.capabilities(isolation)
        if not found.can(ability):
            self._probes.pop(isolation, None)
            found = await self.capabilities(isolation)
        return found

    async def all_capabilities(self) -> list[Capabilities]:
        """What every driver can do here."""
        return [await self.capabilities(name) for name in self.drivers]

    async def base(self, template: str) -> ResolvedTemplate:
        """What a template gives; however many wait for its build, they take one thread."""
        task = self._building.get(template)
        if task is None:
            task = self._building[template] = asyncio.create_task(asyncio.to_thread(self._templates.base, template))
            task.add_done_callback(lambda done: self._built(template, done))
        return await asyncio.shield(task)

    async def base_of(self, spec: SandboxSpec) -> ResolvedTemplate:
        """What a sandbox is started from: its template's, or, where it is known which that was, that very one.

        Raises:
            ConflictError: ``snapshot_unusable``: that is not there any more.
        """
        if not spec.root:
            return await self.base(spec.template)
        found = await asyncio.to_thread(self._templates.at, spec.template, spec.root)
        if found is None:
            raise ConflictError(
                f"The root file system of this {spec.template!r} is not there any more.",
                code=ErrorCode.SNAPSHOT_UNUSABLE,
                hint="The template was built anew since, and the old one was removed: start from the template, or from a snapshot of files.",
                fields={"template": spec.template, "root": spec.root},
            )
        return found

    def check_template(self, name: str) -> None:
        """Refuse a template that is none.

        Raises:
            NotFoundError: ``template_not_found``.
        """
        names = self._templates.names()
        if name not in names:
            raise NotFoundError(
                f"There is no template {name[:64]!r}.",
                code=ErrorCode.TEMPLATE_NOT_FOUND,
                hint=f"There are: {', '.join(sorted(names))}.",
                fields={"template": name[:64]},
            )

    def _built(self, template: str, task: asyncio.Task[ResolvedTemplate]) -> None:
        del self._building[template]
        if not task.cancelled() and (error := task.exception()) is not None:
            # Whoever waited for it has been told; but they may all have gone away.
            _log.warning("template.failed", template=template, error=str(error))
