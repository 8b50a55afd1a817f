"""A kernel program at the end of its wire, started as the guest starts it: its own session, two pipes, a socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandlot.guest.kernels.kernel import HEAD
from sandlot.link import payload
from sandlot.protocol import values

WAIT_S = 60.0
AGAIN_S = 1.0
"""When the guest says an interrupt again."""


def install(folder: Path) -> None:
    """Put the programs into a folder, as they lie in a sandbox."""
    for name, text in payload.programs().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)


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


class Kernel:
    """One running kernel program.

    Args:
        argv: How it is started; the socket's number comes behind it.
        cwd: Where.
        env: Added to the environment.
    """

    def __init__(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = socket.socketpair()
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
        self._buffer = b""
        self._number = 0
        assert self._receive(WAIT_S) == {"event": "ready"}
        self.send({"op": "wake", "entropy": bytes(32), "env": dict(env or {}), "cwd": str(cwd)})

    def send(self, message: Mapping[str, Any]) -> None:
        raw = values.encode(dict(message))
        self._ours.sendall(HEAD.pack(len(raw)) + raw)

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
        deadline = time.monotonic() + WAIT_S
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
        self._ours.close()
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.process.kill()
            self.process.wait()
            for pipe in self._pipes:
                os.close(pipe)
            self._pipes = {}

    def _hear(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        assert left > 0, f"nothing more came: {self._told}"
        ready, _, _ = select.select([self._ours.fileno(), *self._pipes], [], [], min(left, AGAIN_S))
        # The guest's order: what is in the pipes was written before the message that is there now.
        self._drain()
        if self._ours.fileno() in ready:
            message = self._receive(left)
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

    def _receive(self, left: float) -> dict[str, Any]:
        self._ours.settimeout(left)
        (size,) = HEAD.unpack(self._exactly(HEAD.size))
        message: dict[str, Any] = values.decode(self._exactly(size))
        return message

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            part = self._ours.recv(size - len(self._buffer))
            assert part, f"the kernel is gone: {self._told}"
            self._buffer += part
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data
