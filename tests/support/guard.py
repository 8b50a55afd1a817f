"""The end of a service whose tests were killed: SIGKILL leaves them no time to end the service and its sandboxes."""

from __future__ import annotations

import os
import select
import shutil
import signal
from pathlib import Path


def end_with_parent(data_dir: Path) -> None:
    """Start a guard of this process. If the parent ends first, the guard kills this process and removes its sandboxes and its state directory.

    The guard ends with this process. It is no child of this process, and stays in the present namespaces. Must be called before any thread is
    started.

    Args:
        data_dir: State directory of this process, which is a service.
    """
    parent, own = os.pidfd_open(os.getppid()), os.pidfd_open(os.getpid())
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                os.setsid()
                _guard(parent, own, data_dir)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(parent)
    os.close(own)


def _guard(parent: int, own: int, data_dir: Path) -> None:
    ended, _, _ = select.select([parent, own], [], [])
    if parent not in ended:  # the tests have ended the service, and may start another one
        return
    if own not in ended:
        signal.pidfd_send_signal(own, signal.SIGKILL)
        select.select([own], [], [])
    from tests.support.sweeping import sweep  # noqa: PLC0415 - most guards do not need it

    sweep(data_dir)
    shutil.rmtree(data_dir, ignore_errors=True)
