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

from sandlot.core.lifecycle.start import MemoryImageStart, connect_and_wake, shape_of
from sandlot.core.lifecycle.supervisor import SandboxSupervisor
from sandlot.core.node.drivers import driver_step
from sandlot.core.node.start_steps import restore_image
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandlotError, UnavailableError, UnsupportedError


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

    async def start(self, supervisor: SandboxSupervisor) -> bool:
        """Start one of the children: a ``StartStrategy``."""
        self._missing -= 1
        if self._missing == 0:
            self.admitted.set()
        if self._ahead > 0:
            self._ahead -= 1
            await self._start_ahead(supervisor)
            return False
        await self._image_of(supervisor)
        return await MemoryImageStart(self._image).start(supervisor)

    async def _start_ahead(self, supervisor: SandboxSupervisor) -> None:
        sandbox, driver = supervisor.sandbox, supervisor.driver
        await supervisor.dependencies.recorder.intend(sandbox)
        template = await supervisor.resolve_template()
        shape = shape_of(sandbox, template)
        async with supervisor.start_slot():
            prepared = await driver_step("prepare", driver.prepare(shape))
            supervisor.take(prepared)
            supervisor.check_end()
            volumes = await supervisor.mount_volumes()
            with contextlib.suppress(UnsupportedError):
                await driver_step("start", prepared.warm())
        await self._image_of(supervisor)  # without a start slot: to be written, the parent may need one to wake or to be recovered
        async with supervisor.start_slot():
            # If the parent runs on an older build of the runtime, another sandbox is prepared in place of this one.
            instance = await restore_image(supervisor, driver, self._image, shape, sandbox.spec, volumes, prepared=prepared)
            await connect_and_wake(supervisor, instance, template)

    async def _image_of(self, supervisor: SandboxSupervisor) -> None:
        async def whole() -> None:
            await asyncio.shield(self._written)

        await supervisor.until_end(whole())
