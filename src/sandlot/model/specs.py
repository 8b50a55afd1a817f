"""Value objects for the parts of a request: limits, sandboxes, processes, cells and volumes.

Each object checks its fields when it is created, and raises :class:`~sandlot.model.errors.InvalidRequestError` if a field is out of range. The
defaults are listed in SPECIFICATION.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Final

from sandlot.model.access import LOCAL, OwnerId
from sandlot.model.errors import ErrorCode, InternalError, InvalidRequestError, LimitError, NotFoundError
from sandlot.model.ids import CONTEXT_ID, SandboxId, SnapshotId
from sandlot.model.languages import CONTEXT_LANGUAGES, DEFAULT_CONTEXT_IDS, LANGUAGES_TEMPLATE
from sandlot.model.network import MAX_PORT, NetworkPolicy
from sandlot.model.paths import WORKSPACE

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DEFAULT_TEMPLATE = "code-interpreter"
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_COMMAND_TIMEOUT_S = 60.0
DEFAULT_INSTALL_TIMEOUT_S = 300.0
MAX_TIMEOUT_S = 7 * 24 * 3600.0

MAX_CODE_BYTES = 4 * MIB
"""Largest size in bytes of the code of one cell."""
MAX_ENV_BYTES = 128 * KIB
"""Largest size in bytes of an environment: all names and values together. Linux limits one string to 128 KiB (MAX_ARG_STRLEN, execve(2))."""
MAX_ARGV_BYTES = 2 * MIB
"""Largest size in bytes of a command: all arguments together. Linux's limit for the arguments, the environment and pointers to them is 2 MiB with the
default stack size (execve(2)), so a command just below this limit can be refused inside."""
MAX_ARG_BYTES = 128 * KIB - 1
"""Largest size in bytes of one argument: Linux's MAX_ARG_STRLEN without the final NUL, execve(2)."""
MAX_TERMINAL_SIZE = 65535
"""Largest number of rows and of columns of a terminal (TIOCSWINSZ(2const))."""
MAX_TAG_BYTES = 256
MAX_ARGS = 16384
MAX_ENV_VARIABLES = 4096
"""Largest number of environment variables. Linux limits only their total size. With this limit and ``MAX_ARGS``, a request never has more items than
one message to the guest may have (``MAX_ITEMS`` in :mod:`sandlot.protocol.values`)."""
MAX_REQUEST_HOST_BYTES = 253
"""Largest size in bytes of a masked host: the largest length of a host name (RFC 1035, 2.3.4)."""
PORT_VARIABLE: Final = "${PORT}"
"""Variable in a masked host that stands for the port, as in E2B's API."""
MAX_PATH_BYTES = 4095
"""Largest size in bytes of a path: Linux's PATH_MAX without the final NUL, path_resolution(7)."""


USER_PATTERN: Final = r"[^:/\s]{1,255}(:[^:/\s]{1,255})?"
"""Pattern of a user."""
_USER: Final = re.compile(USER_PATTERN)
_HOST_LABEL: Final = r"(?:[A-Za-z0-9_-]|\$\{PORT\})+"
_REQUEST_HOST: Final = re.compile(rf"{_HOST_LABEL}(?:\.{_HOST_LABEL})*(?::(?:[0-9]{{1,5}}|\$\{{PORT\}}))?")


@dataclass(frozen=True, slots=True)
class User:
    """User that a process runs as inside the sandbox.

    Args:
        value: Login name or uid, to which a colon and a group name or gid can be added. ``user`` is uid 1000 and ``root`` is uid 0, whatever their
            names are in the sandbox. The guest looks up all other users when they are used.
    """

    value: str

    USER: ClassVar[User]
    ROOT: ClassVar[User]

    def __post_init__(self) -> None:
        """Refuse a text that is no user in any sandbox."""
        if not self.value.isprintable() or _USER.fullmatch(self.value) is None:
            raise InvalidRequestError(
                f"{self.value[:100]!r} is not a valid user.",
                hint="Pass a login name of the sandbox or a uid, for example `user`, `www-data`, `1001` or `1001:1001`.",
                fields={"field": "user"},
            )


