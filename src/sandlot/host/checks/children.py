"""Checks in processes of their own, side by side, each ended at its deadline.

A check may wait for ever: a virtual machine that does not work, a network file system that is gone, a disk that does not answer. A process can
be killed then, a thread cannot.

Laws:
- A check is ``module:function``; it is called with keywords and returns JSON values. It is one thread, so it may fork and unshare.
- It dies with its parent (prctl(2), PR_SET_PDEATHSIG) and is killed with all that it started (its process group) when its time is up.
- One that cannot even be killed is left to the kernel: nobody waits for it longer than :data:`_REAP_S`.
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

from sandlot.host.checks import calls

_REAP_S = 2.0
_PIPE_BYTES = 64 * 1024
_ANSWER = b"\x1eanswer "
"""What begins the last line; whatever else a check prints is no answer."""
_ANSWER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Task:
    """A check to be carried out.

    Args:
        name: Its name among those that run beside it.
        function: ``module:function``.
        keywords: What it is called with; JSON values.
        deadline_s: Seconds that it may take.
    """

    name: str
    function: str
    keywords: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a check ended.

    Args:
        value: What it returned; None if it did not.
        error: Why it did not.
        late: Whether its time was up.
    """

    value: Any = None
    error: str = ""
    late: bool = False


def carry_out(function: str, keywords: str, parent: int) -> None:
    """Be the child: call the function and print what it returns."""
    calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)
    module, _, name = function.partition(":")
    try:
        told: dict[str, Any] = {"value": getattr(importlib.import_module(module), name)(**json.loads(keywords))}
    except Exception as error:  # noqa: BLE001 - told to the parent
        told = {"error": described(error)}
    os.write(1, b"\n" + _ANSWER + json.dumps(told).encode() + b"\n")
    sys.stdout.flush()
    os._exit(0)


def run(tasks: Sequence[Task]) -> dict[str, Answer]:
    """Carry out all of them at once; return when the last one has ended or is late.

    Args:
        tasks: What to do; their names differ.
    """
    children: list[_Child] = []
    try:
        children.extend(map(_Child, tasks))
        _listen(children)
        return {child.task.name: child.answer() for child in children}
    finally:
        for child in children:
            child.end()


class _Child:
    """A process that carries out a task."""

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

    def answer(self) -> Answer:
        for line in reversed(self.text.split(b"\n")):
            if line.startswith(_ANSWER):
                with contextlib.suppress(ValueError):
                    return Answer(**json.loads(line.removeprefix(_ANSWER)))
        if self.late:
            return Answer(error=f"no answer within {self.task.deadline_s:g} s", late=True)
        return Answer(error="it ended without an answer")

    def end(self) -> None:
        """Kill what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            # Not reaped yet, so that its number is its own; its group may hold what it started.
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
                child.text = (child.text + more)[-_ANSWER_BYTES:]
                # What it started may hold the pipe open: an answer is enough.
                if not more or (_ANSWER in child.text and child.text.endswith(b"\n")):
                    selector.unregister(key.fileobj)


def described(error: Exception) -> str:
    """An error in a line, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def forked(work: Callable[[], None], deadline_s: float) -> str:
    """In a check: call something in a process of its own; why it failed, or nothing.

    Args:
        work: What raises when it fails. It may change whatever belongs to a process.
        deadline_s: Seconds that it may take.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            calls.prctl(calls.PR_SET_PDEATHSIG, signal.SIGKILL)
            work()
            os.write(writing, b"+")
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(writing, described(error).encode(errors="replace")[:4000] or b"?")
        finally:
            os._exit(0)
    os.close(writing)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(reading, selectors.EVENT_READ)
            if not selector.select(deadline_s):
                return f"no answer within {deadline_s:g} s"
        said = os.read(reading, 4096).decode(errors="replace")
        return "" if said == "+" else said or "it ended without an answer"
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
