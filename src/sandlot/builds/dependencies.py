"""Objects of the app that routes of builds need."""

from __future__ import annotations

from typing import Protocol

from starlette.requests import HTTPConnection

from sandlot.builds.plan import BuildPlan
from sandlot.builds.uploads import Uploads
from sandlot.model.access import Principal
from sandlot.model.errors import ErrorCode, UnsupportedError
from sandlot.model.templates import BuildRecord


class BuildRunner(Protocol):
    """Starts and cancels the builds of a node. :class:`~sandlot.builds.runtime.BuildRuntime` implements it."""

    async def start(self, principal: Principal, build: BuildRecord, plan: BuildPlan) -> None:
        """Start a build that waits. The build continues when the call returns or is cancelled, and records its work.

        Args:
            principal: Owner of the build.
            build: Build that :meth:`~sandlot.core.template_builds.TemplateBuilds.request` has returned.
            plan: Plan of the build.
        """
        ...

    def check_room(self, principal: Principal) -> None:
        """Check that the principal can start another build now. A build that is refused afterwards would stay as a cancelled one.

        Raises:
            LimitError: The principal has too many waiting builds.
        """
        ...

    async def cancel(self, principal: Principal, build: str) -> bool:
        """Cancel a build, and wait until its sandboxes are removed. Return False if the build does not run or wait on this node."""
        ...

    async def prune(self) -> None:
        """Remove the layers that no build needs. Does nothing while a build runs."""
        ...


def find_build_runner(request: HTTPConnection) -> BuildRunner | None:
    """Return the build runner of the app, or None if the service builds no templates."""
    runner: BuildRunner | None = getattr(request.app.state, "builds", None)
    return runner


def get_build_runner(request: HTTPConnection) -> BuildRunner:
    """Return the build runner of the app.

    Raises:
        UnsupportedError: The service builds no templates.
    """
    runner = find_build_runner(request)
    if runner is None:
        raise UnsupportedError(
            "This service builds no templates.", code=ErrorCode.UNSUPPORTED, hint="Install packages in a sandbox and take a snapshot."
        )
    return runner


def get_uploads(request: HTTPConnection) -> Uploads:
    """Return the uploads of the app."""
    uploads: Uploads = request.app.state.uploads
    return uploads
