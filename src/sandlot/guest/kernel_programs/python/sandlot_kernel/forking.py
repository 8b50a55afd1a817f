"""Handling of forks by cells, and of programs that cells start.

- All queued output is sent before a cell forks, starts a program or ends the process.
- A child that a cell has forked ends when the code of the cell ends. It never sends messages to the guest.
"""

from __future__ import annotations

import os
import subprocess
import sys

from .text_streams import ChildStream, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .output import Output

SHELLS = ("/bin/bash", "/bin/sh")


class ForkHooks:
    """Functions that run before and after a fork, and before a program starts.

    Args:
        output: Queue of the kernel's output, which is sent before a fork or the start of a program.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pid = os.getpid()

    def become_kernel(self) -> None:
        """Record that this process is the kernel and not a forked child. Called when the kernel starts, and after the fork server has forked it."""
        self._pid = os.getpid()

    def install(self) -> None:
        """Patch functions of ``os`` and ``subprocess`` that start a process or end this process, so that these functions send queued output first."""
        self.become_kernel()
        output = self._output
        os.register_at_fork(before=output.before_fork, after_in_child=self._after_fork_in_child)
        subprocess.Popen._execute_child = _call_first(output.flush_and_sync, subprocess.Popen._execute_child)  # type: ignore[attr-defined]  # noqa: SLF001
        for name in ("system", "posix_spawn", "posix_spawnp", "execv", "execve"):
            setattr(os, name, _call_first(output.flush_and_sync, getattr(os, name)))
        for name in ("_exit", "abort"):
            setattr(os, name, _call_first(output.flush, getattr(os, name)))

    def is_child(self) -> bool:
        """Return True if this process is a child that a cell has forked, and not the kernel."""
        return os.getpid() != self._pid

    def end_child(self, error: BaseException | None) -> None:
        """End this process, which is a forked child, with the exit status that Python would use.

        Args:
            error: Exception that has ended the code of the cell in the child; None if the code has ended normally.
        """
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                sys.stderr.write(error.code + "\n")
        elif error is not None:
            code = 1
            sys.excepthook(type(error), error, error.__traceback__)
        os._exit(code & 0xFF)

    def _after_fork_in_child(self) -> None:
        self._output.after_fork_in_child()
        for stream in (sys.stdout, sys.stderr):
            if type(stream) is Stream:
                stream.__class__ = ChildStream


def _call_first(first: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``first``, ignores an OSError that ``first`` raises, and then calls ``function``."""

    def flushed(*args: Any, **named: Any) -> Any:
        try:
            first()
        except OSError:
            pass
        return function(*args, **named)

    flushed.__name__ = flushed.__qualname__ = getattr(function, "__name__", "flushed")
    flushed.__doc__ = function.__doc__
    flushed.__module__ = getattr(function, "__module__", "os")
    return flushed


def run_command(command: str) -> int:
    """Run the command line of a ``!command`` in a cell, with bash if the image has bash, and with sh if not.

    The command inherits the kernel's standard output and standard error, so that its output reaches the client while the command runs. If a
    cell has replaced ``sys.stdout`` or ``sys.stderr``, the output is written to these streams when the command has ended.

    Args:
        command: The command line.

    Returns:
        Exit status of the command; the negative number of the signal if a signal has ended the command.
    """
    path = next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1])
    argv = [path, "-c", command]
    if all(type(stream) in {Stream, ChildStream} for stream in (sys.stdout, sys.stderr)):
        return subprocess.call(argv, stdin=subprocess.DEVNULL)
    # A cell has replaced sys.stdout or sys.stderr, as %%capture does: collect the output and write it to the replacements.
    run = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for stream, data in ((sys.stdout, run.stdout), (sys.stderr, run.stderr)):
        if stream is not None:
            stream.write(data.decode("utf-8", "replace"))
    return run.returncode
