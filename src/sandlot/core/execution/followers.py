"""Clients that follow one execution: a cell in the foreground or an install that can be requested again under its id.

Invariants:
- The first client starts the execution. Clients that request the same id meanwhile wait for the start and join.
- The execution is stopped when it has had no follower for :data:`AWAY_S`, and not before: a broken connection stops nothing.
- Clients that only read the execution count as followers.
- One follower attends the execution: it reads the execution to its end for the execution log, also after its own client has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.ids import ProcessId

AWAY_S: Final = 3.0
"""Time without followers after which an execution is stopped. A client whose connection broke tries again sooner (``sdk/retries.py``)."""


class ExecutionFollowers:
    """Followers of one execution.

    Args:
        executions: Executions of the sandbox that can be joined; this one is among them until :meth:`forget`.
        id_: Id of the execution.

    Attributes:
        count: Number of followers, clients that wait for the start included.
        is_attended: True once a follower attends the execution.
        start_lock: Held by the client that attaches to the execution or starts it.
    """

    __slots__ = ("_absent", "_executions", "_id", "_present", "count", "is_attended", "start_lock")

    def __init__(self, executions: dict[ProcessId, ExecutionFollowers], id_: ProcessId) -> None:
        self._executions = executions
        self._id = id_
        self._absent = asyncio.Event()
        self._present = asyncio.Event()
        self.count = 0
        self.is_attended = False
        self.start_lock = asyncio.Lock()

    def enter(self, *, attend: bool = False) -> bool:
        """Count one more follower, and return True if this follower attends the execution.

        Args:
            attend: Attend the execution unless another follower does.
        """
        self.count += 1
        self._present.set()
        self._absent.clear()
        attends = attend and not self.is_attended
        self.is_attended = self.is_attended or attend
        return attends

    def leave(self) -> None:
        """Count one follower less."""
        self.count -= 1
        if not self.count:
            self._absent.set()
            self._present.clear()

    def forget(self) -> None:
        """Let no client join the execution any more. Idempotent."""
        if self._executions.get(self._id) is self:
            del self._executions[self._id]

    async def wait_absent(self, for_s: float, first_s: float | None = None) -> None:
        """Wait until the execution has had no follower for some time.

        Args:
            for_s: Seconds without a follower.
            first_s: Seconds of the first absence; None is ``for_s``.
        """
        longest_s = for_s if first_s is None else first_s
        while True:
            await self._absent.wait()
            try:
                async with asyncio.timeout(longest_s):
                    await self._present.wait()
            except TimeoutError:
                return
            longest_s = for_s

    async def attend(self, reading: Coroutine[Any, Any, None], first_s: float | None = None) -> bool:
        """Read an execution as long as it has followers. Return True if it was read to its end.

        Args:
            reading: Reads the execution to its end; cancelled when no follower is left.
            first_s: Seconds that the first absence of all followers may last; None is :data:`AWAY_S`.
        """
        read = asyncio.create_task(reading)
        absent = asyncio.create_task(self.wait_absent(AWAY_S, first_s))
        try:
            await asyncio.wait({read, absent}, return_when=asyncio.FIRST_COMPLETED)
            return read.done()
        finally:
            read.cancel()
            absent.cancel()


FOLLOWED: Final[SandboxLocal[dict[ProcessId, ExecutionFollowers]]] = SandboxLocal(lambda _: {})
"""Executions of a sandbox that clients can join, by id."""


def expect(sandbox: Sandbox, id_: ProcessId) -> ExecutionFollowers:
    """Let clients join an execution, and return its followers."""
    executions = FOLLOWED.of(sandbox)
    if id_ not in executions:
        executions[id_] = ExecutionFollowers(executions, id_)
    return executions[id_]


@asynccontextmanager
async def join(sandbox: Sandbox, id_: ProcessId) -> AsyncIterator[ExecutionFollowers]:
    """Provide the followers of an execution, one client at a time: the body attaches to the execution, or starts it."""
    followers = expect(sandbox, id_)
    followers.enter()
    try:
        async with followers.start_lock:
            yield followers
    finally:
        followers.leave()
        if not followers.is_attended and not followers.count:
            followers.forget()
