"""The children of one fork, on their way to their first response.

Invariants:
- All children are admitted before the parent is touched.
- Before the parent's image is written, a child waits; a few children meanwhile prepare an empty sandbox.
- All children are announced or none. A failure of a child or of the image fails all children that have not been announced.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from sandlot.core.lifecycle.start import MemoryImageStart, connect_and_wake, shape_of
from sandlot.core.lifecycle.supervisor import SandboxSupervisor
from sandlot.core.node.drivers import driver_step
from sandlot.core.node.start_steps import restore_image
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandlotError, UnavailableError, UnsupportedError


class ForkBatch:
    """Starts the children of one fork and holds them back until all are ready.

    Args:
        image: Image of the parent; written while the children wait.
        count: Number of children.
        ahead: Number of children that prepare a sandbox while the image is written. Each needs a processor while the parent stands still.

    Attributes:
        admitted: Set when all children are admitted, so that their resources are reserved; also set when the fork has failed.
    """

    def __init__(self, image: Path, count: int, ahead: int) -> None:
        self._image = image
        self._missing = count
        self._unready = count
        self._ahead = ahead
        self._written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()
        self._failure: SandlotError | None = None
        self.admitted = asyncio.Event()

    @property
    def has_failed(self) -> bool:
        """True after a failure, unless all children were ready before it."""
        return self._failure is not None

    def is_own(self, error: SandlotError) -> bool:
        """Return whether an error only says that another child failed."""
        return error is self._failure

    def image_written(self) -> None:
        """Let the children start from the image, which is complete."""
        if not self._written.done():
            self._written.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Fail all children, unless all are ready.

        Args:
            error: Failure of a child or of the image.
        """
        if not self._settled.is_set():
            reason = error.message if isinstance(error, SandlotError) else type(error).__name__
            self._failure = UnavailableError(
                f"Another child of this fork failed, so no child is kept: {reason}",
                code=ErrorCode.BUSY,
                hint="Fork again.",
                fields={"retry_after_s": 5},
            )
            self._settled.set()
        if not self._written.done():
            cancelled = UnavailableError("The fork was cancelled.", code=ErrorCode.BUSY, hint="Fork again.", fields={"retry_after_s": 5})
            self._written.set_exception(error if isinstance(error, SandlotError) else cancelled)
            self._written.exception()  # no child may wait for the image, and asyncio would log an exception that nobody retrieved
        self.admitted.set()

    async def start(self, supervisor: SandboxSupervisor) -> bool:
        """Start a child from the image, as its start strategy (``StartStrategy.start``). The child is admitted when this is called."""
        self._missing -= 1
        if self._missing == 0:
            self.admitted.set()
        if self._ahead > 0:
            self._ahead -= 1
            await self._start_ahead(supervisor)
            return False
        await self._wait_image(supervisor)
        return await MemoryImageStart(self._image).start(supervisor)

    async def wait_all_ready(self, _sandbox: Sandbox) -> None:
        """Wait until all children are ready, as the last step before a child is announced.

        Raises:
            SandlotError: Another child failed.
        """
        self._unready -= 1
        if self._unready == 0:
            self._settled.set()
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def _start_ahead(self, supervisor: SandboxSupervisor) -> None:
        sandbox, driver = supervisor.sandbox, supervisor.driver
        await supervisor.dependencies.recorder.save(sandbox)
        template = await supervisor.resolve_template()
        shape = shape_of(sandbox, template)
        async with supervisor.start_slot():
            prepared = await driver_step("prepare", driver.prepare(shape))
            supervisor.take(prepared)
            supervisor.check_end()
            volumes = await supervisor.mount_volumes()
            with contextlib.suppress(UnsupportedError):
                await driver_step("start", prepared.warm())
        await self._wait_image(supervisor)  # without a start slot: the parent may need one to be written, if it is being woken or recovered
        async with supervisor.start_slot():
            # If the parent runs on an older build of the runtime than the prepared sandbox, another sandbox is prepared instead.
            instance = await restore_image(supervisor, driver, self._image, shape, sandbox.spec, volumes, prepared=prepared)
            await connect_and_wake(supervisor, instance, template)

    async def _wait_image(self, supervisor: SandboxSupervisor) -> None:
        async def written() -> None:
            await asyncio.shield(self._written)

        await supervisor.until_end(written())
