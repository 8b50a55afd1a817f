"""Write pending changes to the store after a short delay, and retry after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

FLUSH_S: Final = 0.5
"""Seconds for which changes are collected before they are written. A killed service may lose the changes of one second."""
RETRY_S: Final = 1.0
"""Seconds to wait after the store refused a write."""
LAST_FLUSH_S: Final = 5.0
"""Maximum seconds that the last write may take when the service stops."""


class WriteBehind:
    """Calls a function that writes all pending changes, one call at a time.

    Args:
        write: Writes everything that is pending now. Returns False if the store refused a part, which stays pending.
        refresh_s: Seconds after which ``write`` is called even if no change is pending, for a ``write`` that also reads what other nodes have
            written. None: ``write`` is called only when a change is pending.

    Attributes:
        changed: Event that callers set when a change is pending.
    """

    __slots__ = ("_lock", "_refresh_s", "_write", "changed")

    def __init__(self, write: Callable[[], Awaitable[bool]], *, refresh_s: float | None = None) -> None:
        self._write = write
        self._refresh_s = refresh_s
        self.changed = asyncio.Event()
        self._lock = asyncio.Lock()

    @property
    def is_writing(self) -> bool:
        """True while a call of ``write`` is in progress."""
        return self._lock.locked()

    async def run(self) -> None:
        """Write pending changes whenever there are some, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._refresh_s):
                    await self.changed.wait()
                    await asyncio.sleep(FLUSH_S)
            if not await self.flush():
                await asyncio.sleep(RETRY_S)

    async def flush(self) -> bool:
        """Write the pending changes. Return True if the store accepted all of them.

        If the caller is cancelled, the method still waits until the write has ended. Otherwise committed changes could stay pending, and would be
        counted twice.
        """
        writing = asyncio.create_task(self._locked_write())
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})
            raise

    async def close(self) -> None:
        """Write the pending changes, for at most ``LAST_FLUSH_S`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_S):
                await self._locked_write()

    async def _locked_write(self) -> bool:
        async with self._lock:
            self.changed.clear()
            is_written = await self._write()
            if not is_written:
                self.changed.set()
            return is_written
