"""What is asked for: limits, sandboxes, shapes, processes, cells. Frozen; checked at construction.

Numbers are those of DESIGN.md's table of defaults. A request that a field's bounds refuse raises
:class:`~sandlot.model.errors.InvalidRequestError` and nothing was done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from sandlot.model.errors import ErrorCode, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.ids import CONTEXT_ID, SandboxId, SnapshotId

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DEFAULT_TEMPLATE = "code-interpreter"
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_COMMAND_TIMEOUT_S = 60.0
DEFAULT_INSTALL_TIMEOUT_S = 300.0
MAX_TIMEOUT_S = 7 * 24 * 3600.0
WORKSPACE = "/workspace"

MAX_CODE_BYTES = 4 * MIB
"""Code of one cell; more belongs in a file."""
MAX_ENV_BYTES = 128 * KIB
"""Names and values of an environment together (Linux itself ends one string at 128 KiB: MAX_ARG_STRLEN, execve(2))."""
MAX_ARGV_BYTES = 1 * MIB
MAX_ARG_BYTES = 128 * KIB - 1
"""One argument or environment string: Linux's MAX_ARG_STRLEN, execve(2)."""
SCREEN_MOST = 65535
MAX_TAG_BYTES = 256
MAX_ARGS = 16384
MAX_ENV_VARIABLES = 4096
"""Linux bounds bytes only; these keep one start within what one message to the guest may hold (``protocol.values``)."""
MAX_PATH_BYTES = 4095
"""PATH_MAX less its NUL, path_resolution(7)."""


class User(StrEnum):
    """Who a process runs as inside the sandbox."""

    USER = "user"
    ROOT = "root"


class Network(StrEnum):
    """What a sandbox may reach. Others are refused until they are enforced.

    Neither has an interface besides an own loopback: package indexes are reached over a stream of the link.
    """

    PACKAGES = "packages"
    """The package indexes of this host, to read."""
    NONE = "none"
    """Nothing; the package indexes only while ``install`` of a key that may runs."""


DEFAULT_NETWORK = Network.PACKAGES


class OnTimeout(StrEnum):
    """What becomes of a sandbox whose timeout passes."""

    KILL = "kill"
    PAUSE = "pause"
    """It is frozen where it is, and keeps its memory."""
    HIBERNATE = "hibernate"
    """It is written to the disk, and gives its memory back."""


class SnapshotKind(StrEnum):
    """What a snapshot holds."""

    MEMORY = "memory"
    """Memory and files: what is started from it goes on in the middle of everything."""
    FILES = "files"
    """Files alone: what is started from it boots."""


PIDS_LEAST, PIDS_MOST = 16, 32768
"""Of :attr:`Limits.pids`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use.

    Args:
        cpus: Cores, 0.05 to 64; fractions are a share of one core's time.
        memory_bytes: Memory of the whole sandbox, its runtime's own included, 64 MiB at least.
        disk_bytes: What may be written on top of the image, 16 MiB at least.
        pids: Processes and threads, 16 at least.
    """

    cpus: float = 1.0
    memory_bytes: int = 1 * GIB
    disk_bytes: int = 5 * GIB
    pids: int = 512

    def __post_init__(self) -> None:
        """Refuse what no sandbox could run with."""
        _bounded("cpus", self.cpus, 0.05, 64)
        _bounded("memory_bytes", self.memory_bytes, 64 * MIB, 1024 * GIB)
        _bounded("disk_bytes", self.disk_bytes, 16 * MIB, 16 * 1024 * GIB)
        _bounded("pids", self.pids, PIDS_LEAST, PIDS_MOST)


