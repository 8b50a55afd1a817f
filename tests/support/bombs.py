"""Programs that try to use up something, set off inside a sandbox, and what became of them in one word.

A bomb is a Python program. It tells what stopped it by :data:`PREAMBLE`'s ``tell`` (the name of an errno or of an exception, or
``done``) and may hold on to what it has until it is killed. What else can become of it is seen from outside: it was killed, or its
sandbox ended, and why.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from sandlot import Sandbox, SandlotError
from sandlot.model.errors import ErrorCode
from sandlot.sdk import CommandHandle
from tests.support.localservice import LocalService

PREAMBLE = """
import ctypes, errno, itertools, os, resource, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def tell(what):
    # One word, and at once: whoever tells may be killed the moment after.
    if isinstance(what, OSError):
        what = errno.errorcode.get(what.errno, "OSError")
    elif isinstance(what, BaseException):
        what = type(what).__name__
    os.write(1, f"told {what}\\n".encode())
def hold():
    while True:
        time.sleep(60)
def until_refused(step):
    try:
        for number in itertools.count():
            step(number)
    except (OSError, MemoryError, RuntimeError) as error:
        tell(error)
        return
"""
KILLED = f"signal {int(signal.SIGKILL)}"
OUT_OF_MEMORY = "sandbox oom"


@dataclass(frozen=True, slots=True)
class Bomb:
    """One bomb, and how it may end.

    Args:
        name: What it uses up, for the test's name.
        program: Python; it finds the names of :data:`PREAMBLE`.
        ends: Every word that is a right end; see :func:`set_off`.
        user: As whom.
        differs: Isolation -> its ends, where they are not those of all.
    """

    name: str
    program: str
    ends: frozenset[str]
    user: str = "user"
    differs: tuple[tuple[str, frozenset[str]], ...] = ()

    def ends_on(self, isolation: str) -> frozenset[str]:
        """How it may end on one kind of isolation."""
        return dict(self.differs).get(isolation, self.ends)


def ends(*words: str) -> frozenset[str]:
    """A set of ends."""
    return frozenset(words)


def parametrize(bombs: Sequence[Bomb], variants: Sequence[Bomb]) -> pytest.MarkDecorator:
    """Run a test with ``bombs`` always, and with ``variants`` of these bombs in ``scripts/soak`` only."""
    return pytest.mark.parametrize("bombs", [pytest.param(bombs, id="kinds"), pytest.param(variants, id="variants", marks=pytest.mark.soak)])


def set_off(sandbox: Sandbox, bomb: Bomb) -> tuple[str, CommandHandle | None]:
    """Set a bomb off and wait for the first that can be said of it.

    Returns:
        What it told; or ``signal N``, ``exit N``, ``timeout`` or ``pids``, where it ended without a word; or ``sandbox REASON``,
        where its sandbox ended; or ``refused CODE``, where it could not even be started. And the handle of the process where it
        may still hold on.
    """
    try:
        handle = sandbox.commands.run(
            ["python3", "-SI", "-c", f"{PREAMBLE}\n{bomb.program}"], background=True, user=bomb.user, timeout=30, cwd="/tmp"
        )
    except SandlotError as error:
        return _word_of(error, sandbox), None
    said = b""
    try:
        for piece in handle:
            if piece.stream == "stdout":
                said += piece.data
            for line in said.split(b"\n")[:-1]:
                if line.startswith(b"told "):
                    return line[5:].decode(), handle
        done = handle.wait()
    except SandlotError as error:
        return _word_of(error, sandbox), None
    if done.reason in {"timeout", "pids"}:
        return done.reason, None
    if done.signal is not None:
        return f"signal {done.signal}", None
    return f"exit {done.exit_code} {done.stderr[-300:]}".strip(), None


def explode(sandbox: Sandbox, bomb: Bomb, isolation: str) -> str:
    """Set a bomb off, and see to it that the end was a right one.

    A sandbox that goes on must serve: root while the bomb holds all that it could get, everybody after it was killed.

    Returns:
        The word.
    """
    word, handle = set_off(sandbox, bomb)
    assert word in bomb.ends_on(isolation), f"{bomb.name} on {isolation}: {word}"
    if word.startswith("sandbox "):
        ended = sandbox.info()
        assert ended.state in {"failed", "stopped"}
        return word
    if handle is not None:
        with suppress(SandlotError):  # what it holds may be the very thing that one more process needs, and the reason is said
            assert serves_root(sandbox)
        try:
            handle.kill()
            handle.wait()
        except SandlotError as error:  # one more process was more than it could bear
            word = _word_of(error, sandbox)
            assert word in bomb.ends_on(isolation), f"{bomb.name} on {isolation}: {word}"
            return word
    sandbox.commands.run("find /tmp /var/tmp /dev/shm /workspace -mindepth 1 -delete; rm -f /root/data", user="root", timeout=60)
    check_serves(sandbox)
    return word


def explode_all(targets: Targets, bombs: Iterable[Bomb], isolation: str) -> None:
    """Set bombs off one after the other, and report every bomb that did not end as it should.

    Args:
        targets: Sandboxes to bomb; a sandbox that a bomb ended is replaced.
        bombs: The bombs.
        isolation: Isolation type of the sandboxes.
    """
    wrong = {}
    for bomb in bombs:
        try:
            explode(targets.get(), bomb, isolation)
        except (AssertionError, SandlotError) as failure:
            wrong[bomb.name] = str(failure)[:500]
            targets.close()
    assert wrong == {}, wrong


def serves_root(sandbox: Sandbox) -> bool:
    """Whether files and commands of root work."""
    assert sandbox.files.stat("/etc/passwd", user="root").size_bytes
    return sandbox.commands.run(["echo", "alive"], user="root", timeout=60).stdout == "alive\n"


def check_serves(sandbox: Sandbox) -> None:
    """Commands, cells and files work for everybody. A bomb may have cost the kernel its life; then the next cell has a new one."""
    assert sandbox.commands.run(["echo", "alive"], timeout=60).stdout == "alive\n"
    first = sandbox.run_code("6 * 7")
    assert first.text == "42" or first.status in {"died", "killed"}, first
    assert sandbox.run_code("6 * 7").text == "42"
    sandbox.files.write("/dev/shm/alive", "alive")
    assert sandbox.files.read("/dev/shm/alive") == "alive"
    sandbox.files.remove("/dev/shm/alive")


def _word_of(error: SandlotError, sandbox: Sandbox) -> str:
    if error.code is ErrorCode.SANDBOX_ENDED:
        return f"sandbox {error.fields.get('reason')}"
    with suppress(SandlotError):
        if (reason := sandbox.info().exit_reason) is not None:
            return f"sandbox {reason}"
    return f"refused {error.code}"


class Targets:
    """Sandboxes to be bombed: the same one again and again as long as it lives, then the next.

    Args:
        service: Who makes them.
        options: What they are made with.
    """

    def __init__(self, service: LocalService, **options: Any) -> None:  # noqa: ANN401 - whatever Sandbox.create takes
        self._service = service
        self._options = options
        self._now: Sandbox | None = None

    def get(self) -> Sandbox:
        """One that lives."""
        if self._now is not None and self._now.info().state == "running":
            return self._now
        self.close()
        self._now = self._service.create(timeout=1800, **self._options)
        return self._now

    def close(self) -> None:
        """Give up the present one."""
        if self._now is not None:
            self._now.kill()
            self._now = None
