"""Drivers and templates of a service.

Invariants:
- Concurrent callers share one probe of a driver and one build of a template.
- Builds of templates take no thread that short work of the service needs, and a template that is built does not wait for the builds of others.
- A step of a driver is not cancelled when its sandbox ends. Only the timeout of the step cancels the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterator, Mapping
from typing import Any, Final, TypeVar

import structlog

from sandlot.core.ports import ResolvedTemplate, TemplateStore
from sandlot.host.blocking import run_in_own_thread
from sandlot.model.errors import ConflictError, ErrorCode, HostError, NotFoundError, TimeoutExceededError
from sandlot.model.ports import Capabilities, Driver, DriverCapability
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import SandboxSpec

STEP_TIMEOUT_S: Final = 60.0
"""Timeout in seconds of one step of a driver, and of the guest's first response. Measured duration: 0.05 to 0.5 s; several seconds on a busy host."""

MAX_BUILDS: Final = 2
"""Maximum number of templates that are built at the same time. A build takes one processor for minutes."""

ResultT = TypeVar("ResultT")

_log = structlog.get_logger("sandlot.core")


class Drivers(Mapping[str, Driver]):
    """Drivers by isolation name, and their capabilities on this host."""

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        self._drivers = drivers
        self._probes: dict[str, asyncio.Task[Capabilities]] = {}

    def __getitem__(self, isolation: str) -> Driver:
        return self._drivers[isolation]

    def __iter__(self) -> Iterator[str]:
        return iter(self._drivers)

    def __len__(self) -> int:
        return len(self._drivers)

    async def capabilities(self, isolation: str) -> Capabilities:
        """Return the capabilities of a driver on this host.

        A driver that can start sandboxes is probed once. A driver that cannot start sandboxes is probed again by each call.
        """
        probe = self._probes.get(isolation)
        if probe is None:
            probe = self._probes[isolation] = asyncio.create_task(asyncio.to_thread(self._drivers[isolation].probe))
        try:
            found = await asyncio.shield(probe)
        except Exception:
            self._probes.pop(isolation, None)
            raise
        if not found.can(DriverCapability.BOOT):
            self._probes.pop(isolation, None)
        return found

    async def capabilities_for(self, isolation: str, capability: DriverCapability) -> Capabilities:
        """Return the capabilities of a driver on this host. The driver is probed again if its last probe did not find ``capability``."""
        found = await self.capabilities(isolation)
        if not found.can(capability):
            self._probes.pop(isolation, None)
            found = await self.capabilities(isolation)
        return found

    async def all_capabilities(self) -> list[Capabilities]:
        """Return the capabilities of every driver on this host."""
        return [await self.capabilities(isolation) for isolation in self._drivers]


class Templates:
    """Templates of a service and their root filesystem images."""

    def __init__(self, store: TemplateStore) -> None:
        self._store = store
        self._builds: dict[str, asyncio.Task[ResolvedTemplate]] = {}
        self._build_slots = asyncio.Semaphore(MAX_BUILDS)

    def names(self) -> Collection[str]:
        """Return the names of all templates."""
        return self._store.names()

    async def list(self) -> list[TemplateInfo]:
        """Return all templates and the state of their builds."""
        return list(await asyncio.to_thread(self._store.all))

    def require(self, name: str) -> None:
        """Refuse the name of a template that does not exist.

        Raises:
            NotFoundError: There is no template of this name (``template_not_found``).
        """
        names = self._store.names()
        if name not in names:
            raise NotFoundError(
                f"There is no template {name[:64]!r}.",
                code=ErrorCode.TEMPLATE_NOT_FOUND,
                hint=f"Use one of: {', '.join(sorted(names))}.",
                fields={"template": name[:64]},
            )

    async def resolve(self, name: str) -> ResolvedTemplate:
        """Return the current build of a template. A template without a build is built first."""
        build = self._builds.get(name)
        if build is None:
            build = self._builds[name] = asyncio.create_task(self._find_or_build(name))
            build.add_done_callback(lambda done: self._finish_build(name, done))
        return await asyncio.shield(build)

    async def resolve_for(self, spec: SandboxSpec) -> ResolvedTemplate:
        """Return the build of a template from which a sandbox starts.

        This is the build with the digest ``spec.root``, or the current build if ``spec.root`` is empty.

        Raises:
            ConflictError: The build with this digest has been removed (``snapshot_unusable``).
        """
        if not spec.root:
            return await self.resolve(spec.template)
        found = await asyncio.to_thread(self._store.at, spec.template, spec.root)
        if found is None:
            raise ConflictError(
                f"The snapshot needs an earlier build of template {spec.template!r}, which has been removed.",
                code=ErrorCode.SNAPSHOT_UNUSABLE,
                hint="Start from the template, or from a snapshot of kind `files`.",
                fields={"template": spec.template, "root": spec.root},
            )
        return found

    async def _find_or_build(self, name: str) -> ResolvedTemplate:
        if (found := await asyncio.to_thread(self._store.find, name)) is not None:
            return found
        async with self._build_slots:
            return await run_in_own_thread(self._store.base, name)

    def _finish_build(self, name: str, build: asyncio.Task[ResolvedTemplate]) -> None:
        del self._builds[name]
        if not build.cancelled() and (error := build.exception()) is not None:
            # All callers that waited for the build may have disconnected; then only the log has the error.
            _log.warning("template.build_failed", template=name, error=str(error))


async def driver_step(what: str, work: Coroutine[Any, Any, ResultT], timeout_s: float | None = None) -> ResultT:
    """Await one step of a driver or of the link, and turn its timeout or ``OSError`` into a ``SandlotError``.

    Args:
        what: Verb for error messages, for example ``start``.
        work: The step.
        timeout_s: Seconds until the step is cancelled. None: :data:`STEP_TIMEOUT_S`.

    Raises:
        TimeoutExceededError: The step took longer than its timeout.
        HostError: The step raised an ``OSError``.
    """
    limit_s = STEP_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        async with asyncio.timeout(limit_s):
            return await work
    except TimeoutError:
        raise TimeoutExceededError(
            f"The sandbox took longer than {limit_s:g} s to {what}.",
            hint="Run 'sandlot doctor' to check the host; the host may be overloaded.",
        ) from None
    except OSError as error:
        raise HostError(
            f"The host failed to {what} the sandbox: {error.strerror or error}.",
            hint="Run 'sandlot doctor' to check the host.",
        ) from error
