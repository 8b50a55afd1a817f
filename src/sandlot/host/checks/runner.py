"""Runs checks in child processes, at the same time, each with a deadline.

A check may block for ever, for example on a network file system that is gone or a disk that does not respond. A blocked process
can usually be killed, a blocked thread cannot.

Invariants:
- A check is a function, named as ``module:function``. It takes keyword arguments and returns JSON values. Its process has one thread, so the
  function may call fork and unshare.
- A check dies with its parent (prctl(2), PR_SET_PDEATHSIG). At its deadline, its process group is killed.
- The parent waits at most :data:`_REAP_S` seconds for a killed process, because a process that is blocked in the kernel may not end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandlot.host.stage.syscalls import PR_SET_PDEATHSIG, prctl

_REAP_S = 2.0
"""Longest time in seconds to wait until a killed process has ended."""
_PIPE_BYTES = 64 * 1024
_RESULT = b"\x1eresult "
"""Start of the output line that contains the result of a check. All other output of the check is ignored."""
_RESULT_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Task:
    """A check to run.

    Args:
        name: Name, unique among the checks that run at the same time.
        function: Function of the check, as ``module:function``.
        keywords: Keyword arguments of the function, as JSON values.
        deadline_s: Seconds after the start at which the check is killed.
    """

    name: str
    function: str
    keywords: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a check.

    Args:
        value: Value that the check returned. None if the check returned no value.
        error: Reason why the check returned no value; empty if it returned a value.
        late: True if the check returned no value before its deadline.
    """

    value: Any = None
    error: str = ""
    late: bool = False


def run_in_child(function: str, keywords: str, parent: int) -> None:
    """Call the function of a check in this child process, print the result for the parent, and exit.

    Args:
        function: Function of the check, as ``module:function``.
        keywords: Keyword arguments of the function, as a JSON object.
        parent: Process id of the parent.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl took effect
        os._exit(1)
    module, _, name = function.partition(":")
    try:
        result: dict[str, Any] = {"value": getattr(importlib.import_module(module), name)(**json.loads(keywords))}
    except Exception as error:  # noqa: BLE001 - the error is sent to the parent
        result = {"error": describe_error(error)}
    os.write(1, b"\n" + _RESULT + json.dumps(result).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)


def run(tasks: Sequence[Task]) -> dict[str, Outcome]:
    """Run all checks at the same time, and return when each has ended or reached its deadline.

    Args:
        tasks: The checks.

    Returns:
        Name of the check -> outcome.
    """
    children: list[_Child] = []
    try:
        children.extend(map(_Child, tasks))
        _listen(children)
        return {child.task.name: child.outcome() for child in children}
    finally:
        for child in children:
            child.end()


class _Child:
    """Child process of one check."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.text = b""
        self.late = False
        self.popen = subprocess.Popen(
            [sys.executable, "-P", "-m", "sandlot.host.checks", task.function, json.dumps(dict(task.keywords)), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            process_group=0,
            bufsize=0,
        )
        self.deadline_s = time.monotonic() + task.deadline_s

    def outcome(self) -> Outcome:
        for line in reversed(self.text.split(b"\n")):
            if line.startswith(_RESULT):
                with contextlib.suppress(ValueError):
                    return Outcome(**json.loads(line.removeprefix(_RESULT)))
        if self.late:
            return Outcome(error=f"no result within {self.task.deadline_s:g} s", late=True)
        return Outcome(error="the process ended without a result")

    def end(self) -> None:
        """Kill the child process and all processes of its process group. Wait at most ``_REAP_S`` seconds for the end of the child."""
        with contextlib.suppress(ProcessLookupError):
            # A process that was not reaped keeps its id, so killpg reaches the process group of this child and no other group.
            if self.popen.returncode is None:
                os.killpg(self.popen.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(_REAP_S)
        if self.popen.stdout is not None:
            self.popen.stdout.close()


def _listen(children: Sequence[_Child]) -> None:
    with selectors.DefaultSelector() as selector:
        for child in children:
            if child.popen.stdout is not None:
                selector.register(child.popen.stdout, selectors.EVENT_READ, child)
        while selector.get_map():
            now = time.monotonic()
            for key in list(selector.get_map().values()):
                if key.data.deadline_s <= now:
                    key.data.late = True
                    selector.unregister(key.fileobj)
            waits = [key.data.deadline_s - now for key in selector.get_map().values()]
            for key, _ in selector.select(min(waits)) if waits else ():
                child = key.data
                more = os.read(key.fd, _PIPE_BYTES)
                child.text = (child.text + more)[-_RESULT_BYTES:]
                # Read no more after the result, even if the pipe is still open: processes that the check started may keep the pipe open.
                if not more or (_RESULT in child.text and child.text.endswith(b"\n")):
                    selector.unregister(key.fileobj)


def describe_error(error: Exception) -> str:
    """Return the text of an error in one line, with the file name if the error has one."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def run_forked(work: Callable[[], None], deadline_s: float) -> str:
    """Call a function in a fork of this process. Return why the function failed, or an empty string if it succeeded. For use in checks.

    Args:
        work: Function that raises an exception if it fails. The function may change the forked process in any way.
        deadline_s: Seconds until the forked process is killed.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            work()
            os.write(writing, b"+")
        except Exception as error:  # noqa: BLE001 - the error is sent to the parent
            os.write(writing, describe_error(error).encode(errors="replace")[:4000] or b"?")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            if not selector.select(deadline_s):
                return f"no result within {deadline_s:g} s"
        result = os.read(reading, 4096).decode(errors="replace")
        return "" if result == "+" else result or "the process ended without a result"
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