User.USER, User.ROOT = User("user"), User("root")


class OnTimeout(StrEnum):
    """Action of the service when the timeout of a sandbox passes."""

    KILL = "kill"
    PAUSE = "pause"
    """Freeze the sandbox. It keeps its memory."""
    HIBERNATE = "hibernate"
    """Save the sandbox to disk and free its memory."""
    HIBERNATE_FILES = "hibernate_files"
    """Save only the files of the sandbox to disk and end its processes. The sandbox boots at its next resume."""


class SnapshotKind(StrEnum):
    """Content of a snapshot."""

    MEMORY = "memory"
    """Memory and files: processes continue in a sandbox that is started from the snapshot."""
    FILES = "files"
    """Files only: a sandbox that is started from the snapshot boots."""


CPUS_RANGE = 0.05, 64
"""Smallest and largest value of :attr:`Limits.cpus`."""
MIN_PIDS, MAX_PIDS = 16, 32768
"""Smallest and largest value of :attr:`Limits.pids`."""
MEMORY_RANGE_BYTES = 64 * MIB, 1024 * GIB
"""Smallest and largest value of :attr:`Limits.memory_bytes`."""
DISK_RANGE_BYTES = 16 * MIB, 16 * 1024 * GIB
"""Smallest and largest value of :attr:`Limits.disk_bytes`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one sandbox.

    Args:
        cpus: Cores, 0.05 to 64. A fraction is a share of one core's time.
        memory_bytes: Memory of the whole sandbox including its runtime, 64 MiB to 1 TiB.
        disk_bytes: Bytes that may be written on top of the root file system, 16 MiB to 16 TiB.
        pids: Processes and threads, 16 to 32,768.
    """

    cpus: float = 1.0
    memory_bytes: int = 1 * GIB
    disk_bytes: int = 5 * GIB
    pids: int = 512

    def __post_init__(self) -> None:
        """Refuse limits that are out of range."""
        check_range("cpus", self.cpus, *CPUS_RANGE)
        check_size("memory_bytes", self.memory_bytes, *MEMORY_RANGE_BYTES)
        check_size("disk_bytes", self.disk_bytes, *DISK_RANGE_BYTES)
        check_range("pids", self.pids, MIN_PIDS, MAX_PIDS)

    @property
    def processors(self) -> int:
        """Smallest whole number of processors with the time of ``cpus`` cores."""
        return math.ceil(self.cpus)


