"""Drivers and templates of a service.

Invariants:
- Concurrent callers share one probe of a driver and one build of a template.
- A step of a driver is not cancelled when its sandbox ends. Only the timeout of the step cancels the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import structlog

from sandlot.core.ports import ResolvedTemplate, TemplateStore
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, NotFoundError, TimeoutExceededError
from sandlot.model.ports import Capabilities, Driver, DriverCapability
from sandlot.model.service import TemplateInfo
from sandlot.model.specs import TemplateRef

STEP_TIMEOUT_S: Final = 60.0
"""Timeout in seconds of one step of a driver, and of the guest's first response. Measured duration: 0.05 to 0.5 s; several seconds on a busy host."""

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


class Templates:
    """Templates of a service and their root filesystem images."""

    def __init__(self, store: TemplateStore) -> None:
        self._store = store
        self._builds: dict[TemplateRef, asyncio.Task[ResolvedTemplate]] = {}

    async def list(self, principal: Principal) -> Sequence[TemplateInfo]:
        """Return the templates of a principal and the built-in templates, with the state of their builds."""
        return await self._store.list(principal)

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

    async def resolve(self, ref: TemplateRef) -> ResolvedTemplate:
        """Return the build of a template that ``ref`` names. If ``ref`` names the current build and there is none, the template is built first.

        Raises:
            ConflictError: The build with the digest of ``ref`` has been removed (``snapshot_unusable``).
        """
        if not ref.digest:
            return await self._build(ref)
        found = await self._store.at(ref)
        if found is None:
            raise ConflictError(
                f"The snapshot needs an earlier build of template {ref.name!r}, which has been removed.",
                code=ErrorCode.SNAPSHOT_UNUSABLE,
                hint="Start from the template, or from a snapshot of kind `files`.",
                fields={"template": ref.name, "root": ref.digest},
            )
        return found

    async def _build(self, ref: TemplateRef) -> ResolvedTemplate:
        build = self._builds.get(ref)
        if build is None:
            build = self._builds[ref] = asyncio.create_task(self._store.build(ref))
            build.add_done_callback(lambda done: self._finish_build(ref, done))
        return await asyncio.shield(build)

    def _finish_build(self, ref: TemplateRef, build: asyncio.Task[ResolvedTemplate]) -> None:
        del self._builds[ref]
        if not build.cancelled() and (error := build.exception()) is not None:
            # All callers that waited for the build may have disconnected; then only the log has the error.
            _log.warning("template.build_failed", template=ref.name, error=str(error))


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
