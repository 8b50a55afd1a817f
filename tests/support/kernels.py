"""The python kernel's program on this machine's python, driven over a socket pair as the guest drives it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from sandlot.guest.kernels.kernel import HEAD
from sandlot.link import payload
from sandlot.protocol import values

PATIENCE_S = 60


def ship(folder: Path) -> Path:
    """The programs as they lie in a sandbox."""
    for name, text in payload.programs().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder / "kernel.py"


class Peer:
    """One end of a socket that carries the kernel's messages."""

    def __init__(self, ours: socket.socket) -> None:
        self.ours = ours
        self.ours.settimeout(PATIENCE_S)

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        raw = values.encode(message)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
        if rights:
            assert self.ours.sendmsg([HEAD.pack(len(raw)) + raw], rights) == HEAD.size + len(raw)
        else:
            self.ours.sendall(HEAD.pack(len(raw)) + raw)

    def receive(self) -> dict[str, Any]:
        (size,) = HEAD.unpack(self._exactly(HEAD.size))
        message: dict[str, Any] = values.decode(self._exactly(size))
        return message

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
    """A kernel that was started by itself. What it and its children write to descriptors 1 and 2 is read at its end."""

    def __init__(
        self, folder: Path, *flags: str, env: dict[str, str] | None = None, program: Path | None = None, python: str = sys.executable
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            argv = [python, "-W", "error", str(program or ship(folder)), *flags, str(theirs.fileno())]
            self.process = subprocess.Popen(
                argv,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "HOME": str(folder), **(env or {})},
                start_new_session=True,
            )
        super().__init__(ours, self.process.pid)

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


def values_of(told: list[dict[str, Any]]) -> list[str]:
    return [message["data"]["text/plain"] for message in told if message["event"] == "display"]


def text_of(told: list[dict[str, Any]], channel: int | None = None) -> str:
    return b"".join(m["data"] for m in told if m["event"] == "output" and channel in {None, m["channel"]}).decode()


def errors_of(told: list[dict[str, Any]]) -> list[str]:
    return [message["name"] for message in told if message["event"] == "error"]
