"""Starts services from a process that has imported the service already.

The imports take two thirds of a service's start (1.5 s of processor time), and the tests start some hundreds of services. A *preloader*, one
for each pytest process, imports the service once and forks. The forked process then does what ``python -m sandlot.server`` does: it has a
session, an environment and standard streams of its own, no other descriptor, and runs the same module. What differs is the command line and
the initial environment that ``/proc`` shows; tests that look at these start the service with :func:`subprocess.Popen`.

Run as a script, this file is the preloader.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REQUEST_BYTES = 1 << 18
"""Largest request: an environment and a command line."""
WAIT_INTERVAL_S = 0.02


class PreloadedProcess:
    """A process that the preloader forked, with the methods of ``subprocess.Popen`` that tests use.

    Args:
        preloader: The preloader.
        pid: Pid of the process.
        number: Number of the process among those of the preloader. Later processes can have the same pid.
    """

    def __init__(self, preloader: Preloader, pid: int, number: int) -> None:
        self._preloader = preloader
        self._number = number
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None if the process runs."""
        if self.returncode is None:
            self.returncode = self._preloader.status(self._number)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit status.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(["sandlot.server"], timeout or 0)
            time.sleep(WAIT_INTERVAL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


class Preloader:
    """The preloader of this process, as seen by the tests."""

    def __init__(self) -> None:
        self._socket, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._started = 0
        self._statuses: dict[int, int] = {}
        with child:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(child.fileno())], pass_fds=(child.fileno(),), stdin=subprocess.DEVNULL, cwd="/"
            )

    def start(self, program: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> PreloadedProcess:
        """Start a service.

        Args:
            program: The module that is the service.
            argv: Its arguments.
            env: Its environment.
            log: File to which its output is appended.
        """
        with self._lock:
            self._started += 1
            number = self._started
            request = {"number": number, "program": program, "argv": list(argv), "env": dict(env), "log": str(log)}
            self._socket.sendall(json.dumps(request).encode())
            while "pid" not in (message := json.loads(self._socket.recv(4096))):
                self._statuses[message["ended"]] = message["status"]
        return PreloadedProcess(self, message["pid"], number)

    def status(self, number: int) -> int | None:
        """Return the exit status of a process; None if it runs."""
        with self._lock:
            while number not in self._statuses:
                try:
                    message = json.loads(self._socket.recv(4096, socket.MSG_DONTWAIT))
                except BlockingIOError:
                    return None
                self._statuses[message["ended"]] = message["status"]
            return self._statuses[number]

    def close(self) -> None:
        """End the preloader; services go on."""
        self._socket.close()
        self._process.wait()


_preloaders: dict[int, Preloader] = {}


def start_service(program: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> PreloadedProcess | subprocess.Popen[bytes]:
    """Start a service from the preloader of this process. While coverage is measured, start a new interpreter, which measures itself.

    Args:
        program: The module that is the service.
        argv: Its arguments.
        env: Its environment.
        log: File to which its output is appended.
    """
    if "COVERAGE_FILE" in os.environ:
        return start_interpreter(program, argv, env, log)
    if os.getpid() not in _preloaders:
        _preloaders[os.getpid()] = made = Preloader()
        atexit.register(made.close)
    return _preloaders[os.getpid()].start(program, argv, env, log)


def start_interpreter(program: str, argv: Sequence[str], env: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program in an interpreter of its own.

    Args:
        program: A module.
        argv: Its arguments.
        env: Its environment.
        log: File to which its output is appended.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", program, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(env),
            start_new_session=True,
            cwd="/",
        )


def _preload(connection: socket.socket) -> None:
    """Fork a process for each request, until the tests close the connection."""
    gc.disable()  # as the service does while it imports
    import sandlot.server.process  # noqa: F401, PLC0415 - this is the work

    assert threading.active_count() == 1, "a fork copies only the thread that calls it"
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.signal(signal.SIGCHLD, lambda *_: None), signal.set_wakeup_fd(wake_write)
    running: dict[int, int] = {}  # pid -> number
    while True:
        readable = _wait_readable(connection, wake_read)
        if wake_read in readable:
            os.read(wake_read, 4096)
        _report_ended(connection, running)
        if connection.fileno() not in readable:
            continue
        request = json.loads(connection.recv(REQUEST_BYTES) or b"null")
        if request is None:
            return
        pid = os.fork()
        if pid:
            running[pid] = request["number"]
            connection.sendall(json.dumps({"pid": pid}).encode())
            continue
        signal.set_wakeup_fd(before[1])
        signal.signal(signal.SIGCHLD, before[0])
        _become(request, connection, wake_read, wake_write)
        runpy.run_module(request["program"], run_name="__main__", alter_sys=True)
        return


def _wait_readable(connection: socket.socket, wake: int) -> list[int]:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(wake, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll()]


def _report_ended(connection: socket.socket, running: dict[int, int]) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        connection.sendall(json.dumps({"ended": running.pop(pid), "status": os.waitstatus_to_exitcode(status)}).encode())


def _become(request: Mapping[str, Any], connection: socket.socket, *descriptors: int) -> None:
    """Turn a forked process into what an interpreter that was started for the request would be."""
    os.setsid()
    connection.close()
    for descriptor in descriptors:
        os.close(descriptor)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path.extend(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    sys.argv = [request["program"], *request["argv"]]
    os.chdir("/")


if __name__ == "__main__":
    _preload(socket.socket(fileno=int(sys.argv[1])))
