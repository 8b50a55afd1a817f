"""Where the children of one fork wait for each other: all of them are told of, or none is."""

from __future__ import annotations

import asyncio

from sandlot.core.sandbox import Sandbox
from sandlot.model.errors import ErrorCode, SandlotError, UnavailableError


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
