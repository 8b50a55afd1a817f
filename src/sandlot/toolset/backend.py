"""Protocol of the sandbox that the tools work in, and the values that it returns.

:mod:`sandlot.toolset.backends.sdk` and :mod:`sandlot.toolset.backends.node` implement it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from sandlot.model.faults import Fault
from sandlot.model.streams import Stream

MAX_FILES = 1000
"""Largest number of entries that :meth:`ToolBackend.list_files` returns."""

OnOutput: TypeAlias = Callable[[str], object]
"""Called with each piece of standard output and standard error while a program runs."""


@dataclass(frozen=True, slots=True)
class RichResult:
    """A value that code returned or displayed.

    Args:
        data: MIME type -> content; images and other binary types are in base64.
        main: True for the value of the last expression.
    """

    data: Mapping[str, str]
    main: bool = False


@dataclass(frozen=True, slots=True)
class RunResult:
    """Outcome of code, a command or an installation that has ended.

    Args:
        status: ``ok``, ``error``, ``timeout``, ``killed``, ``died``, ``oom``, ``aborted`` or ``lost`` for code; ``exited``, ``signalled``,
            ``timeout``, ``pids`` or ``oom`` for a command.
        exit_code: Exit code as in a shell.
        stdout: Standard output. A line in its middle says how many bytes are left out.
        stderr: Standard error, likewise.
        results: Values that code returned or displayed.
        results_omitted: Number of values left out.
        error: Traceback of the exception that ended code; empty if there was none.
        fault: Fault class of a run that failed.
        duration_s: Seconds in the sandbox.
        id: Id of the run in the execution log.
    """

    status: str
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    results: Sequence[RichResult] = ()
    results_omitted: int = 0
    error: str = ""
    fault: Fault | None = None
    duration_s: float = 0.0
    id: str = ""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """An entry of a directory.

    Args:
        name: Name without the directory.
        kind: ``file``, ``directory``, ``symlink`` or ``other``.
        size_bytes: Size.
        target: Target of a symbolic link.
    """

    name: str
    kind: str
    size_bytes: int = 0
    target: str | None = None


@dataclass(frozen=True, slots=True)
class FileList:
    """Entries of a directory.

    Args:
        files: Entries by name, at most ``MAX_FILES``.
        more: True if there are more.
    """

    files: Sequence[FileInfo] = field(default_factory=tuple)
    more: bool = False


class ToolBackend(Protocol):
    """One sandbox.

    Paths are absolute or relative to the working directory of the sandbox. Each method raises :class:`sandlot.model.errors.SandlotError` if it fails;
    a program that fails is a result. A call that is cancelled ends the program that it has started.
    """

    @property
    def id(self) -> str:
        """Id of the sandbox."""
        ...

    async def run_code(self, code: str, language: str, *, timeout_s: float, on_output: OnOutput | None = None) -> RunResult:
        """Run code in the default context of a language, in which variables persist.

        Args:
            code: Code to run.
            language: ``python``, ``javascript``, ``typescript``, ``bash`` or ``r``.
            timeout_s: Seconds until the code is interrupted.
            on_output: Called with each piece of output.
        """
        ...

    async def run_command(self, command: str, *, cwd: str | None, timeout_s: float, on_output: OnOutput | None = None) -> RunResult:
        """Run a shell command. Arguments as for :meth:`run_code`; ``cwd`` is the directory in which it starts."""
        ...

    async def start_command(self, command: str, *, cwd: str | None) -> int | None:
        """Start a shell command in the background, and return its process number in the sandbox; None if it is not known."""
        ...

    async def install_packages(self, packages: Sequence[str], manager: str, *, on_output: OnOutput | None = None) -> RunResult:
        """Install packages with ``pip``, ``npm`` or ``apt``."""
        ...

    async def read_file(self, path: str) -> Stream[bytes]:
        """Return the content of a file. The caller closes the stream."""
        ...

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file, and missing parent directories."""
        ...

    async def list_files(self, path: str) -> FileList:
        """List a directory."""
        ...

    async def get_url(self, port: int) -> str:
        """Return the URL under which a browser opens a port of the sandbox."""
        ...
