"""Fork batch: the children of one fork, from their admission until all of them are ready.

Invariants:
- All children are admitted before the image of the parent is written.
- The children wait while the image is written. A limited number of them is prepared on the host during this time (``ForkBatch``).
- Either all children become visible to clients, or none. If a child or the image fails, all children fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from sandlot.core.lifecycle.start import MemoryImageStart, connect_and_wake, shape_of
from sandlot.core.lifecycle.supervisor import SandboxSupervisor
from sandlot.core.resources.drivers import driver_step
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandlotError, UnavailableError, UnsupportedError


class ForkBatch:
    """Starts the children of one fork. Clients do not see a child until all children are ready.

    Args:
        image: Path of the parent's image, which is written while the children wait.
        count: Number of children.
        ahead: Maximum number of children that are prepared on the host while the image is written. Preparing keeps one processor busy for each
            child.

    Attributes:
        admitted: Event that is set when all children are admitted and have their reservations, or when the fork has failed.
    """

    def __init__(self, image: Path, count: int, ahead: int) -> None:
        self._image = image
        self._not_admitted = count
        self._not_ready = count
        self._ahead = ahead
        self._written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()
        self._failure: SandlotError | None = None
        self.admitted = asyncio.Event()

    @property
    def has_failed(self) -> bool:
        """True if a child failed, or the snapshot image could not be written, before all children were ready."""
        return self._failure is not None

    def is_own(self, error: SandlotError) -> bool:
        """Return True if an error is the error that :meth:`wait_all_ready` raises because another child failed."""
        return error is self._failure

    def image_written(self) -> None:
        """Report that the snapshot image is complete. The children then start from it."""
        if not self._written.done():
            self._written.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Report a failure, so that no child becomes visible to clients. Has no effect once all children are ready.

        Args:
            error: Failure of a child or of the image.
        """
        if not self._settled.is_set():
            reason = error.message if isinstance(error, SandlotError) else type(error).__name__
            self._failure = UnavailableError(
                f"Another child of this fork failed, so no child is kept: {reason}",
                code=ErrorCode.BUSY,
                hint="Retry the fork.",
                fields={"retry_after_s": 5},
            )
            self._settled.set()
        if not self._written.done():
            cancelled = UnavailableError("The fork was cancelled.", code=ErrorCode.BUSY, hint="Retry the fork.", fields={"retry_after_s": 5})
            self._written.set_exception(error if isinstance(error, SandlotError) else cancelled)
            self._written.exception()  # mark the exception as retrieved: otherwise asyncio logs it if no child waits for the image
        self.admitted.set()

    async def start(self, supervisor: SandboxSupervisor) -> None:
        """Start an admitted child from the snapshot image. Implements ``StartStrategy.start``."""
        self._not_admitted -= 1
        if self._not_admitted == 0:
            self.admitted.set()
        if self._ahead > 0:
            self._ahead -= 1
            await self._start_ahead(supervisor)
        else:
            await self._wait_image(supervisor)
            await MemoryImageStart(self._image).start(supervisor)

    async def wait_all_ready(self, _sandbox: Sandbox) -> None:
        """Report that a child is ready, and wait until all children are ready. This ``SetupStep`` is the last step before clients see the child.

        Raises:
            SandlotError: Another child failed.
        """
        self._not_ready -= 1
        if self._not_ready == 0:
            self._settled.set()
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def _start_ahead(self, supervisor: SandboxSupervisor) -> None:
        sandbox, allocation = supervisor.sandbox, supervisor.allocation
        await supervisor.dependencies.recorder.save(sandbox)
        template = await supervisor.resolve_template()
        shape = shape_of(sandbox, template)
        async with supervisor.start_slot():
            prepared = await allocation.prepare(shape)
            supervisor.check_end()
            volumes = await supervisor.mount_volumes()
            with contextlib.suppress(UnsupportedError):
                await driver_step("start", prepared.warm())
        await self._wait_image(supervisor)  # without holding a start slot: a parent that is being resumed or recovered needs a slot
        async with supervisor.start_slot():
            # If the parent's runtime build differs from that of the prepared sandbox, the allocation prepares another sandbox.
            await allocation.restore(self._image, shape, sandbox.spec, volumes, prepared=prepared, check_end=supervisor.check_end)
            await connect_and_wake(supervisor)

    async def _wait_image(self, supervisor: SandboxSupervisor) -> None:
        async def written() -> None:
            await asyncio.shield(self._written)

        await supervisor.until_end(written())
