"""A service that builds templates from images of a real registry, with limits that a test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from sandlot.builds import dockerfile
from sandlot.builds.limits import BuildLimits
from sandlot.builds.plan import BuildPlan
from sandlot.builds.runtime import BuildRuntime
from sandlot.core.ports import SystemClock
from sandlot.egress.packages.config.oci import parse_registries
from sandlot.model.access import OPERATOR, Principal
from sandlot.model.sandboxes import LIVE, CreateSandboxParams, SandboxFilter
from sandlot.model.specs import MIB, Limits, ProcessSpec, User
from sandlot.model.templates import BuildRecord, BuildStatus
from sandlot.server.composition import RunningService
from tests.support.docker_registry import docker_registry, push
from tests.support.oci import MadeImage
from tests.support.oci import tar_of as archive_of
from tests.support.saving import real_service

SMALL = Limits(memory_bytes=256 * MIB, disk_bytes=256 * MIB, pids=64)


class Bench:
    """A service that builds.

    Attributes:
        host: Host and port of the registry, for references of images.
    """

    def __init__(self, service: RunningService, runtime: BuildRuntime, host: str, folder: Path) -> None:
        self.service, self.node, self.runtime, self.host, self.folder = service, service.node, runtime, host, folder

    async def start(
        self, text: str, principal: Principal = OPERATOR, *, name: str = "made", context: Mapping[str, bytes] | None = None, limits: Limits = SMALL
    ) -> BuildRecord:
        """Start the build of a Dockerfile with a context of files."""
        parsed = dockerfile.parse(text)
        _, build = await self.node.template_builds.request(principal, name, limits=limits)
        contexts = {}
        if context is not None:
            contexts[""] = self.folder / f"{build.id}.tar"
            contexts[""].write_bytes(archive_of(context))
        await self.runtime.start(principal, build, BuildPlan(parsed.stages, contexts, warnings=parsed.warnings))
        return build

    async def ended(self, principal: Principal, build: BuildRecord) -> BuildRecord:
        """Wait for the end of a build and return its record."""
        await self.runtime.wait(build.id)
        return await self.node.template_builds.get_build(principal, build.id)

    async def build(
        self, text: str, principal: Principal = OPERATOR, *, name: str = "made", context: Mapping[str, bytes] | None = None, limits: Limits = SMALL
    ) -> BuildRecord:
        """Build a Dockerfile that must become ready."""
        build = await self.ended(principal, await self.start(text, principal, name=name, context=context, limits=limits))
        assert build.status is BuildStatus.READY, (build.error, await self.log(build))
        return build

    async def log(self, build: BuildRecord) -> str:
        """Return the log of a build."""
        page = await self.node.template_builds.lines(OPERATOR, build.id, limit=100_000)
        return "\n".join(line.text for line in page.items)

    async def shell(self, command: str, principal: Principal = OPERATOR, *, template: str = "made", user: User | None = None) -> str:
        """Return what a command line prints in a new sandbox of a template."""
        sandbox = await self.node.sandboxes.create(principal, CreateSandboxParams(template=template))
        try:
            done = await self.node.processes.run(principal, sandbox.id, ProcessSpec(("/bin/sh", "-c", command), user=user))
            assert done.outcome.exit_code == 0, done.stderr.text()
            return done.stdout.text()
        finally:
            await self.node.sandboxes.kill(principal, sandbox.id)

    async def is_idle(self) -> bool:
        """Return whether there is no live sandbox, those of the service included."""
        page = await self.node.sandboxes.list(OPERATOR, SandboxFilter(states=LIVE), after=None, limit=1)
        return not page.items

    def files(self) -> set[str]:
        """Return the paths of all files of builds, temporary ones and layers included."""
        return {str(path.relative_to(self.service.settings.builds)) for path in self.service.settings.builds.rglob("*") if path.is_file()}


@asynccontextmanager
async def building(folder: Path, temporary: Path, images: Mapping[str, MadeImage], limits: BuildLimits) -> AsyncIterator[Bench]:
    """Run a service that builds.

    Args:
        folder: State directory.
        temporary: Folder of the registry and of build contexts.
        images: Repository -> image of the registry, with the tag ``1``.
        limits: Limits of builds.
    """
    async with docker_registry(temporary) as origin:
        for repository, image in images.items():
            await push(origin, image, repository, "1")
        registries = parse_registries([origin])
        async with real_service(folder, registries=registries, memory_ratio=100.0, disk_ratio=100.0, pids_ratio=100.0) as service:
            runtime = BuildRuntime(
                service.node,
                service.bases,
                service.build_results,
                service.layers,
                service.uploads,
                service.settings.builds,
                limits,
                SystemClock(),
            )
            await runtime.open()
            try:
                yield Bench(service, runtime, origin.removeprefix("http://"), temporary)
            finally:
                await runtime.aclose()
