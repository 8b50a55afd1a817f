"""Freezing a sandbox, and raising its limits for a moment while its runtime writes or reads a snapshot.

Only the runtime uses the higher limits: it stops the tenant's programs while it writes or reads a snapshot.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandlot.host.blocking import run_in_own_thread
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.cgroups import Cgroup
from sandlot.model.errors import InternalError, SandlotError

HEADROOM_BYTES: Final = 256 * 1024 * 1024
"""Least amount by which the memory limit is raised."""
RETRY_PAUSES_S: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0, 60.0, 60.0)
"""Pauses between the attempts to lower the limits again. gVisor's kernel is a Go program, which returns unneeded memory every two minutes."""
_FREEZE_TIMEOUT_S: Final = 10.0
_FREEZE_PAUSE_S: Final = 0.0005


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


class Headroom:
    """Raises the limits of a sandbox's control group during a snapshot or a restore, and lowers them again.

    Otherwise the kernel would kill a sandbox near its memory limit during a snapshot. gVisor's kernel then takes up to twice its memory
    (measured: 124 MiB for 20,000 files, 96 MiB for 100 processes, 6 MiB for a shell), and the snapshot's files in the page cache count as well. A
    restore needs at least 50 ms of processor time. With a limit of half a processor, it would take at least 100 ms.

    Args:
        cgroup: The control group of the sandbox.
        mark: Path of a marker file. The file exists while raised limits still have to be lowered after a snapshot or restore. After a restart, the
            service checks whether the file exists.
        recorded: Function that returns the limits of the control group according to the sandbox's record. The function returns None if there is no
            record or the sandbox is being released.

    Attributes:
        lock: Lock that is held while limits are recorded and set, so that the limits of the control group match the record.
    """

    __slots__ = ("_cgroup", "_lowering", "_mark", "_recorded", "lock")

    def __init__(self, cgroup: Cgroup, mark: Path, recorded: Callable[[], GroupLimits | None]) -> None:
        self._cgroup = cgroup
        self._mark = mark
        self._recorded = recorded
        self._lowering: asyncio.Task[None] | None = None
        self.lock = threading.Lock()

    @contextlib.asynccontextmanager
    async def raised(self) -> AsyncIterator[None]:
        """Raise the limits of memory and processors for a ``with`` block, and lower them at its end.

        If the sandbox then uses more memory than its recorded limit, the memory limit is lowered in the background.

        Raises:
            FileNotFoundError: The control group is gone.
        """
        self.cancel()
        # The limits are raised without a worker thread: the kernel need not reclaim memory, and a thread switch takes longer than writing the files.
        limits = self._recorded()
        if limits is not None:
            memory_bytes = limits.memory_bytes + max(limits.memory_bytes, HEADROOM_BYTES)
            self._cgroup.change(replace(limits, memory_bytes=memory_bytes, cpus=max(limits.cpus, os.cpu_count() or 1)))
        try:
            yield
        finally:
            if not self._lower(wait=False):
                self.lower_in_background()

    def lower_in_background(self) -> None:
        """Lower the limits to the recorded limits in the background. Failed attempts are repeated for some minutes."""
        with contextlib.suppress(OSError):
            self._mark.touch(mode=0o600)
        self._lowering = asyncio.ensure_future(self._lower_until_done())

    def cancel(self) -> None:
        """Stop lowering the limits in the background."""
        if self._lowering is not None:
            self._lowering.cancel()

    async def _lower_until_done(self) -> None:
        for pause_s in RETRY_PAUSES_S:
            if await run_in_own_thread(self._lower, wait=True):
                self._mark.unlink(missing_ok=True)
                return
            await asyncio.sleep(pause_s)

    def _lower(self, *, wait: bool) -> bool:
        """Set the recorded limits. Return True if all of them are in force, or if they need not be set.

        Args:
            wait: If True, block until the kernel has reclaimed enough memory. If False, do not block: while the sandbox uses more memory than the
                recorded limit, the memory limit stays as it is, and False is returned.
        """
        if not self.lock.acquire(blocking=wait):
            return False
        try:
            limits = self._recorded()
            if limits is None:
                return True
            if not wait and self._cgroup.charged_bytes() > limits.memory_bytes:
                self._cgroup.change(replace(limits, memory_bytes=self._cgroup.limits().memory_bytes))
                return False
            self._cgroup.change(limits)
        except FileNotFoundError:
            return True
        except (SandlotError, OSError, ValueError):
            return False
        finally:
            self.lock.release()
        return True
