"""Parts of routes that serve builds."""

from __future__ import annotations

from typing import Final, Protocol

from starlette.requests import HTTPConnection

from sandlot.builds.plan import BuildPlan
from sandlot.builds.uploads import Uploads
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, UnsupportedError
from sandlot.model.templates import BuildRecord
from sandlot.web.dependencies import get_node

OPEN_BUILDS: Final = 1000
"""Number of newest builds of a template that are looked at when the template is deleted. Older ones have ended."""


class Builds(Protocol):
    """Runs builds."""

    async def start(self, principal: Principal, build: BuildRecord, plan: BuildPlan) -> None:
        """Start a build that waits. The build continues when the call returns, and records its work.

        Args:
            principal: Owner of the build.
            build: Build that :meth:`~sandlot.core.template_builds.TemplateBuilds.request` has returned.
            plan: Plan of the build.
        """
        ...

    async def cancel(self, principal: Principal, build: str) -> bool:
        """Cancel a build, and wait until its sandboxes are removed. Return False if the build does not run or wait on this node."""
        ...

    async def prune(self) -> None:
        """Remove the layers that no build needs. Does nothing while a build runs."""
        ...


def get_builds(request: HTTPConnection) -> Builds:
    """Return the runner of the builds of the app.

    Raises:
        UnsupportedError: The service builds no templates.
    """
    builds: Builds | None = getattr(request.app.state, "builds", None)
    if builds is None:
        raise UnsupportedError(
            "This service builds no templates.", code=ErrorCode.UNSUPPORTED, hint="Install packages in a sandbox and take a snapshot."
        )
    return builds


async def cancel_build(request: HTTPConnection, principal: Principal, build: BuildRecord) -> BuildRecord:
    """Cancel a build, also one that was never started. Return the build as it has ended. Idempotent."""
    builds: Builds | None = getattr(request.app.state, "builds", None)
    records = get_node(request).template_builds
    if not build.status.has_ended and (builds is None or not await builds.cancel(principal, build.id)):
        await records.cancel(build)
    return await records.get_build(principal, build.id)


async def delete_template(request: HTTPConnection, principal: Principal, template: str) -> None:
    """Cancel the open builds of a template of a user, and delete the template.

    Raises:
        NotFoundError: There is no such template.
    """
    records = get_node(request).template_builds
    record = await records.get(principal, template)
    for build in (await records.list_builds(principal, template=record.id, limit=OPEN_BUILDS)).items:
        if not build.status.has_ended:
            await cancel_build(request, principal, build)
    await records.delete(principal, record.id)
    if (builds := getattr(request.app.state, "builds", None)) is not None:
        await builds.prune()


def get_uploads(request: HTTPConnection) -> Uploads:
    """Return the uploads of the app."""
    uploads: Uploads = request.app.state.uploads
    return uploads
