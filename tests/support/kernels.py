"""Kernel programs at the ends of their wires, driven over a socket pair as the guest drives them.

:class:`Process` is the python kernel on this machine's python, :class:`Piped` one of any language with what its children write.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandlot.link import payload
from sandlot.protocol import values

PATIENCE_S = 150.0
AGAIN_S = 1.0
"""When the guest says an interrupt again."""


def ship(folder: Path) -> Path:
    """The programs as they lie in a sandbox."""
    for name, text in payload.programs().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder / "kernel_programs/python/kernel.py"


class Peer:
    """One end of a socket that carries the kernel's messages."""

    def __init__(self, ours: socket.socket) -> None:
        self.ours = ours
        self.ours.settimeout(PATIENCE_S)
        self.answers = True
        """Whether it says, as the guest does, that what was sent was taken in."""

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        data = values.encode_message(message)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        if rights:
            assert self.ours.sendmsg([data], rights) == len(data)
        else:
            self.ours.sendall(data)

    def receive(self) -> dict[str, Any]:
        while True:
            size = values.message_length(self._exactly(values.HEAD_BYTES))
            message: dict[str, Any] = values.decode(self._exactly(size))
            if message["event"] != "sync" or not self.answers:
                return message
            self.send({"op": "synced", "number": message["number"]})

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.ours.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


class Kernel(Peer):
    """A kernel; ``pid`` is its own."""

    def __init__(self, ours: socket.socket, pid: int) -> None:
        super().__init__(ours)
        self.pid = pid
        self.cells = 0
        assert self.receive() == {"event": "ready"}

    def begin(self, code: str, *, env: dict[str, str] | None = None, silent: bool = False, stored: bool = True) -> str:
        self.cells += 1
        cell = f"c{self.cells}"
        self.send({"op": "execute", "cell": cell, "code": code, "env": env or {}, "silent": silent, "store_history": stored})
        return cell

    def until(self, cell: str, event: str = "done") -> list[dict[str, Any]]:
        told = []
        while True:
            told.append(self.receive())
            if (told[-1]["event"], told[-1].get("cell")) == (event, cell):
                return told

    def until_event(self, event: str) -> list[dict[str, Any]]:
        told = [self.receive()]
        while told[-1]["event"] != event:
            told.append(self.receive())
        return told

    def run(self, code: str, *, env: dict[str, str] | None = None, silent: bool = False, stored: bool = True) -> list[dict[str, Any]]:
        """What is told of a cell, between its start and its end."""
        told = self.until(self.begin(code, env=env, silent=silent, stored=stored))
        assert told[-1]["ok"] == all(message["event"] != "error" for message in told), told
        return [message for message in told if message["event"] not in {"started", "done"}]

    def interrupt(self, code: str, ready: str = "print('started', flush=True)\n") -> list[dict[str, Any]]:
        """Interrupt a cell once its own code runs; what is told after that."""
        cell = self.begin(ready + code)
        self.until(cell, "output")
        time.sleep(0.2)  # so that it is in the middle of it; an interrupt that comes earlier does the same
        os.kill(self.pid, signal.SIGINT)
        return self.until(cell)

    def value(self, code: str) -> str:
        return values_of(self.run(code))[-1]

    def text(self, code: str) -> str:
        return text_of(self.run(code))