MOST_MOUNTS = 8
"""Volumes of one sandbox."""
_KEPT_PATHS = ("/.sandlot", "/proc", "/sys", "/dev")
"""What a sandbox itself lies on; nothing is put there, or below."""


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume in a sandbox.

    Args:
        volume: Its name or its id.
        path: The folder that it is; absolute, made where it is not there.
        read_only: Whether nothing can be written to it.
        slot: Which of the sandbox's places for volumes it has, as long as it is attached; None where that is not settled.
        asked: What it was asked for as; empty is its id.
        moving: Whether it is being attached or detached.
    """

    volume: str
    path: str
    read_only: bool = False
    slot: int | None = None
    asked: str = ""
    moving: bool = False

    def __post_init__(self) -> None:
        """Refuse a path where nothing can be put."""
        raw = check_text("volumes", self.path)
        parts = self.path.split("/")
        if parts[0] or not parts[1:] or any(part in {"", ".", ".."} for part in parts[1:]) or len(raw) > MAX_PATH_BYTES or "\0" in self.path:
            raise InvalidRequestError(
                f"A volume cannot be put at {self.path[:64]!r}.",
                hint="Give an absolute path below '/', without '.', '..' and empty parts, for example /data.",
                fields={"field": "volumes", "path": self.path[:256]},
            )
        if f"/{parts[1]}" in _KEPT_PATHS:
            raise InvalidRequestError(
                f"A volume cannot be put at {self.path[:64]!r}: /{parts[1]} is the sandbox's own.",
                hint="Choose another path, for example /data.",
                fields={"field": "volumes", "path": self.path[:256]},
            )


def placed(mounts: Sequence[VolumeMount]) -> tuple[VolumeMount, ...]:
    """Return mounts that each have a slot of their own. Pure.

    A mount that has a slot keeps it, because the memory of a sandbox depends on the slots of its volumes.
    """
    taken = {mount.slot for mount in mounts}
    free = iter(slot for slot in range(len(mounts) + len(taken)) if slot not in taken)
    return tuple(mount if mount.slot is not None else replace(mount, slot=next(free)) for mount in mounts)


def slots(mounts: Sequence[VolumeMount]) -> Iterator[tuple[int, VolumeMount]]:
    """Yield each mount with its slot."""
    yield from ((mount.slot or 0, mount) for mount in placed(mounts))


def check_mounts(mounts: Sequence[VolumeMount]) -> None:
    """Refuse too many volumes for one sandbox, or two of them in one place.

    Raises:
        InvalidRequestError: So they are.
    """
    if len(mounts) > MOST_MOUNTS:
        raise InvalidRequestError(f"{len(mounts)} volumes are too many; a sandbox has at most {MOST_MOUNTS}.", fields={"field": "volumes"})
    for place, mount in enumerate(mounts):
        for other in mounts[:place]:
            if f"{mount.path}/".startswith(f"{other.path}/") or f"{other.path}/".startswith(f"{mount.path}/"):
                raise InvalidRequestError(
                    f"Two volumes cannot be at {other.path[:64]!r} and {mount.path[:64]!r}.",
                    hint="Give each a folder of its own that is not in another one's.",
                    fields={"field": "volumes", "path": mount.path[:256]},
                )


@dataclass(frozen=True, slots=True)
class RootFs:
    """A root file system, read-only and shared: never written by anyone.

    Args:
        path: The folder on the host, complete with ``/.sandlot``.
        digest: SHA-256 in hexadecimal of what it was made from; two roots of one digest are the same.
    """

    path: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Shape:
    """All that must be known to prepare a blank sandbox, before it is anyone's."""

    root: RootFs
    limits: Limits = field(default_factory=Limits)
    network: Network = DEFAULT_NETWORK


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One sandbox as it was asked for.

    Args:
        id: Its id.
        template: The template's name, as asked for.
        env: Environment of every process in it.
        metadata: The owner's own words, kept and given back.
        limits: What it may use.
        timeout_s: Seconds until it is ended, up to 7 days; None is never: it is persistent.
        network: What it may reach.
        isolation: The driver's name.
        on_timeout: What becomes of it when its timeout passes.
        auto_resume: Whether a request to it resumes it by itself while it is paused or hibernated.
        snapshot: Id of the snapshot that it was started from; None is none.
        parent: Whose fork it is; None is nobody's.
        root: Digest of the root file system that it was started from; empty until that is known.
        restored: What it went on from: ``memory`` of a snapshot or a fork, ``files`` of a snapshot; empty is neither.
        volumes: Its volumes, by their ids.
    """

    id: SandboxId
    template: str = DEFAULT_TEMPLATE
    env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    network: Network = DEFAULT_NETWORK
    isolation: str = "gvisor"
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_resume: bool = True
    snapshot: SnapshotId | None = None
    parent: SandboxId | None = None
    root: str = ""
    restored: str = ""
    volumes: tuple[VolumeMount, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an environment or a timeout that cannot be honoured."""
        check_env(self.env)
        check_mounts(self.volumes)
        if self.timeout_s is not None:
            _bounded("timeout", self.timeout_s, 1, MAX_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to start in a sandbox.

    Args:
        argv: Program and arguments, at least one.
        env: Added to the sandbox's environment.
        cwd: Absolute folder inside the sandbox; None is ``/workspace``.
        user: Who it runs as.
        stdin: Whether its standard input stays open for the client; otherwise it reads ``/dev/null``.
        timeout_s: Seconds until its whole process group is killed; None is never.
        rows: With ``cols`` it runs on a terminal of that size, 1 to 65,535 each: all output is standard output, and there is always input.
        cols: The same.
        hidden: One of the service's own, which no list tells of.
        tag: A word of the client's own by which it finds the process in the list.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: User = User.USER
    stdin: bool = False
    timeout_s: float | None = DEFAULT_COMMAND_TIMEOUT_S
    rows: int | None = None
    cols: int | None = None
    hidden: bool = False
    tag: str | None = None

    @property
    def pty(self) -> bool:
        """Whether it runs on a terminal."""
        return self.rows is not None

    def __post_init__(self) -> None:
        """Refuse what execve(2) could not take."""
        if not self.argv or not self.argv[0]:
            raise InvalidRequestError("The command is empty.", hint="Give a program to run.")
        if len(self.argv) > MAX_ARGS:
            raise InvalidRequestError(
                f"The command has {len(self.argv)} arguments; at most {MAX_ARGS} are allowed.", hint="Use a file or standard input, as xargs does."
            )
        total = 0
        for argument in self.argv:
            size = len(check_text("command", argument))
            if size > MAX_ARG_BYTES:
                raise InvalidRequestError(
                    f"One argument of the command has {size} bytes; at most {MAX_ARG_BYTES} are allowed.",
                    hint="Write it to a file in the sandbox and pass the file's path.",
                )
            total += size
        if total > MAX_ARGV_BYTES:
            raise InvalidRequestError(f"The command has {total} bytes; at most {MAX_ARGV_BYTES} are allowed.", hint="Use a file or standard input.")
        check_env(self.env)
        if self.cwd is not None:
            check_path(self.cwd)
        if self.timeout_s is not None:
            _bounded("timeout", self.timeout_s, 0.001, MAX_TIMEOUT_S)
        if self.rows is not None or self.cols is not None:
            check_screen(self.rows, self.cols)
        if self.tag is not None and not 1 <= len(check_text("tag", self.tag)) <= MAX_TAG_BYTES:
            raise InvalidRequestError(f"A process's tag has 1 to {MAX_TAG_BYTES} bytes.", fields={"field": "tag"})


CONTEXT_LANGUAGES: Final[Mapping[str, str]] = {
    "python": "python",
    "python3": "python",
    "py": "python",
    "bash": "bash",
    "sh": "bash",
    "javascript": "javascript",
    "js": "javascript",
    "node": "javascript",
}
"""Accepted name of a language -> language of a context."""

DEFAULT_CONTEXTS: Final[Mapping[str, str]] = {"python": "default", "bash": "bash", "javascript": "javascript"}
"""Language -> id of its default context."""


@dataclass(frozen=True, slots=True)
class CellSpec:
    """Code to run in a context.

    Args:
        code: Source code, at most 4 MiB.
        language: A key of ``CONTEXT_LANGUAGES``, kept as its value; None is the language of the context, or Python.
        env: Variables set for this cell only.
        timeout_s: Seconds from the start of the cell until it is interrupted; None sets no timeout.
        context: Id of the context; None is the default context of the language.
        silent: Show no result of the last expression, and do not count the cell.
        store_history: Count the cell.
        stop_on_error: Abort the waiting cells of the context if this cell fails.
    """

    code: str
    language: str | None = "python"
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = DEFAULT_COMMAND_TIMEOUT_S
    context: str | None = None
    silent: bool = False
    store_history: bool = True
    stop_on_error: bool = False

    @property
    def context_id(self) -> str:
        """Id of the context that runs the cell."""
        return self.context or DEFAULT_CONTEXTS[self.language or "python"]

    def __post_init__(self) -> None:
        """Refuse a cell that no context can run."""
        if self.language is not None:
            object.__setattr__(self, "language", context_language(self.language))
        if self.context is not None:
            check_context_id(self.context)
        if "\0" in self.code:
            raise InvalidRequestError(
                "The code contains a NUL character, which is not allowed in source code.",
                hint="Write '\\0' as an escape, or upload binary content as a file and read it in the code.",
                fields={"field": "code"},
            )
        size = len(check_text("code", self.code))
        if size > MAX_CODE_BYTES:
            raise LimitError(
                f"The code has {size} bytes; at most {MAX_CODE_BYTES} are allowed.",
                code=ErrorCode.TOO_LARGE,
                hint="Upload the code or its data as a file, and run or read the file.",
                fields={"field": "code", "bytes": size, "max_bytes": MAX_CODE_BYTES},
            )
        check_env(self.env)
        if self.timeout_s is not None and not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise InvalidRequestError(
                f"`timeout` is {self.timeout_s:g}; it must be more than 0 and at most {MAX_TIMEOUT_S:g}.", fields={"field": "timeout"}
            )


def context_language(name: str) -> str:
    """Return the language of the contexts that run code in a language of this name.

    Raises:
        InvalidRequestError: No context runs this language.
    """
    language = CONTEXT_LANGUAGES.get(name)
    if language is None:
        raise InvalidRequestError(
            f"Code in {name[:50]!r} cannot be run as a cell.",
            hint=f"Use one of: {', '.join(CONTEXT_LANGUAGES)}. Run other languages as a command, from a file.",
            fields={"field": "language"},
        )
    return language


def check_context_id(id_: str) -> str:
    """Return an id after checking that a context can have the id.

    Raises:
        NotFoundError: ``context_not_found``: no context can have the id.
    """
    if id_ not in DEFAULT_CONTEXTS.values() and not CONTEXT_ID.fullmatch(id_):
        raise context_not_found(id_)
    return id_


def context_not_found(id_: str) -> NotFoundError:
    """Return the error of calls that name a missing context."""
    return NotFoundError(
        f"There is no context {id_[:64]!r}.",
        code=ErrorCode.CONTEXT_NOT_FOUND,
        hint="List the contexts, or create one: this one may have been deleted.",
        fields={"context": id_[:64]},
    )


def check_screen(rows: int | None, cols: int | None) -> None:
    """A terminal's size.

    Raises:
        InvalidRequestError: Half of one, or none that a terminal can have (TIOCSWINSZ(2const)).
    """
    if rows is None or cols is None:
        raise InvalidRequestError("A terminal has rows and columns.", hint="Give both of 'rows' and 'cols', or neither.")
    _bounded("rows", rows, 1, SCREEN_MOST)
    _bounded("cols", cols, 1, SCREEN_MOST)


def shell_argv(command: str) -> tuple[str, ...]:
    """The argument vector that runs a shell command line. The guest takes sh where the image has no bash.

    No login shell: ``bash -l`` costs 70-90 ms in gVisor against 15 (measured).
    """
    check_text("command", command)
    if not command.strip():
        raise InvalidRequestError("The command is empty.", hint="Give a command line to run.")
    return ("/bin/bash", "-c", command)


def check_text(what: str, text: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> bytes:
    """UTF-8 bytes of a text that goes to execve or open: no NUL, no lone surrogate.

    Args:
        what: What it is, for a message.
        text: It.
        code: What it counts as where it is bad.

    Raises:
        InvalidRequestError: It has a NUL or cannot be encoded.
    """
    if "\0" in text:
        raise InvalidRequestError(
            f"The {what} contains a NUL character, which Linux cannot pass.", code=code, hint="Remove it, or pass the bytes in a file."
        )
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"The {what} is not valid Unicode text.", code=code, hint="Pass binary content in a file.") from None


def check_path(path: str) -> str:
    """A path inside a sandbox: absolute, no NUL, at most 4,095 bytes. ``..`` and links are the guest kernel's business.

    Raises:
        InvalidRequestError: It is none of that.
    """
    size = len(check_text("path", path, ErrorCode.PATH_INVALID))
    if not path.startswith("/"):
        raise InvalidRequestError(
            f"The path {path[:200]!r} is not absolute.", code=ErrorCode.PATH_INVALID, hint="Start it with '/', for example /workspace/data.csv."
        )
    if size > MAX_PATH_BYTES:
        raise InvalidRequestError(
            f"The path has {size} bytes; at most {MAX_PATH_BYTES} are allowed.",
            code=ErrorCode.PATH_INVALID,
            hint="Shorten it, or change into a folder on the way by a command.",
        )
    return path


def check_env(env: Mapping[str, str]) -> None:
    """An environment that execve(2) takes: names without '=', no NUL, within size.

    Raises:
        InvalidRequestError: It is not.
    """
    if len(env) > MAX_ENV_VARIABLES:
        raise InvalidRequestError(
            f"The environment has {len(env)} variables; at most {MAX_ENV_VARIABLES} are allowed.",
            hint="Pass many values as one file.",
            fields={"variables": len(env)},
        )
    total = 0
    for name, value in env.items():
        if not name or "=" in name:
            raise InvalidRequestError(f"{name!r} is not a name for an environment variable.", hint="Names are not empty and contain no '='.")
        size = len(check_text("environment", name)) + len(check_text(f"environment variable {name}", value)) + 2
        total += size
    if total > MAX_ENV_BYTES:
        raise InvalidRequestError(
            f"The environment has {total} bytes; at most {MAX_ENV_BYTES} are allowed.", hint="Pass large values as files.", fields={"bytes": total}
        )


def _bounded(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # false for NaN as well
        # An integer as it is: 1.09951e+12 is no number of bytes that anybody knows.
        given, least, most = (str(number) if isinstance(number, int) else f"{number:g}" for number in (value, low, high))
        raise InvalidRequestError(f"{name} is {given}; it must be from {least} to {most}.", fields={"field": name})
