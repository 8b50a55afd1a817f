"""Forks of the kernel, and programs that cells start.

- Before a fork, the start of a program, and the end of the process, all output is sent.
- A forked child ends at the end of the cell, and never sends messages to the guest.
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
    """Hooks around forks and starts of programs.

    Args:
        output: Output of the kernel.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pid = os.getpid()

    def become_kernel(self) -> None:
        """Treat this process as the kernel, not as a forked child. The fork server may have forked it."""
        self._pid = os.getpid()

    def install(self) -> None:
        """Patch the functions that start a process or end this process, so that output is sent before."""
        self.become_kernel()
        output = self._output
        os.register_at_fork(before=output.before_fork, after_in_child=self._after_fork_in_child)
        subprocess.Popen._execute_child = _call_first(output.flush_and_sync, subprocess.Popen._execute_child)  # type: ignore[attr-defined]  # noqa: SLF001
        for name in ("system", "posix_spawn", "posix_spawnp", "execv", "execve"):
            setattr(os, name, _call_first(output.flush_and_sync, getattr(os, name)))
        for name in ("_exit", "abort"):
            setattr(os, name, _call_first(output.flush, getattr(os, name)))

    def is_child(self) -> bool:
        """Return True if a cell has forked this process."""
        return os.getpid() != self._pid

    def end_child(self, error: BaseException | None) -> None:
        """End a forked child. The exit status is that of a program that ends with ``error``."""
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
    """Return a function that calls ``first`` before ``function``."""

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
    """Run a command line for ``!command``, on the descriptors of the kernel, so that its output is sent as it is written.

    Returns:
        Exit status; minus the number of the signal if a signal has ended the command.
    """
    path = next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1])
    argv = [path, "-c", command]
    if all(type(stream) in {Stream, ChildStream} for stream in (sys.stdout, sys.stderr)):
        return subprocess.call(argv, stdin=subprocess.DEVNULL)
    # A cell has replaced a stream, as %%capture does: write the output to that stream.
    run = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for stream, data in ((sys.stdout, run.stdout), (sys.stderr, run.stderr)):
        if stream is not None:
            stream.write(data.decode("utf-8", "replace"))
    return run.returncode
