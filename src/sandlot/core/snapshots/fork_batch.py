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

from sandlot.core.lifecycle.dependencies import LifecycleDependencies, check_end, driver_step, start_slot, until_end
from sandlot.core.lifecycle.start import MemoryImageStart, Started, attach, connect_guest, resolved_template, shape_of
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.ports import Instance, PreparedSandbox


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

    async def start(self, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance]) -> Started:
        """Start a child from the image, as its start strategy. The child is admitted when this is called."""
        self._missing -= 1
        if self._missing == 0:
            self.admitted.set()
        if self._ahead > 0:
            self._ahead -= 1
            return await self._start_ahead(sandbox, dependencies, holdings)
        await self._wait_image(sandbox)
        return await MemoryImageStart(self._image)(sandbox, dependencies, holdings)

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

    async def _start_ahead(self, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance]) -> Started:
        await dependencies.recorder.save(sandbox)
        base = await resolved_template(sandbox, dependencies)
        async with start_slot(sandbox, dependencies.turns):
            prepared = await driver_step("prepare", dependencies.driver.prepare(shape_of(sandbox, base)))
            holdings.append(prepared)
            check_end(sandbox)
            await attach(sandbox, dependencies, prepared)
            with contextlib.suppress(UnsupportedError):
                await driver_step("start", prepared.warm())
        await self._wait_image(sandbox)  # without a start slot: the parent may need one to be written, if it is being woken or recovered
        async with start_slot(sandbox, dependencies.turns):
            try:
                instance = await driver_step("restore", prepared.restore(self._image, sandbox.spec))
            except ConflictError as error:
                if error.code is not ErrorCode.SNAPSHOT_UNUSABLE:
                    raise
                # The parent runs on an older build of the runtime than the prepared sandbox, which has the newest.
                await driver_step("remove", prepared.destroy())
                holdings.clear()
                prepared = await driver_step("prepare", dependencies.prepare(shape_of(sandbox, base), snapshot=self._image))
                holdings.append(prepared)
                check_end(sandbox)
                await attach(sandbox, dependencies, prepared)
                instance = await driver_step("restore", prepared.restore(self._image, sandbox.spec))
            return await connect_guest(sandbox, dependencies, holdings, instance, base)

    async def _wait_image(self, sandbox: Sandbox) -> None:
        async def written() -> None:
            await asyncio.shield(self._written)

        await until_end(sandbox, written())