MAX_VOLUMES = 8
"""Largest number of volumes of one sandbox."""
_RESERVED_PATHS = ("/.sandlot", "/proc", "/sys", "/dev")
"""Paths that the sandbox itself needs. Volumes cannot be mounted there or below."""


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume that is mounted in a sandbox.

    Args:
        volume: Name or id of the volume.
        path: Absolute path of the mount point, which is created if it does not exist.
        read_only: True if the sandbox cannot write to the volume.
        slot: Number of the volume slot of the sandbox that the volume occupies, counted from 0; None: no slot is assigned yet.
        requested_as: Name or id of the volume in the request. It is set when ``volume`` is replaced by the id, and is empty before.
        changing: True while the volume is being attached or detached.
    """

    volume: str
    path: str
    read_only: bool = False
    slot: int | None = None
    requested_as: str = ""
    changing: bool = False

    def __post_init__(self) -> None:
        """Refuse a path that cannot be a mount point."""
        raw = check_text("volumes", self.path)
        parts = self.path.split("/")
        if parts[0] or not parts[1:] or any(part in {"", ".", ".."} for part in parts[1:]) or len(raw) > MAX_PATH_BYTES or "\0" in self.path:
            raise InvalidRequestError(
                f"A volume cannot be mounted at {self.path[:64]!r}.",
                hint="Pass an absolute path below '/', without '.', '..' and empty parts, for example /data.",
                fields={"field": "volumes", "path": self.path[:256]},
            )
        if f"/{parts[1]}" in _RESERVED_PATHS:
            raise InvalidRequestError(
                f"A volume cannot be mounted at {self.path[:64]!r}: /{parts[1]} is reserved.",
                hint="Pass another path, for example /data.",
                fields={"field": "volumes", "path": self.path[:256]},
            )


def placed(mounts: Sequence[VolumeMount]) -> tuple[VolumeMount, ...]:
    """Return the mounts, each with a volume slot: a mount without a slot gets a free slot. Pure.

    A mount that has a slot keeps this slot, because the saved memory of a sandbox depends on the slots of its volumes.
    """
    taken = {mount.slot for mount in mounts}
    free = iter(slot for slot in range(len(mounts) + len(taken)) if slot not in taken)
    return tuple(mount if mount.slot is not None else replace(mount, slot=next(free)) for mount in mounts)


def slots(mounts: Sequence[VolumeMount]) -> Iterator[tuple[int, VolumeMount]]:
    """Yield each mount with the number of its volume slot. A mount without a slot gets a free slot."""
    yield from ((mount.slot or 0, mount) for mount in placed(mounts))


def check_mounts(mounts: Sequence[VolumeMount]) -> None:
    """Refuse too many volumes, and volumes that are mounted at the same path or inside of each other.

    Raises:
        InvalidRequestError: There are more than ``MAX_VOLUMES`` volumes, or a path is equal to or below the path of another volume.
    """
    if len(mounts) > MAX_VOLUMES:
        raise InvalidRequestError(
            f"The sandbox has {len(mounts)} volumes; at most {MAX_VOLUMES} are allowed.",
            hint="Mount fewer volumes.",
            fields={"field": "volumes"},
        )
    for number, mount in enumerate(mounts):
        for other in mounts[:number]:
            if f"{mount.path}/".startswith(f"{other.path}/") or f"{other.path}/".startswith(f"{mount.path}/"):
                raise InvalidRequestError(
                    f"Two volumes cannot be mounted at {other.path[:64]!r} and {mount.path[:64]!r}: one path is equal to or inside of the other.",
                    hint="Mount each volume outside of the paths of the other volumes.",
                    fields={"field": "volumes", "path": mount.path[:256]},
                )


@dataclass(frozen=True, slots=True)
class TemplateRef:
    """A template, or one build of a template.

    Args:
        owner: Owner of the template; ``LOCAL`` for a built-in template.
        name: Name of the template. Names of different owners are independent.
        digest: Digest of the root file system of the build; empty: the current build.
        build: Id of the build of a user, whose settings apply; empty: the current build, or a built-in template. Builds with other settings can have
            the same root file system.
        tag: Tag of a template of a user that names the current build; empty: ``default``, or the reference names a build.
    """

    owner: OwnerId
    name: str
    digest: str = ""
    build: str = ""
    tag: str = ""

    @property
    def full_name(self) -> str:
        """Name that a request gives for the template: ``NAME``, or ``NAME:TAG`` if the reference has a tag."""
        return f"{self.name}:{self.tag}" if self.tag else self.name

    @property
    def label(self) -> str:
        """Label of the template in metrics: the name of a built-in template, ``custom`` for all others, so that clients cannot add series."""
        return self.name if self.owner == LOCAL else "custom"

    @property
    def current(self) -> TemplateRef:
        """Reference to the current build of the template."""
        return replace(self, digest="", build="")


class RootKind(StrEnum):
    """Form of a root file system on the host."""

    TREE = "tree"
    """A folder."""
    IMAGE = "image"
    """An EROFS image, which is one file. Images can contain files of strangers, so the host never mounts or parses one."""


@dataclass(frozen=True, slots=True)
class RootFs:
    """A root file system: a folder or an image. It is shared by sandboxes, read-only, and never changes.

    Args:
        digest: SHA-256 of all inputs of the build, in hexadecimal. Root file systems with the same digest are equal.
        tree: Folder on the host that contains the root file system, with the guest in ``.sandlot``. None: the root file system is an image.
        image: EROFS image. It contains the guest in ``.sandlot`` and an entry in ``/tmp``. None: the root file system is a folder.
        index: File with the names and times of all entries of the image (``host/image_index.py``). None: the root file system is a folder.
    """

    digest: str
    tree: Path | None = None
    image: Path | None = None
    index: Path | None = None

    def __post_init__(self) -> None:
        """Refuse a root file system that is neither a folder nor an image with its index."""
        if (self.tree is None) != (self.image is not None) or (self.image is None) != (self.index is None):
            raise InternalError(f"The root file system {self.digest[:19]} is neither a folder nor an image with its index.")

    @property
    def kind(self) -> RootKind:
        """Form of the root file system."""
        return RootKind.TREE if self.image is None else RootKind.IMAGE

    def require_tree(self) -> Path:
        """Return the folder of a root file system that is a folder."""
        if self.tree is None:
            raise InternalError(f"The root file system {self.digest[:19]} is an image.")
        return self.tree

    def require_image(self) -> Path:
        """Return the EROFS image of a root file system that is an image."""
        if self.image is None:
            raise InternalError(f"The root file system {self.digest[:19]} is a folder.")
        return self.image


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a sandbox that must be known to prepare the sandbox, even before it has an owner.

    Args:
        root: Root file system.
        limits: Limits of the sandbox.
    """

    root: RootFs
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """A requested sandbox.

    Args:
        id: Id of the sandbox.
        template: Template. Its digest is empty until the root file system is known.
        env: Environment of every process.
        template_env: Environment that the build gave to the sandbox when it was first started, which ``env`` overrides. The sandbox, its snapshots
            and its forks keep it when the build is deleted.
        metadata: Key-value pairs of the owner, stored and returned unchanged.
        limits: Limits of the sandbox.
        timeout_s: Seconds until the timeout passes, 1 second to 7 days; None: never (a persistent sandbox).
        isolation: Name of the driver.
        on_timeout: Action when the timeout passes.
        auto_resume: True to resume the paused or hibernated sandbox when a request needs it.
        snapshot: Snapshot that the sandbox was started from; None: the sandbox was not started from a snapshot.
        parent: Sandbox that this sandbox was forked from; None: the sandbox is no fork.
        restored: Content that the sandbox was started with: ``memory`` (of a snapshot or of the parent of a fork) or ``files`` (of a snapshot). Empty
            if the sandbox was booted from its template.
        volumes: Mounted volumes, by id.
        cwd: Absolute path of the working directory, in which programs start and relative paths begin.
        user: User of processes whose request names none.
        public_ports: True if the preview URLs of the ports need no token.
        mask_request_host: ``Host`` header that programs see behind a preview URL, in which ``${PORT}`` stands for the port. None: ``localhost:PORT``.
    """

    id: SandboxId
    template: TemplateRef = TemplateRef(LOCAL, DEFAULT_TEMPLATE)
    env: Mapping[str, str] = field(default_factory=dict)
    template_env: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    isolation: str = "gvisor"
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_resume: bool = True
    snapshot: SnapshotId | None = None
    parent: SandboxId | None = None
    restored: str = ""
    volumes: tuple[VolumeMount, ...] = ()
    cwd: str = WORKSPACE
    user: User = User.USER
    public_ports: bool = False
    mask_request_host: str | None = None

    def __post_init__(self) -> None:
        """Check that the environment, the volumes, the working directory, the timeout and the masked host do not exceed their limits."""
        check_env(self.env)
        check_path(self.cwd)
        check_mounts(self.volumes)
        if self.timeout_s is not None:
            check_timeout(self.timeout_s)
        if self.mask_request_host is not None:
            check_request_host(self.mask_request_host)

    def request_host(self, port: int) -> str:
        """Return the ``Host`` header that a program on a port sees behind a preview URL."""
        return (self.mask_request_host or f"localhost:{PORT_VARIABLE}").replace(PORT_VARIABLE, str(port))

    def started_from(self, root: RootFs, build: str, env: Mapping[str, str]) -> SandboxSpec:
        """Return the spec with the build that the sandbox is started from.

        Args:
            root: Root file system of the build.
            build: Id of the build of a user; empty for a built-in template.
            env: Environment of the build. A spec that has one from an earlier start or from a snapshot keeps it.
        """
        return replace(self, template=replace(self.template, digest=root.digest, build=build), template_env=self.template_env or env)


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """A process to start in a sandbox.

    Args:
        argv: Program and arguments.
        env: Variables to add to the environment of the sandbox.
        cwd: Working directory, relative to that of the sandbox; None: that of the sandbox.
        user: User that the process runs as; None: that of the sandbox.
        stdin: True if the client may write to standard input. False to connect standard input to ``/dev/null``.
        timeout_s: Seconds until the process group is killed, at most 7 days; None: never.
        rows: Rows of a terminal, 1 to 65,535; None: no terminal. On a terminal, all output is standard output, and standard input is always open.
        cols: Columns of a terminal, 1 to 65,535; None: no terminal. ``rows`` and ``cols`` must be set together.
        hidden: True for processes of the service itself, which are not listed.
        tag: Label that the client chose, 1 to 256 bytes, to find the process in the list; None: no label.
        measured: True for a process whose peak memory does not begin at that of the guest. Its start takes about 2 ms longer.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: User | None = None
    stdin: bool = False
    timeout_s: float | None = DEFAULT_COMMAND_TIMEOUT_S
    rows: int | None = None
    cols: int | None = None
    hidden: bool = False
    tag: str | None = None
    measured: bool = False

    @property
    def pty(self) -> bool:
        """True if the process runs on a terminal."""
        return self.rows is not None

    def __post_init__(self) -> None:
        """Refuse a process that execve(2) cannot start."""
        if not self.argv or not self.argv[0]:
            raise InvalidRequestError("The command is empty.", hint="Pass a program to run.")
        if len(self.argv) > MAX_ARGS:
            raise InvalidRequestError(
                f"The command has {len(self.argv)} arguments; at most {MAX_ARGS} are allowed.",
                hint="Pass the arguments in a file or on standard input.",
            )
        total = 0
        for argument in self.argv:
            size = len(check_text("command", argument))
            if size > MAX_ARG_BYTES:
                raise InvalidRequestError(
                    f"One argument of the command has {size} bytes; at most {MAX_ARG_BYTES} are allowed.",
                    hint="Write the argument to a file in the sandbox and pass the path of the file.",
                )
            total += size
        if total > MAX_ARGV_BYTES:
            raise InvalidRequestError(
                f"The command has {total} bytes; at most {MAX_ARGV_BYTES} are allowed.", hint="Pass the data in a file or on standard input."
            )
        check_env(self.env)
        if self.cwd is not None:
            absolute_path(self.cwd, "/")
        if self.timeout_s is not None:
            check_range("timeout", self.timeout_s, 0.001, MAX_TIMEOUT_S)
        if self.rows is not None or self.cols is not None:
            check_terminal_size(self.rows, self.cols)
        if self.tag is not None and not 1 <= (size := len(check_text("tag", self.tag))) <= MAX_TAG_BYTES:
            raise InvalidRequestError(
                f"`tag` has {size} bytes; 1 to {MAX_TAG_BYTES} are allowed.", hint="Change the tag, or omit `tag`.", fields={"field": "tag"}
            )


@dataclass(frozen=True, slots=True)
class CellSpec:
    """Code to run in a context.

    Args:
        code: Source code, at most 4 MiB.
        language: Language of the code: a name or alias of a language with contexts. The object stores the name. None: the language of the
            context; if no context is given, Python.
        env: Environment variables for this cell only.
        timeout_s: Seconds from the start of the cell until it is interrupted; None sets no timeout.
        context: Id of the context that runs the cell; None: the default context of the language.
    """

    code: str
    language: str | None = "python"
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = DEFAULT_COMMAND_TIMEOUT_S
    context: str | None = None

    @property
    def context_id(self) -> str:
        """Id of the context that runs the cell."""
        return self.context or DEFAULT_CONTEXT_IDS[self.language or "python"]

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
                f"`timeout` is {self.timeout_s:g}; it must be more than 0 and at most {MAX_TIMEOUT_S:g} seconds.", fields={"field": "timeout"}
            )


def context_language(name: str) -> str:
    """Return the language of the contexts that run code in a language.

    Args:
        name: Name of the language in the request, such as ``py``.

    Raises:
        InvalidRequestError: No context runs code in this language.
    """
    language = CONTEXT_LANGUAGES.get(name)
    if language is None:
        raise InvalidRequestError(
            f"Code in {name[:50]!r} cannot be run as a cell.",
            hint=f"Use one of: {', '.join(CONTEXT_LANGUAGES)}. "
            f"Run other languages with `programs.run`, or as commands in the template `{LANGUAGES_TEMPLATE}`.",
            fields={"field": "language"},
        )
    return language


def check_context_id(id_: str) -> str:
    """Check the form of a context id, and return the id.

    Raises:
        NotFoundError: No context can have this id, because the id is malformed (``context_not_found``).
    """
    if id_ not in DEFAULT_CONTEXT_IDS.values() and not CONTEXT_ID.fullmatch(id_):
        raise context_not_found(id_)
    return id_


def context_not_found(id_: str) -> NotFoundError:
    """Return the error for a request whose context does not exist."""
    return NotFoundError(
        f"There is no context {id_[:64]!r}.",
        code=ErrorCode.CONTEXT_NOT_FOUND,
        hint="Pass the id of an existing context. The context may have been deleted.",
        fields={"context": id_[:64]},
    )


def check_terminal_size(rows: int | None, cols: int | None) -> None:
    """Refuse a size that a terminal cannot have.

    Raises:
        InvalidRequestError: ``rows`` or ``cols`` is missing or not from 1 to ``MAX_TERMINAL_SIZE``.
    """
    if rows is None or cols is None:
        raise InvalidRequestError("Only one of `rows` and `cols` is set.", hint="Set both, or neither.")
    check_range("rows", rows, 1, MAX_TERMINAL_SIZE)
    check_range("cols", cols, 1, MAX_TERMINAL_SIZE)


def shell_argv(command: str) -> tuple[str, ...]:
    """Return the program and arguments that run a command line in a shell. The guest uses sh if the root file system has no bash.

    The shell is not a login shell, because ``bash -l`` takes 70 to 90 ms to start in gVisor, and ``bash`` takes 15 ms (measured).

    Raises:
        InvalidRequestError: The command line is empty, or contains a NUL character or a lone surrogate.
    """
    check_text("command", command)
    if not command.strip():
        raise InvalidRequestError("The command is empty.", hint="Pass a command line to run.")
    return ("/bin/bash", "-c", command)


def check_text(what: str, text: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> bytes:
    """Return the UTF-8 bytes of a text that is passed to execve(2) or open(2).

    Args:
        what: Name of the text in error messages, such as ``command``.
        text: The text.
        code: Code of the error.

    Raises:
        InvalidRequestError: The text contains a NUL character or a lone surrogate.
    """
    if "\0" in text:
        raise InvalidRequestError(
            f"The {what} contains a NUL character, which is not allowed.", code=code, hint="Remove the character, or pass the bytes in a file."
        )
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(f"The {what} is not valid Unicode text.", code=code, hint="Pass binary content in a file.") from None


def check_request_host(host: str) -> None:
    """Refuse a text that cannot be the ``Host`` header of a request.

    Raises:
        InvalidRequestError: The text is no host name with or without a port, or has more than 253 bytes.
    """
    _, _, port = host.partition(":")
    if _REQUEST_HOST.fullmatch(host) is None or len(host) > MAX_REQUEST_HOST_BYTES or (port.isdecimal() and not 1 <= int(port) <= MAX_PORT):
        raise InvalidRequestError(
            f"`mask_request_host` is {host[:64]!r}, which is not a host name of at most {MAX_REQUEST_HOST_BYTES} bytes, with or without a port.",
            hint=f'Pass for example "{PORT_VARIABLE}-app.example.com".',
            fields={"field": "mask_request_host"},
        )


def check_path(path: str) -> str:
    """Check a path inside a sandbox, and return the path. ``..`` and links are allowed; the kernel inside the sandbox resolves them.

    Raises:
        InvalidRequestError: The path is not absolute, contains a NUL character or a lone surrogate, or has more than 4,095 bytes. The code is
            ``path_invalid``.
    """
    size = len(check_text("path", path, ErrorCode.PATH_INVALID))
    if not path.startswith("/"):
        raise InvalidRequestError(
            f"The path {path[:200]!r} is not absolute.",
            code=ErrorCode.PATH_INVALID,
            hint="Pass a path that begins with '/', for example /workspace/data.csv.",
        )
    if size > MAX_PATH_BYTES:
        raise InvalidRequestError(
            f"The path has {size} bytes; at most {MAX_PATH_BYTES} are allowed.",
            code=ErrorCode.PATH_INVALID,
            hint="Pass a shorter path, or use a command that changes into a directory first.",
        )
    return path


def absolute_path(path: str, cwd: str) -> str:
    """Check a path inside a sandbox, and return it as an absolute path.

    Args:
        path: Absolute path, or a path relative to ``cwd``. An empty path is invalid; ``.`` is ``cwd`` itself.
        cwd: Absolute path of the working directory.

    Raises:
        InvalidRequestError: As for :func:`check_path`.
    """
    if not path:
        raise InvalidRequestError("The path is empty.", code=ErrorCode.PATH_INVALID, hint="Pass a path; `.` is the working directory.")
    if path.startswith("/"):
        return check_path(path)
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    return check_path(cwd if path in {"", "."} else f"{cwd.rstrip('/')}/{path}")


def check_env(env: Mapping[str, str]) -> None:
    """Refuse an environment that execve(2) cannot pass or that is too large.

    Raises:
        InvalidRequestError: A name is empty or contains ``=``, a name or value contains a NUL character, there are more than 4,096 variables, or
            all names and values together have more than 128 KiB.
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
            raise InvalidRequestError(
                f"{name!r} is not a name for an environment variable.", hint="Pass a name that is not empty and contains no '='."
            )
        size = len(check_text("environment", name)) + len(check_text(f"environment variable {name}", value)) + 2
        total += size
    if total > MAX_ENV_BYTES:
        raise InvalidRequestError(
            f"The environment has {total} bytes; at most {MAX_ENV_BYTES} are allowed.", hint="Pass large values as files.", fields={"bytes": total}
        )


