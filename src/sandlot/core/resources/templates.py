"""Templates of a service: their names, and their builds.

Invariant: Concurrent callers share one build of a template.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from sandlot.core.ports import ResolvedTemplate, TemplateStore
from sandlot.core.resources.drivers import Drivers
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, NotFoundError
from sandlot.model.ports import DriverCapability
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import TemplateRef
from sandlot.model.templates import TemplateDefaults

_log = structlog.get_logger("sandlot.core")


class Templates:
    """Templates that principals can name."""

    def __init__(self, store: TemplateStore) -> None:
        self._store = store

    async def list(self, principal: Principal) -> Sequence[TemplateInfo]:
        """Return the templates of a principal and the built-in templates, with the state of their builds."""
        return await self._store.list(principal)

    async def get(self, principal: Principal, name: str) -> TemplateInfo:
        """Return a template with the state of its build.

        Raises:
            NotFoundError: There is no such template (``template_not_found``).
        """
        ref = await self.find(principal, name)
        listed = await self._store.list(principal)
        # The list lacks templates of other owners, which an operator can name by their ids.
        found = next((each for each in listed if (each.name, each.owner) == (ref.name, ref.owner)), None)
        if found is not None:
            return found
        defaults = await self.defaults(ref)
        return TemplateInfo(ref.name, "", defaults.digest or None, owner=ref.owner, limits=defaults.limits)

    async def find(self, principal: Principal, name: str) -> TemplateRef:
        """Return the template that a name means for a principal: the principal's own template, else the built-in template.

        Raises:
            NotFoundError: There is no such template (``template_not_found``).
        """
        ref = await self._store.find(principal, name)
        if ref is None:
            raise NotFoundError(
                f"There is no template {name[:64]!r}.",
                code=ErrorCode.TEMPLATE_NOT_FOUND,
                hint=f"Use one of: {', '.join(sorted(each.name for each in await self._store.list(principal)))}.",
                fields={"template": name[:64]},
            )
        return ref

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        """Return what sandboxes of a template get if their request does not say otherwise. Builds nothing."""
        return await self._store.defaults(ref)


class TemplateResolver:
    """Finds the builds of templates, and builds templates that have no build yet."""

    def __init__(self, store: TemplateStore, drivers: Drivers) -> None:
        self._store = store
        self._drivers = drivers
        self._builds: dict[tuple[TemplateRef, bool], asyncio.Task[ResolvedTemplate]] = {}

    async def defaults(self, ref: TemplateRef) -> TemplateDefaults:
        """Return what sandboxes of a template get if their request does not say otherwise. Builds nothing."""
        return await self._store.defaults(ref)

    async def resolve(self, ref: TemplateRef, isolation: str) -> ResolvedTemplate:
        """Return the build of a template that ``ref`` names. If ``ref`` names the current build and there is none, the template is built first.

        Args:
            ref: Reference to a build or to the current build.
            isolation: Name of the driver that starts the sandbox. The root file system of a current build is of a kind that this driver can start.

        Raises:
            ConflictError: The build with the digest of ``ref`` has been removed (``snapshot_unusable``).
        """
        if not ref.digest:
            return await self._build(ref, images=(await self._drivers.capabilities(isolation)).can(DriverCapability.BOOT_IMAGE))
        found = await self._store.at(ref)
        if found is None:
            raise ConflictError(
                f"The snapshot needs an earlier build of template {ref.name!r}, which has been removed.",
                code=ErrorCode.SNAPSHOT_UNUSABLE,
                hint="Start from the template, or from a snapshot of kind `files`.",
                fields={"template": ref.name, "root": ref.digest},
            )
        return found

    async def _build(self, ref: TemplateRef, *, images: bool) -> ResolvedTemplate:
        build = self._builds.get((ref, images))
        if build is None:
            build = self._builds[ref, images] = asyncio.create_task(self._store.build(ref, images=images))
            build.add_done_callback(lambda done: self._finish_build(ref, done, images=images))
        return await asyncio.shield(build)

    def _finish_build(self, ref: TemplateRef, build: asyncio.Task[ResolvedTemplate], *, images: bool) -> None:
        del self._builds[ref, images]
        if not build.cancelled() and (error := build.exception()) is not None:
            # All callers that waited for the build may have disconnected; then only the log has the error.
            _log.warning("template.build_failed", template=ref.name, error=str(error))
