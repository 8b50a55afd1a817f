"""Kills the processes of a sandbox that a program has left.

Invariants:
- Nothing is killed outside of a sandbox: PID 1 must be the guest.
- PID 1, this helper and the processes in ``keep`` are never killed.
"""

from __future__ import annotations

import os
import time

from sandlot.guest.helpers.helper import serve
from sandlot.guest.process.procfs import PASSES, live_processes, send_signal
from sandlot.protocol.fast_imports import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GUEST = b"sandlot.guest.main"
"""Text in the command line of the guest (``link/payload.py``)."""
PAUSE_S = 0.01
"""Seconds between two passes: a killed process takes some time to end."""


def reap(request: dict[str, Any]) -> dict[str, Any]:
    """Kill all processes except some.

    Args:
        request: ``keep``: pids of the processes that stay; None to kill nothing.

    Returns:
        ``pids``: pids of all processes that are left, without PID 1 and this helper.
    """
    keep, pids = request["keep"], []
    for _ in range(PASSES):
        pids = [task.pid for task in live_processes() if task.pid not in {1, os.getpid()}]
        strangers = [] if keep is None or not _is_in_sandbox() else [pid for pid in pids if pid not in keep]
        if not strangers:
            break
        for pid in strangers:
            send_signal(pid, signal.SIGKILL)
        time.sleep(PAUSE_S)
    return {"pids": pids}


def _is_in_sandbox() -> bool:
    try:
        with open("/proc/1/cmdline", "rb") as file:
            return GUEST in file.read(4096)
    except OSError:
        return False


def main() -> None:
    """Run the helper that kills processes."""
    serve(reap)
