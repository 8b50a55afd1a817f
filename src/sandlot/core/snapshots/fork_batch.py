"""Where the children of one fork wait for each other: all of them are told of, or none is.

The children of one fork on their way: all are admitted before their parent is touched, and the first are made ready while it is written.

Laws:
- A child begins nothing of its own before the image is whole, but for the few that are prepared ahead: they wait with an empty sandbox.
- What fails before that, of any of them or of the image, fails all.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from sandlot.core.lifecycle.dependencies import LifecycleDependencies, check_end, start_slot, until_end
from sandlot.core.lifecycle.start import MemoryImageStart, Started, attach, connect_guest, resolved_template, shape_of
from sandlot.core.node.drivers import driver_step
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.ports import Instance, PreparedSandbox


class ForkBatchGate:
    """It opens when all have come, and never once it was shut.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        self._missing = count
        self._why: SandlotError | None = None
        self._settled = asyncio.Event()

    async def pass_through(self, _sandbox: Sandbox) -> None:
        """Come, and go on once all have come.

        Raises:
            SandlotError: It was shut: one of the others failed.
        """
        self._missing -= 1
        if self._missing == 0:
            self._settled.set()
        await self._settled.wait()
        if self._why is not None:
            raise self._why

    @property
    def is_shut(self) -> bool:
        """Whether nobody is let through any more."""
        return self._why is not None

    def is_own(self, error: SandlotError) -> bool:
        """Whether an error is no more than that the gate was shut."""
        return error is self._why

    def shut(self, because: BaseException) -> None:
        """Let nobody through any more. What has gone through has."""
        if not self._settled.is_set():
            reason = because.message if isinstance(because, SandlotError) else type(because).__name__
            self._why = UnavailableError(
                f"Another child of this fork failed, so none is kept: {reason}", code=ErrorCode.BUSY, hint="Fork again.", fields={"retry_after_s": 5}
            )
            self._settled.set()


class ForkBatchStart:
    """They.

    Args:
        image: Where the image of their parent will be.
        count: How many they are.
        ahead: How many of them are made ready meanwhile. It takes a processor for each, while the parent stands still for its image.
    """

    def __init__(self, image: Path, count: int, ahead: int) -> None:
        self._image = image
        self._missing = count
        self._ahead = ahead
        self._written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.admitted = asyncio.Event()
        """Set once all of them are admitted: what they may use is promised to them."""

    def written(self) -> None:
        """The image is whole."""
        if not self._written.done():
            self._written.set_result(None)

    def failed(self, error: BaseException) -> None:
        """There will be none, or not all of the children."""
        if not self._written.done():
            given_up = UnavailableError("The fork was given up.", code=ErrorCode.BUSY, hint="Fork again.", fields={"retry_after_s": 5})
            self._written.set_exception(error if isinstance(error, SandlotError) else given_up)
            self._written.exception()  # there may be nobody who waits
        self.admitted.set()

    async def start(self, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance]) -> Started:
        """How one of them comes to its first answer: a ``Start``."""
        self._missing -= 1
        if self._missing == 0:
            self.admitted.set()
        if self._ahead > 0:
            self._ahead -= 1
            return await self._start_ahead(sandbox, dependencies, holdings)
        await self._image_of(sandbox)
        return await MemoryImageStart(self._image)(sandbox, dependencies, holdings)

    async def _start_ahead(self, sandbox: Sandbox, dependencies: LifecycleDependencies, holdings: list[PreparedSandbox | Instance]) -> Started:
        await dependencies.recorder.intend(sandbox)
        base = await resolved_template(sandbox, dependencies)
        async with start_slot(sandbox, dependencies.turns):
            prepared = await driver_step("prepare", dependencies.driver.prepare(shape_of(sandbox, base)))
            holdings.append(prepared)
            check_end(sandbox)
            await attach(sandbox, dependencies, prepared)
            with contextlib.suppress(UnsupportedError):
                await driver_step("start", prepared.warm())
        await self._image_of(sandbox)  # without a turn: to be written, the parent may need one, where it is being woken or taken over
        async with start_slot(sandbox, dependencies.turns):
            try:
                instance = await driver_step("restore", prepared.restore(self._image, sandbox.spec))
            except ConflictError as error:
                if error.code is not ErrorCode.SNAPSHOT_UNUSABLE:
                    raise
                # The parent runs on an older build of the runtime: the blank is of the newest.
                await driver_step("remove", prepared.destroy())
                holdings.clear()
                prepared = await driver_step("prepare", dependencies.prepare(shape_of(sandbox, base), snapshot=self._image))
                holdings.append(prepared)
                check_end(sandbox)
                await attach(sandbox, dependencies, prepared)
                instance = await driver_step("restore", prepared.restore(self._image, sandbox.spec))
            return await connect_guest(sandbox, dependencies, holdings, instance, base)

    async def _image_of(self, sandbox: Sandbox) -> None:
        async def whole() -> None:
            await asyncio.shield(self._written)

        await until_end(sandbox, whole())
