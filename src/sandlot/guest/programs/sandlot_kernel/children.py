"""Children of the kernel: what was printed before one starts is told before what it prints, and a forked one is no second kernel.

Laws:
- Before a fork, a program's start, and the process's own end, everything that is kept is sent.
- A child that a cell forked leaves with what its code came to; it never answers the guest.
"""

from __future__ import annotations

import os
import subprocess
import sys

from . import streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .streams import Output

SHELLS = ("/bin/bash", "/bin/sh")


class Children:
    """What is done around forks and programs."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._pid = os.getpid()

    def settle(self) -> None:
        """This process is the kernel: a zygote forked it."""
        self._pid = os.getpid()

    def install(self) -> None:
        """Tell what was printed before everything that starts a process, or ends this one."""
        self.settle()
        output = self._output
        os.register_at_fork(before=output.before_fork, after_in_child=self._forked)
        subprocess.Popen._execute_child = _after(output.settle, subprocess.Popen._execute_child)  # type: ignore[attr-defined]  # noqa: SLF001
        for name in ("system", "posix_spawn", "posix_spawnp", "execv", "execve"):
            setattr(os, name, _after(output.settle, getattr(os, name)))
        for name in ("_exit", "abort"):
            setattr(os, name, _after(output.flush, getattr(os, name)))

    def is_child(self) -> bool:
        """Whether this process was forked by a cell."""
        return os.getpid() != self._pid

    def end(self, error: BaseException | None) -> None:
        """A forked child came to the end of its parent's cell."""
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
            if isinstance(error.code, str):
                sys.stderr.write(error.code + "\n")
        elif error is not None:
            code = 1
            sys.excepthook(type(error), error, error.__traceback__)
        os._exit(code & 0xFF)

    def _forked(self) -> None:
        self._output.in_child()
        for stream in (sys.stdout, sys.stderr):
            if type(stream) is streams.Stream:
                stream.__class__ = streams.ChildStream


def _after(first: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that tells what was printed before it is called."""

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


def shell(command: str) -> int:
    """Run a command line, as ``!command`` does: on the kernel's own descriptors, so that its output comes as it is written.

    Returns:
        Its exit code; of one that a signal ended, minus the signal's number.
    """
    path = next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1])
    argv = [path, "-c", command]
    if all(type(stream) in {streams.Stream, streams.ChildStream} for stream in (sys.stdout, sys.stderr)):
        return subprocess.call(argv, stdin=subprocess.DEVNULL)
    # A cell has put something else in the place of a stream (%%capture does): it is to have the text.
    run = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    for stream, data in ((sys.stdout, run.stdout), (sys.stderr, run.stderr)):
        if stream is not None:
            stream.write(data.decode("utf-8", "replace"))
    return run.returncode
