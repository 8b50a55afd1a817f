"""Kernel programs as processes of this machine, driven over a socket as by the guest.

:class:`Process` is the Python kernel on the Python of this machine. :class:`Piped` is a kernel of any language, with its output pipes.
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
"""Seconds until the guest repeats an interrupt."""


def ship(folder: Path) -> Path:
    """Write the kernel programs into a folder as in a sandbox, and return the path of the Python kernel."""
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
        """True to confirm ``sync`` messages, as the guest does."""

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
    """The guest's end of a kernel with the given pid."""

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
        outcome = []
        while True:
            outcome.append(self.receive())
            if (outcome[-1]["event"], outcome[-1].get("cell")) == (event, cell):
                return outcome

    def until_event(self, event: str) -> list[dict[str, Any]]:
        outcome = [self.receive()]
        while outcome[-1]["event"] != event:
            outcome.append(self.receive())
        return outcome

    def run(self, code: str, *, env: dict[str, str] | None = None, silent: bool = False, stored: bool = True) -> list[dict[str, Any]]:
        """Run a cell, and return its messages between start and end."""
        outcome = self.until(self.begin(code, env=env, silent=silent, stored=stored))
        assert outcome[-1]["ok"] == all(message["event"] != "error" for message in outcome), outcome
        return [message for message in outcome if message["event"] not in {"started", "done"}]

    def interrupt(self, code: str, ready: str = "print('started', flush=True)\n") -> list[dict[str, Any]]:
        """Interrupt a cell when its own code runs, and return the later messages."""
        cell = self.begin(ready + code)
        self.until(cell, "output")
        time.sleep(0.2)  # so that the code is running; an earlier interrupt has the same effect
        os.kill(self.pid, signal.SIGINT)
        return self.until(cell)

    def value(self, code: str) -> str:
        return values_of(self.run(code))[-1]

    def text(self, code: str) -> str:
        return text_of(self.run(code))


class Process(Kernel):
    """A Python kernel that is started directly. Its output on descriptors 1 and 2 is read at its end.

    Args:
        folder: Working directory.
        flags: Options of the program.
        env: Additional variables of the environment.
        program: Path of the program; by default, it is written into the folder.
        python: Path of the Python interpreter.
        flush_after_s: Seconds from the start of a cell to a flush request; 0 for none. None to start the kernel without a flush pipe.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        env: dict[str, str] | None = None,
        program: Path | None = None,
        python: str = sys.executable,
        flush_after_s: float | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._flush_after_s = flush_after_s
        flush_fd, self._flush_fd = os.pipe()
        with theirs, open(flush_fd, "rb"):  # noqa: PTH123 - a descriptor
            given = [theirs.fileno(), *([] if flush_after_s is None else [flush_fd])]
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
        if self._flush_after_s:
            threading.Timer(self._flush_after_s, self.request_flush).start()
        return cell

    def request_flush(self) -> None:
        """Request a flush, as the guest does for a long cell."""
        with suppress(OSError):
            os.write(self._flush_fd, b"\0")

    def stop(self) -> bytes:
        """End the kernel as the guest does, and return its output on the descriptors."""
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
class CellOutcome:
    """The output and the messages of a cell."""

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
    """A kernel program of any language, started as by the guest: in its own session, with two pipes and a socket.

    Args:
        argv: Command, to which the descriptor of the socket is appended.
        cwd: Working directory.
        env: Additional variables of the environment.
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
        self._outcomes: dict[str, CellOutcome] = {}
        self._last = ""
        self._number = 0
        assert self.receive() == {"event": "ready"}
        self.send({"op": "wake", "entropy": bytes(32), "env": dict(env or {}), "cwd": str(cwd)})

    def begin(self, code: str, env: Mapping[str, str] | None = None, **more: bool) -> str:
        """Send a cell, and return its id."""
        self._number += 1
        cell = self._last = f"cell-{self._number}"
        self._outcomes[cell] = CellOutcome()
        self.send({"op": "execute", "cell": cell, "code": code, "env": dict(env or {}), "silent": False, "store_history": True, **more})
        return cell

    def finish(self, cell: str) -> CellOutcome:
        """Wait for the end of a cell."""
        return self.until(cell, lambda outcome: bool(outcome.messages) and outcome.messages[-1]["event"] == "done")

    def run(self, code: str, env: Mapping[str, str] | None = None, **more: bool) -> CellOutcome:
        """Run a cell, and return its outcome."""
        return self.finish(self.begin(code, env, **more))

    def outcome(self, cell: str) -> CellOutcome:
        """Return the outcome of a cell so far."""
        return self._outcomes[cell]

    def until(self, cell: str, is_there: Callable[[CellOutcome], bool]) -> CellOutcome:
        """Receive messages and output until a condition holds for the outcome of a cell."""
        deadline = time.monotonic() + PATIENCE_S
        while not is_there(self._outcomes[cell]):
            self._receive_once(deadline)
        return self._outcomes[cell]

    def interrupt(self) -> None:
        """Interrupt the last cell as the guest does: a message, for kernels that do not handle signals while busy, and SIGINT to the group."""
        self.send({"op": "interrupt", "cell": self._last})
        os.killpg(self.process.pid, signal.SIGINT)

    def stop(self, cell: str) -> CellOutcome:
        """Interrupt a cell as the guest does, once a second until it ends."""
        again_monotonic_s = 0.0

        def is_over(outcome: CellOutcome) -> bool:
            nonlocal again_monotonic_s
            if outcome.order[-1:] == ["done"]:
                return True
            if time.monotonic() > again_monotonic_s:
                self.interrupt()
                again_monotonic_s = time.monotonic() + AGAIN_S
            return False

        return self.until(cell, is_over)

    def close(self) -> int:
        """Close the socket, as if the guest had ended, and return the exit status of the kernel."""
        self.ours.close()
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in self._pipes:
                os.close(pipe)
            self._pipes = {}

    def _receive_once(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        assert left > 0, f"no further message arrived: {self._outcomes}"
        ready, _, _ = select.select([self.ours.fileno(), *self._pipes], [], [], min(left, AGAIN_S))
        # As in the guest: the content of the pipes was written before the present message.
        self._drain()
        if self.ours.fileno() in ready:
            message = self.receive()
            self._drain()
            outcome = self._outcomes[message.get("cell") or self._last]
            if message["event"] == "output":
                self._add(outcome, message["channel"], message["data"])
            else:
                outcome.order.append(message["event"])
                outcome.messages.append(message)

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
                    self._add(self._outcomes[self._last], channel, data)

    @staticmethod
    def _add(outcome: CellOutcome, channel: int, data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        if channel == 1:
            outcome.stdout += text
        else:
            outcome.stderr += text
        outcome.order.append(f"{channel}:{text}")


def values_of(outcome: list[dict[str, Any]]) -> list[str]:
    return [message["data"]["text/plain"] for message in outcome if message["event"] == "display"]


def text_of(outcome: list[dict[str, Any]], channel: int | None = None) -> str:
    return b"".join(m["data"] for m in outcome if m["event"] == "output" and channel in {None, m["channel"]}).decode()


def errors_of(outcome: list[dict[str, Any]]) -> list[str]:
    return [message["name"] for message in outcome if message["event"] == "error"]
