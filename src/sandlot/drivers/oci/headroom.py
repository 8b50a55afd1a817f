"""Freezing a sandbox, and the headroom of a snapshot or restore: memory above the limit that is granted for a moment and then withdrawn.

Only the runtime needs the headroom: it stops the tenant's programs while it writes or reads a snapshot. But these programs run again before the
limit is lowered, and may keep the memory. Invariants of the withdrawal:

- The limit in force is never higher than the recorded limit plus the headroom that the caller has reserved, and no step of a withdrawal raises it.
- In the first two minutes, the sandbox keeps the headroom that the garbage of a save or restore in the runtime's heap can take.
- While limits are raised, no attempt to lower them runs, also not in a thread that a cancelled task has left. The next raise waits for such a thread.
- The marker file exists from before the limit is raised until the recorded limit is in force again, so that a later service knows of the headroom.
- A sandbox that cannot be brought back to its recorded limit is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandlot.host.blocking import run_blocking, run_in_own_thread
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.cgroups import Cgroup, GroupMemory
from sandlot.model.errors import InternalError, SandlotError

_log = logging.getLogger(__name__)

RETRY_PAUSES_S: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0, 60.0, 60.0)
"""Pauses between the attempts to lower the limits again, 411 s in all. gVisor's kernel is a Go program, which collects garbage at least every two
minutes, and returns the memory after the second collection: an idle sandbox with 100,000 files went from 878 to 235 MiB 240 to 260 s after a
snapshot."""
COLLECTED_S: Final = 120.0
"""Seconds after which gVisor's kernel has collected the garbage of a save or restore. Until then, its heap can grow although no program needs memory
(measured with 25,000 files: 223 MiB after a snapshot, up to 320 MiB while all files were read)."""
SLACK_BYTES: Final = 16 * 1024 * 1024
"""Memory that a sandbox may use in addition to what it uses already, while its limit is lowered. With less, gVisor's collector could not run, and the
kernel would end sandboxes that only need some time."""
_FREEZE_TIMEOUT_S: Final = 10.0
_FREEZE_PAUSE_S: Final = 0.0005
_KILL_PAUSE_S: Final = 0.001


async def freeze(cgroup: Cgroup) -> None:
    """Freeze all processes of a sandbox, including its runtime and its keeper, and return when all are frozen.

    Raises:
        InternalError: A process did not freeze within 10 seconds. All processes were thawed.
        FileNotFoundError: The control group is gone.
    """
    try:
        async with asyncio.timeout(_FREEZE_TIMEOUT_S):
            cgroup.freeze()
            while not cgroup.is_frozen():
                await asyncio.sleep(_FREEZE_PAUSE_S)
                # With cgroup version 1, the kernel can miss a task that forks during the freeze. Writing the state again freezes the task
                # (cgroup-v1/freezer-subsystem.rst).
                cgroup.freeze()
    except TimeoutError:
        cgroup.thaw()
        raise InternalError(
            f"Sandbox {cgroup.name.name} did not freeze.", hint="Look for processes that wait for a disk: `ps -eo pid,stat,wchan`."
        ) from None
    except BaseException:
        cgroup.thaw()
        raise


async def kill_all(cgroup: Cgroup) -> None:
    """Kill all processes of a sandbox and return when they have ended. The sandbox's other resources on the host are not released."""
    while await run_blocking(cgroup.kill_once):  # noqa: ASYNC110 - there is no event for this
        await asyncio.sleep(_KILL_PAUSE_S)


