"""Processes that kill themselves at one of their steps."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


def is_killed_at(step: int, folder: Path, work: Callable[[], object]) -> bool:
    """Run a function in a process that is killed before a step. Return False if it has ended before this step.

    Args:
        step: Number of the step, from 1. A step opens, creates, renames or removes something in the folder.
        folder: The folder.
        work: The function. An exception in it fails the test.
    """
    child = os.fork()
    if child == 0:
        try:
            _die_at(step, folder)
            work()
            os._exit(0)
        finally:
            os._exit(1)  # the child must not continue as a second run of the tests
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}
    return status != 0


def _die_at(step: int, folder: Path) -> None:
    steps = itertools.count(1)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"} and str(arguments[0]).startswith(str(folder)) and next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
