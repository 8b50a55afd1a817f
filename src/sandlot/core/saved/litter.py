"""The children of one fork on their way: all are admitted before their parent is touched, and the first are made ready while it is written.

Laws:
- A child begins nothing of its own before the image is whole, but for the few that are prepared ahead: they wait with an empty sandbox.
- What fails before that, of any of them or of the image, fails all.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from sandlot.core.lives.means import Means, check, step, turn, unless_ended
from sandlot.core.lives.starts import Restored, Started, answering, attach, based, shape_of
from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, UnavailableError, UnsupportedError
from sandlot.model.ports import Blank, Instance


class Litter:
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

    async def start(self, box: Sandbox, means: Means, holdings: list[Blank | Instance]) -> Started:
        """How one of them comes to its first answer: a ``Start``."""
        self._missing -= 1
        if self._missing == 0:
            self.admitted.set()
        if self._ahead > 0:
            self._ahead -= 1
            return await self._start_ahead(box, means, holdings)
        await self._image_of(box)
        return await Restored(self._image)(box, means, holdings)

    async def _start_ahead(self, box: Sandbox, means: Means, holdings: list[Blank | Instance]) -> Started:
        await means.register.intend(box)
        base = await based(box, means)
        async with turn(box, means.turns):
            blank = await step("prepare", means.driver.prepare(shape_of(box, base)))
            holdings.append(blank)
            check(box)
            await attach(box, means, blank)
            with contextlib.suppress(UnsupportedError):
                await step("start", blank.warm())
        await self._image_of(box)  # without a turn: to be written, the parent may need one, where it is being woken or taken over
        async with turn(box, means.turns):
            try:
                instance = await step("restore", blank.restore(self._image, box.spec))
            except ConflictError as error:
                if error.code is not ErrorCode.SNAPSHOT_UNUSABLE:
                    raise
                # The parent runs on an older build of the runtime: the blank is of the newest.
                await step("remove", blank.destroy())
                holdings.clear()
                blank = await step("prepare", means.prepare(shape_of(box, base), snapshot=self._image))
                holdings.append(blank)
                check(box)
                await attach(box, means, blank)
                instance = await step("restore", blank.restore(self._image, box.spec))
            return await answering(box, means, holdings, instance, base)

    async def _image_of(self, box: Sandbox) -> None:
        async def whole() -> None:
            await asyncio.shield(self._written)

        await unless_ended(box, whole())