class Headroom:
    """Grants headroom to a sandbox during a snapshot or a restore, and withdraws it.

    The processor limit is raised as well, and lowered at once: a restore needs at least 50 ms of processor time, which would take at least 100 ms
    with a limit of half a processor.

    Args:
        cgroup: The control group of the sandbox.
        mark: Path of the marker file.
        recorded: Function that returns the limits of the control group according to the sandbox's record. The function returns None if there is no
            record or the sandbox is being released.
        uncollected: Function that returns how many bytes a sandbox may need until the runtime has collected its garbage.

    Attributes:
        lock: Lock that is held while limits are recorded and set, so that the limits of the control group match the record.
        granted_bytes: Bytes by which the memory limit in force is higher than the recorded limit.
        is_exhausted: True if the sandbox was ended because it did not return its headroom.
    """

    __slots__ = ("_cgroup", "_gate", "_mark", "_recorded", "_uncollected", "_withdrawal", "_withdrawn", "granted_bytes", "is_exhausted", "lock")

    def __init__(self, cgroup: Cgroup, mark: Path, recorded: Callable[[], GroupLimits | None], uncollected: Callable[[GroupMemory], int]) -> None:
        self._cgroup = cgroup
        self._mark = mark
        self._recorded = recorded
        self._uncollected = uncollected
        self._gate = asyncio.Lock()
        """Held while limits are raised, and during each attempt to lower them."""
        self._withdrawal: asyncio.Task[None] | None = None
        self._withdrawn = asyncio.Event()
        self._withdrawn.set()
        self.lock = threading.Lock()
        self.granted_bytes = 0
        self.is_exhausted = False

    @contextlib.asynccontextmanager
    async def raised(self, headroom_bytes: int) -> AsyncIterator[None]:
        """Raise the limits of memory and processors for a ``with`` block, and lower them at its end.

        If the sandbox then uses more memory than its recorded limit, the headroom is withdrawn in the background.

        Args:
            headroom_bytes: Bytes above the recorded memory limit. Headroom that is left from an earlier block is not withdrawn before.

        Raises:
            FileNotFoundError: The control group is gone.
        """
        async with self._gate:
            self.cancel()
            try:
                self._raise(headroom_bytes)
                yield
            finally:
                self._begin_withdrawal()

    async def wait_withdrawn(self) -> None:
        """Wait until the recorded memory limit is in force."""
        await self._withdrawn.wait()

    async def recover(self) -> bool:
        """Continue the withdrawal of the headroom that an earlier service has granted. Return False if there is none.

        Raises:
            OSError: The limits cannot be read. FileNotFoundError: the control group is gone.
        """
        if not self._mark.exists():
            return False
        async with self._gate:
            if (limits := self._recorded()) is not None:
                self._set_granted(self._cgroup.memory_limit(), limits)
            self._begin_withdrawal()
        return True

    def change_limits(self, limits: GroupLimits) -> None:
        """Set new limits of the control group. The caller holds :attr:`lock`, and has recorded the new limits.

        Headroom that is not withdrawn yet stays, unless the new memory limit is lower than the recorded one: then the sandbox must meet the new limit
        at once. Blocks as long as the kernel needs to reclaim memory.

        Raises:
            ConflictError: The sandbox uses more than the new limits.
            HostError: The kernel refused the new limits.
            FileNotFoundError: The control group is gone.
        """
        in_force = self._cgroup.memory_limit() if self.granted_bytes else 0
        if in_force - self.granted_bytes <= limits.memory_bytes <= in_force:
            self._cgroup.change(limits, keep_memory=True)
            self._set_granted(in_force, limits)
        else:
            self._cgroup.change(limits)
            self.granted_bytes = 0

    def cancel(self) -> None:
        """Stop withdrawing headroom in the background. An attempt that has begun ends in its thread."""
        if self._withdrawal is not None:
            self._withdrawal.cancel()

    def _raise(self, headroom_bytes: int) -> None:
        # The limits are raised without a worker thread: the kernel need not reclaim memory, and a thread switch takes longer than writing the files.
        limits = self._recorded()
        if limits is None:
            return
        memory_bytes = limits.memory_bytes + max(headroom_bytes, self.granted_bytes)
        if memory_bytes > limits.memory_bytes:
            self._mark.touch(mode=0o600)
            self._withdrawn.clear()
        self._set_granted(memory_bytes, limits)
        self._cgroup.change(replace(limits, memory_bytes=memory_bytes, cpus=max(limits.cpus, os.cpu_count() or 1)))

    def _set_granted(self, in_force_bytes: int, recorded: GroupLimits) -> None:
        self.granted_bytes = max(0, in_force_bytes - recorded.memory_bytes)

    def _begin_withdrawal(self) -> None:
        """Withdraw the headroom at once if the recorded limit is enough for the sandbox, otherwise in the background."""
        if self._lower_at_once():
            self._has_withdrawn()
            return
        self._withdrawn.clear()
        self._withdrawal = asyncio.ensure_future(self._withdraw())

    def _lower_at_once(self) -> bool:
        """Set the recorded limits without blocking. Return False if the memory limit could not be set; the other limits are set nevertheless."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            limits = self._recorded()
            if limits is None:
                return True
            memory = self._cgroup.memory()
            needed = self._uncollected(memory) if self.granted_bytes else 0
            is_above = max(memory.charged_bytes, needed) > limits.memory_bytes
            self._cgroup.change(limits, keep_memory=is_above)
        except FileNotFoundError:
            return True
        except (SandlotError, OSError, ValueError):
            return False
        finally:
            self.lock.release()
        return not is_above

    async def _withdraw(self) -> None:
        pauses_s, waited_s = iter(RETRY_PAUSES_S), 0.0
        while True:
            async with self._gate:
                if await run_in_own_thread(functools.partial(self._lower, is_collected=waited_s >= COLLECTED_S)):
                    self._has_withdrawn()
                    return
            # A frozen sandbox cannot return memory, so its time does not run.
            is_frozen = await run_blocking(self._is_frozen)
            pause_s = RETRY_PAUSES_S[-1] if is_frozen else next(pauses_s, None)
            if pause_s is None:
                break
            await asyncio.sleep(pause_s)
            waited_s += 0.0 if is_frozen else pause_s
        self.is_exhausted = True
        _log.warning("sandbox %s has kept %d bytes of headroom and is ended", self._cgroup.name.name, self.granted_bytes)
        await kill_all(self._cgroup)

    def _lower(self, *, is_collected: bool) -> bool:
        """Lower the memory limit as far as the kernel can reclaim memory. Return True if the recorded limits are in force or need not be set.

        If ``is_collected`` is False, leave room for the garbage in the runtime's heap.
        """
        with self.lock:
            limits = self._recorded()
            if limits is None:
                return True
            try:
                least = 0 if is_collected else min(self._uncollected(self._cgroup.memory()), self._cgroup.memory_limit())
                in_force = self._cgroup.lower_memory(max(limits.memory_bytes, least), SLACK_BYTES)
                self._set_granted(in_force, limits)
                self._cgroup.change(limits, keep_memory=True)
            except FileNotFoundError:
                return True
            except (SandlotError, OSError, ValueError):
                return False
            return in_force <= limits.memory_bytes

    def _has_withdrawn(self) -> None:
        self.granted_bytes = 0
        self._withdrawn.set()
        self._mark.unlink(missing_ok=True)

    def _is_frozen(self) -> bool:
        with contextlib.suppress(OSError):
            return self._cgroup.is_frozen()
        return False
