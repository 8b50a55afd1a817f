"""Processes of a sandbox, their output and results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Self

from sandlot.model.errors import ExecutionFailedError
from sandlot.model.faults import Fault
from sandlot.sdk.models.values import short_repr

_MAX_LINE_CHARS = 300
"""Longest part of a line of output in the message of an error."""

Stream = Literal["stdout", "stderr"]


@dataclass(frozen=True, slots=True, repr=False)
class ProcessInfo:
    """A process that was started in a sandbox.

    Args:
        id: Id of the process, for ``commands.connect`` and ``commands.kill``.
        pid: Process id in the sandbox.
        argv: Program and arguments.
        running: True until it ends.
        exit_code: Exit code as in :class:`CommandResult`; None while it runs.
        reason: Reason of its end as in :class:`CommandResult`; None while it runs.
        signal: Signal that ended it.
        fault: Fault class if it failed, as in :class:`CommandResult`.
        duration_s: Seconds that it has run.
        pty: True if it runs on a terminal.
        stdin_open: True if it accepts input.
        stdin_bytes: Bytes of input so far.
        stdout_bytes: Bytes written to standard output so far.
        stderr_bytes: Bytes written to standard error so far.
        tag: Tag that it was started with; None also if an earlier service started it.
        cwd: Working directory at its start; None for the default, or if it is not known any more.
        envs: Environment variables that were added at its start, as far as they are known.
    """

    id: str
    pid: int | None
    argv: tuple[str, ...]
    running: bool
    exit_code: int | None = None
    reason: str | None = None
    signal: int | None = None
    fault: Fault | str | None = None
    duration_s: float = 0.0
    pty: bool = False
    stdin_open: bool = False
    stdin_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    tag: str | None = None
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)

    __repr__ = short_repr("id", "pid", "argv", "running", "exit_code")


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output as it arrived.

    Args:
        stream: ``stdout`` or ``stderr``.
        data: Bytes; a character may be cut at either end.
        lost_bytes: Number of bytes that were dropped before this piece, because no client read them in time.
    """

    stream: Stream
    data: bytes
    lost_bytes: int = 0

    @property
    def text(self) -> str:
        """The bytes as text; incomplete and invalid characters are U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class PrintedUrl:
    """A loopback URL that a program printed, such as ``http://localhost:5173/``, and the preview that opens the same page.

    Args:
        printed: URL as the program printed it.
        port: Port inside the sandbox.
        url: URL of the preview, with a token that is valid for a day unless the port is public.
    """

    printed: str
    port: int
    url: str


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file that a command created or changed.

    Args:
        path: Absolute path in the sandbox.
        created: True if the file did not exist before.
        size_bytes: Size after the command.
        modified_at: Time of the last change of its content.
    """

    path: str
    created: bool
    size_bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True, repr=False)
class CommandResult:
    """Result of a command. A command that failed is a result too; :meth:`check` turns it into an exception.

    Args:
        exit_code: Exit code as in a shell: of the program, 128 + the signal that ended it, or 124 at the timeout.
        stdout: Standard output: the first and the last MiB.
        stderr: Standard error: the first and the last MiB.
        reason: ``exited``, ``signalled``, ``timeout``, ``pids`` (killed for too many processes) or ``oom`` (killed at the memory limit,
            while the sandbox lives on; with isolation ``container`` this is ``signalled``, with signal 9). If no process can be killed in time, the
            sandbox ends, and the call raises SandboxEndedError.
        signal: Signal that ended the program.
        fault: Fault class if the command failed: ``code``, ``request``, ``limit``, ``capacity``, ``platform`` or ``lost``; otherwise None.
        duration_s: Seconds in the sandbox.
        stdout_omitted_bytes: Bytes left out of ``stdout``.
        stderr_omitted_bytes: Bytes left out of ``stderr``.
        id: Id of the process.
        files: Files created or changed in the tracked directories, by path; None if none were tracked.
        files_more: True if the list of files is incomplete.
        urls: Previews of the first 10 loopback URLs in the output; empty if the service has no previews.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    reason: str = "exited"
    signal: int | None = None
    fault: Fault | str | None = None
    duration_s: float = 0.0
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0
    id: str = ""
    files: tuple[ChangedFile, ...] | None = None
    files_more: bool = False
    urls: tuple[PrintedUrl, ...] = ()

    __repr__ = short_repr("exit_code", "stdout", "stderr")

    @property
    def ok(self) -> bool:
        """True if the exit code is 0."""
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        """True if the command was killed at its timeout."""
        return self.reason == "timeout"

    def check(self) -> Self:
        """Return this result.

        Raises:
            ExecutionFailedError: The exit code is not 0. The message has the last line of standard error.
        """
        if not self.ok:
            last = next((line.strip() for line in reversed(self.stderr.splitlines()) if line.strip()), "")
            why = f"{self.reason}: {last[:_MAX_LINE_CHARS]}" if last else self.reason
            raise ExecutionFailedError(f"The command failed with exit code {self.exit_code} ({why}).", result=self)
        return self
