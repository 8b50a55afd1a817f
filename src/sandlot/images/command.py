"""Runs the commands of a build and appends their output to a log file. If a command fails, the error names the log file."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from sandlot.host.free_space import FreeSpace
from sandlot.host.service_cgroup import leave_service_cgroup
from sandlot.images.build_stop import BuildStop
from sandlot.model.errors import ErrorCode, HostError, LimitError

_TAIL_LINES = 12
_FULL = os.strerror(errno.ENOSPC)


class CommandRunner:
    """Runs commands one after another and logs their output.

    Args:
        log: Path of the file to which the output is appended.
        space: Free space of the disk to which the commands write. A command is killed when no more than the reserve is free.
        inherit: File descriptors that the commands inherit, such as the lock of the folder that they write to. The folder then stays locked until
            the last process of the commands has ended.
        stop: Kills a running command, and refuses further ones, when the service stops. None: nothing does.
    """

    __slots__ = ("_inherit", "_space", "_stop", "log")

    def __init__(self, log: Path, space: FreeSpace, inherit: Iterable[int] = (), stop: BuildStop | None = None) -> None:
        self.log = log
        self._space = space
        self._stop = stop or BuildStop()
        self._inherit = tuple(inherit)

    def run(
        self,
        what: str,
        argv: tuple[str, ...],
        *,
        env: Mapping[str, str],
        on_line: Callable[[str], object] = lambda _line: None,
    ) -> None:
        """Run a command and wait until it has ended.

        Args:
            what: Description of the command for error messages, such as "installing the Debian packages".
            argv: Program and arguments. The command runs in its own session, without standard input.
            env: The whole environment of the command.
            on_line: Function that is called with each line of the command's output. If this function raises, the command is killed.

        Raises:
            LimitError: The command failed because the disk is full, or was killed because no more than the reserve is free.
            HostError: The program is not installed, or the command failed. The message contains the last lines of the output.
            UnavailableError: The service is stopping.
        """
        self._stop.check()
        tail: deque[str] = deque(maxlen=_TAIL_LINES)
        full = False
        with self.log.open("ab") as log:
            log.write(f"+ {' '.join(argv)}\n".encode())
            log.flush()
            try:
                process = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=self._inherit,
                )
            except FileNotFoundError:
                raise missing_program(argv[0]) from None
            output = process.stdout
            assert output is not None  # noqa: S101 - it is a pipe
            with process:
                # A signal to this process can raise an exception anywhere.
                try:
                    with self._stop.ending(process.kill), self._space.watched(process.kill):
                        # A build uses minutes of CPU time and much memory. It must not have the priority and protection of the service.
                        leave_service_cgroup(process.pid)
                        for raw in output:
                            log.write(raw)
                            line = raw.decode(errors="replace").rstrip()
                            if line:
                                tail.append(line)
                                full = full or _FULL in line
                                on_line(line)
                except BaseException:
                    # read() returns when every process of the command has ended, because each process has the pipe open.
                    process.kill()
                    output.read()
                    raise
        if process.returncode:
            raise self._failed(what, process.returncode, tail, full=full)

    def _failed(self, what: str, status: int, tail: Iterable[str], *, full: bool) -> HostError | LimitError:
        end = "\n".join(f"    {line}" for line in tail)
        fields = {"log": str(self.log), "status": status}
        if full:
            free = shutil.disk_usage(self.log.parent).free
            return LimitError(
                f"The disk is full: {what} failed.\n{end}\n",
                code=ErrorCode.NODE_DISK_FULL,
                hint=f"Free some space (now {free >> 20} MiB), or set SANDLOT_CACHE_DIR to a folder on another disk. The log is {self.log}.",
                fields=fields,
            )
        how = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
        return HostError(f"{what} {how}.\n{end}\n", hint=f"See the log {self.log}.", fields=fields)


def output_of(argv: tuple[str, ...]) -> str:
    """Return the standard output of a short command on the host. Return an empty text if the program is not installed or the command fails."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def require_programs(*programs: str) -> None:
    """Raise an error unless all programs are installed on the host.

    Raises:
        HostError: A program is not installed.
    """
    for program in programs:
        if shutil.which(program) is None:
            raise missing_program(program)


def missing_program(program: str) -> HostError:
    """Return the error for a program that is not installed. Its hint names the Debian package to install."""
    package = {"unshare": "util-linux", "setpriv": "util-linux", "dpkg": "dpkg"}.get(program, program)
    return HostError(f"{program} is not installed.", hint=f"Run `apt-get install {package}`.", fields={"program": program})
