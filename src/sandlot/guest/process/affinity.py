"""The number of processors that programs see: the affinity (sched_setaffinity(2)) that they inherit from the guest.

In gVisor, a sandbox has at least two processors, even with the processor time of one. ``nproc``, Python, Node.js, Java and Go count
the processors of their affinity. gVisor only stores the affinity: it does not decide on which processor a program runs.
"""

from __future__ import annotations

import os

from sandlot.guest.loop import log
from sandlot.guest.process.procfs import all_pids

SELF = 0
"""Pid 0, which stands for the calling process, here the guest."""


class ShownProcessors:
    """The number of processors that programs see. Until the first call of :meth:`show`, programs see all processors."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count: int | None = None

    def show(self, count: int | None) -> None:
        """Set the affinity of the guest, and of each running process that has the guest's old affinity, to the first processors.

        The other threads of a running process keep their affinity. Nothing is done if the same number is shown already.

        Args:
            count: Number of processors; all processors are shown if there are fewer. None: nothing is done.
        """
        if count is None or count == self._count:
            return
        self._count = count
        try:
            before = os.sched_getaffinity(SELF)
            os.sched_setaffinity(SELF, range(count))
        except OSError as error:
            log(f"cannot set the affinity to {count} processors: {error.strerror}")
            return
        after = os.sched_getaffinity(SELF)
        for pid in all_pids() if after != before else ():
            try:
                if os.sched_getaffinity(pid) == before:
                    os.sched_setaffinity(pid, after)
            except OSError:
                continue  # the process has ended
