"""Followers of an execution: the clients that are connected to the same foreground cell or the same installation of packages.

Several clients can connect to an execution by requests with the same id.

Invariants:
- The first client starts the execution. Clients that request the same id during the start wait until the execution has
  started, and then join the execution.
- The execution is stopped once it has had no follower for :data:`AWAY_S` seconds. A client whose connection broke can reconnect until then.
- A client that did not request the execution but only reads its output is also a follower.
- One follower *attends* the execution: it reads the execution to its end for the execution log, even after its own client has disconnected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from sandlot.core.sandbox import Sandbox, SandboxLocal
from sandlot.model.ids import ProcessId

AWAY_S: Final = 3.0
"""Seconds without followers after which an execution is stopped. A client whose connection broke reconnects sooner (``sdk/retries.py``)."""


class ExecutionFollowers:
    """Followers of one execution.

    Args:
        executions: Executions of the sandbox that clients can join. :meth:`forget` removes this execution from them.
        id_: Id of the execution.

    Attributes:
        count: Number of followers, including clients that wait for the start.
        is_attended: True if a follower has been added that reads the execution to its end for the execution log.
        start_lock: Lock that a client holds while it attaches to the execution or starts the execution.
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
        """Add one follower. Return True if this follower must read the execution to its end for the execution log.

        Args:
            attend: True if the follower can read the execution to its end. Ignored if another follower already does this.
        """
        self.count += 1
        self._present.set()
        self._absent.clear()
        attends = attend and not self.is_attended
        self.is_attended = self.is_attended or attend
        return attends

    def leave(self) -> None:
        """Decrease the number of followers by one."""
        self.count -= 1
        if not self.count:
            self._absent.set()
            self._present.clear()

    def forget(self) -> None:
        """Remove the execution from the executions that clients can join. Idempotent."""
        if self._executions.get(self._id) is self:
            del self._executions[self._id]

    async def wait_absent(self, for_s: float, first_s: float | None = None) -> None:
        """Wait until the execution has had no follower for ``for_s`` seconds.

        Args:
            for_s: Seconds without a follower.
            first_s: Seconds to wait for the first follower. None: ``for_s`` seconds.
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
        """Read an execution as long as it has followers. Return True if the execution was read to its end.

        Args:
            reading: Coroutine that reads the execution to its end. It is cancelled if the execution has had no follower for :data:`AWAY_S` seconds.
            first_s: Seconds until the coroutine is cancelled if no follower ever joins. None: :data:`AWAY_S` seconds.
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
    """Let clients join an execution from now on, and return the followers of the execution."""
    executions = FOLLOWED.of(sandbox)
    if id_ not in executions:
        executions[id_] = ExecutionFollowers(executions, id_)
    return executions[id_]


@asynccontextmanager
async def join(sandbox: Sandbox, id_: ProcessId) -> AsyncIterator[ExecutionFollowers]:
    """Lock an execution and yield its followers. In the body of the block, the caller attaches to the execution or starts it."""
    followers = expect(sandbox, id_)
    followers.enter()
    try:
        async with followers.start_lock:
            yield followers
    finally:
        followers.leave()
        if not followers.is_attended and not followers.count:
            followers.forget()
