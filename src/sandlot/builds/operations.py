"""Operations on builds that the routes of all APIs share: parse a Dockerfile, request and cancel a build, and delete a template with its builds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import HTTPConnection

from sandlot.builds import dockerfile
from sandlot.builds.dependencies import find_build_runner, get_build_runner
from sandlot.builds.plan import BuildPlan
from sandlot.host.blocking import outlast_cancellation, run_in_own_thread
from sandlot.model.access import Principal
from sandlot.model.errors import SandlotError
from sandlot.model.specs import Limits
from sandlot.model.templates import BuildRecord
from sandlot.web.dependencies import get_node

OPEN_BUILDS: Final = 1000
"""Number of newest builds of a template that are looked at when the template is deleted. Older ones have ended."""


async def parse_dockerfile(text: str, *, args: Mapping[str, str] | None = None, target: str = "") -> dockerfile.Dockerfile:
    """Parse a Dockerfile in a thread, because it can be hostile. For arguments and errors see :func:`~sandlot.builds.dockerfile.parse`."""
    return await run_in_own_thread(dockerfile.parse, text, args=args, target=target)


async def request_build(
    request: HTTPConnection, principal: Principal, template: str, plan: BuildPlan, *, limits: Limits | None, tags: Sequence[str] = ()
) -> BuildRecord:
    """Request a build and start it, also if the caller is cancelled meanwhile.

    Raises:
        LimitError: The principal has too many waiting builds.
    """

    async def work() -> BuildRecord:
        builds.check_room(principal)
        _, build = await get_node(request).template_builds.request(principal, template, limits=limits, tags=tags)
        async with cancelled_on_failure(request, principal, build):
            await builds.start(principal, build, plan)
        return build

    builds = get_build_runner(request)
    return await outlast_cancellation(work())


@asynccontextmanager
async def cancelled_on_failure(request: HTTPConnection, principal: Principal, build: BuildRecord) -> AsyncIterator[None]:
    """Cancel a build if the body, which starts the build, fails. Otherwise, a build that no client can start again would wait for ever."""
    try:
        yield
    except BaseException:
        await outlast_cancellation(cancel_build(request, principal, build))
        raise


@asynccontextmanager
async def failed_on_error(request: HTTPConnection, build: BuildRecord) -> AsyncIterator[None]:
    """Record a build as failed if the body, which makes the plan of the build, raises an error. Otherwise, the build would wait for ever."""
    try:
        yield
    except SandlotError as error:
        await outlast_cancellation(get_node(request).template_builds.fail(build, error))
        raise


async def cancel_build(request: HTTPConnection, principal: Principal, build: BuildRecord) -> BuildRecord:
    """Cancel a build, also one that was never started. Return the build as it has ended. Idempotent."""
    builds = find_build_runner(request)
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
    if (builds := find_build_runner(request)) is not None:
        await builds.prune()