class Process(Kernel):
    """A kernel that was started by itself. What it and its children write to descriptors 1 and 2 is read at its end.

    Args:
        folder: Where it runs.
        flags: Of the program.
        env: Added to the environment.
        program: That; shipped into the folder by default.
        python: That.
        rings_s: How long after the begin of a cell it is rung for, 0 is never; None gives it no bell.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        program: Path | None = None,
        python: str = sys.executable,
        rings_s: float | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._rings_s = rings_s
        bell, self._bell = os.pipe()
        with theirs, open(bell, "rb"):  # noqa: PTH123 - a descriptor
            given = [theirs.fileno(), *([] if rings_s is None else [bell])]
            argv = [python, "-W", "error", str(program or ship(folder)), *flags, *map(str, given)]
            self.process = subprocess.Popen(
                argv,
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "HOME": str(folder), **(env or {})},
                start_new_session=True,
            )
        super().__init__(ours, self.process.pid)

    def begin(self, code: str, *, env: dict[str, str] | None = None, silent: bool = False, stored: bool = True) -> str:
        cell = super().begin(code, env=env, silent=silent, stored=stored)
        if self._rings_s:
            threading.Timer(self._rings_s, self.ring).start()
        return cell

    def ring(self) -> None:
        """As the guest does when a cell takes its time."""
        with suppress(OSError):
            os.write(self._bell, b"\0")

    def stop(self) -> bytes:
        """End it as the guest does; what came by the descriptors."""
        self.ours.close()
        assert self.process.stdout is not None
        text = self.process.stdout.read()
        self.process.stdout.close()
        assert self.process.wait(PATIENCE_S) == 0, text
        return text

    def close(self) -> None:
        self.ours.close()
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(slots=True)
class Told:
    """What came of a cell: texts by channel, and every message but output in order."""

    stdout: str = ""
    stderr: str = ""
    order: list[str] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def errors(self) -> list[tuple[str, str]]:
        return [(message["name"], message["value"]) for message in self.messages if message["event"] == "error"]

    @property
    def error(self) -> dict[str, Any]:
        (found,) = [message for message in self.messages if message["event"] == "error"]
        return found

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["event"] == "display"]

    @property
    def plain(self) -> list[str]:
        return [message["data"]["text/plain"] for message in self.displays]

    @property
    def is_ok(self) -> bool:
        return bool(self.messages[-1]["ok"])

    @property
    def count(self) -> int:
        return int(self.messages[-1]["count"])


class Piped(Peer):
    """One running kernel program of any language, started as the guest starts it: its own session, two pipes, a socket.

    Args:
        argv: How it is started; the socket's number comes behind it.
        cwd: Where.
        env: Added to the environment.
    """

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self._pipes: dict[int, int] = {}
        ends = []
        for channel in (1, 2):
            read, write = os.pipe()
            os.set_blocking(read, False)
            self._pipes[read] = channel
            ends.append(write)
        with theirs:
            self.process = subprocess.Popen(
                [*argv, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=ends[0],
                stderr=ends[1],
                cwd=cwd,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        for end in ends:
            os.close(end)
        self._told: dict[str, Told] = {}
        self._last = ""
        self._number = 0
        assert self.receive() == {"event": "ready"}
        self.send({"op": "wake", "entropy": bytes(32), "env": dict(env or {}), "cwd": str(cwd)})

    def begin(self, code: str, env: Mapping[str, str] | None = None, **more: bool) -> str:
        """Send a cell; its id."""
        self._number += 1
        cell = self._last = f"cell-{self._number}"
        self._told[cell] = Told()
        self.send({"op": "execute", "cell": cell, "code": code, "env": dict(env or {}), "silent": False, "store_history": True, **more})
        return cell

    def finish(self, cell: str) -> Told:
        """Wait for a cell's end."""
        return self.until(cell, lambda told: bool(told.messages) and told.messages[-1]["event"] == "done")

    def run(self, code: str, env: Mapping[str, str] | None = None, **more: bool) -> Told:
        """Run a cell."""
        return self.finish(self.begin(code, env, **more))

    def told(self, cell: str) -> Told:
        """What came of a cell so far."""
        return self._told[cell]

    def until(self, cell: str, is_there: Callable[[Told], bool]) -> Told:
        """Listen until a cell has told something."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_there(self._told[cell]):
            self._hear(deadline)
        return self._told[cell]

    def interrupt(self) -> None:
        """As the guest does it: a message, for kernels that hear no signal while they are busy, and SIGINT for the group."""
        self.send({"op": "interrupt", "cell": self._last})
        os.killpg(self.process.pid, signal.SIGINT)

    def stop(self, cell: str) -> Told:
        """Interrupt a cell as the guest does, once a second until it ends."""
        again_monotonic_s = 0.0

        def is_over(told: Told) -> bool:
            nonlocal again_monotonic_s
            if told.order[-1:] == ["done"]:
                return True
            if time.monotonic() > again_monotonic_s:
                self.interrupt()
                again_monotonic_s = time.monotonic() + AGAIN_S
            return False

        return self.until(cell, is_over)

    def close(self) -> int:
        """The guest goes away; the program's exit status."""
        self.ours.close()
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in self._pipes:
                os.close(pipe)
            self._pipes = {}

    def _hear(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        assert left > 0, f"nothing more came: {self._told}"
        ready, _, _ = select.select([self.ours.fileno(), *self._pipes], [], [], min(left, AGAIN_S))
        # The guest's order: what is in the pipes was written before the message that is there now.
        self._drain()
        if self.ours.fileno() in ready:
            message = self.receive()
            self._drain()
            told = self._told[message.get("cell") or self._last]
            if message["event"] == "output":
                self._add(told, message["channel"], message["data"])
            else:
                told.order.append(message["event"])
                told.messages.append(message)

    def _drain(self) -> None:
        for pipe, channel in list(self._pipes.items()):
            while True:
                try:
                    data = os.read(pipe, 1 << 20)
                except BlockingIOError:
                    break
                if not data:
                    os.close(pipe)
                    del self._pipes[pipe]
                    break
                if self._last:
                    self._add(self._told[self._last], channel, data)

    @staticmethod
    def _add(told: Told, channel: int, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if channel == 1:
            told.stdout += text
        else:
            told.stderr += text
        told.order.append(f"{channel}:{text}")


def values_of(told: list[dict[str, Any]]) -> list[str]:
    return [message["data"]["text/plain"] for message in told if message["event"] == "display"]


def text_of(told: list[dict[str, Any]], channel: int | None = None) -> str:
    return b"".join(m["data"] for m in told if m["event"] == "output" and channel in {None, m["channel"]}).decode()


def errors_of(told: list[dict[str, Any]]) -> list[str]:
    return [message["name"] for message in told if message["event"] == "error"]