def check_size(name: str, size_bytes: int, smallest_bytes: int, largest_bytes: int, *, hint: str = "Pass a number of bytes.") -> None:
    """Check a size against its range.

    Args:
        name: Name of the parameter in the error.
        size_bytes: Size.
        smallest_bytes: Smallest valid size.
        largest_bytes: Largest valid size.
        hint: Hint of the error.

    Raises:
        InvalidRequestError: The size is out of range.
    """
    if not smallest_bytes <= size_bytes <= largest_bytes:
        smallest, largest = _size_text(smallest_bytes), _size_text(largest_bytes)
        raise InvalidRequestError(f"`{name}` is {size_bytes} bytes; it must be from {smallest} to {largest}.", hint=hint, fields={"field": name})


def _size_text(size_bytes: int) -> str:
    for unit, factor in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes % factor == 0:
            return f"{size_bytes // factor} {unit}"
    return f"{size_bytes} bytes"


def check_timeout(timeout_s: float) -> None:
    """Check the timeout of a sandbox: 1 to ``MAX_TIMEOUT_S`` seconds.

    Raises:
        InvalidRequestError: The timeout is out of range.
    """
    check_range("timeout", timeout_s, 1, MAX_TIMEOUT_S)


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Check the number of a field.

    Raises:
        InvalidRequestError: The number is out of range.
    """
    if not low <= value <= high:  # false for NaN as well
        # Write integers with all digits: as a number of bytes, 1.09951e+12 would be unreadable.
        given, least, most = (str(number) if isinstance(number, int) else f"{number:g}" for number in (value, low, high))
        raise InvalidRequestError(f"`{name}` is {given}; it must be from {least} to {most}.", fields={"field": name})
