"""What is done with a sandbox, since when nothing is, and who is there for it."""

from __future__ import annotations

import asyncio

from sandlot.core.ports import Clock


class Hold:
    """Something that is done for a client; until it is released, its sandbox is not idle."""

    __slots__ = ("_activity",)

    def __init__(self, activity: ActivityTracker) -> None:
        self._activity: ActivityTracker | None = activity

    def release(self) -> None:
        """It is done. Idempotent."""
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.held -= 1
            activity.touch()


class ActivityTracker:
    """What is done with a sandbox, and since when nothing is.

    Args:
        clock: The time.
    """

    __slots__ = ("_clock", "held", "quiet_since_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.held = 0
        self.quiet_since_s = clock.monotonic_s()

    def hold(self) -> Hold:
        """Begin something."""
        self.held += 1
        return Hold(self)

    def touch(self) -> None:
        """Something was done just now."""
        self.quiet_since_s = self._clock.monotonic_s()


class ExecutionFollowers:
    """Who is there for something that goes on: how many, and whether they have all been away for long."""

    __slots__ = ("_away", "_here", "attended", "people", "turn")

    def __init__(self) -> None:
        self._away = asyncio.Event()
        self._here = asyncio.Event()
        self.people = 0
        self.attended = False
        """Whether somebody sees to its end."""
        self.turn = asyncio.Lock()
        """Held by who begins it: whoever comes meanwhile joins."""

    def enter(self) -> None:
        """Somebody comes."""
        self.people += 1
        self._here.set()
        self._away.clear()

    def leave(self) -> None:
        """Somebody goes."""
        self.people -= 1
        if not self.people:
            self._away.set()
            self._here.clear()

    async def away(self, for_s: float, first_s: float | None = None) -> None:
        """Return once nobody has been there for so many seconds; the first time, for ``first_s``."""
        longest_s = for_s if first_s is None else first_s
        while True:
            await self._away.wait()
            try:
                async with asyncio.timeout(longest_s):
                    await self._here.wait()
            except TimeoutError:
                return
            longest_s = for_s
