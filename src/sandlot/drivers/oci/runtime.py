"""What the driver needs to know of an OCI runtime, and how its program is found and told apart.

Laws:
- A program is known by its content: a package may be replaced while the service runs.
- Everything about a runtime that needs no program, such as where it counts a disk, works without one: a sandbox goes on
  after its runtime was uninstalled, and is adopted and removed all the same.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sandlot.drivers.oci.places import Folder
from sandlot.host.hierarchies import GroupLimits
from sandlot.host.launch import Operation, Started
from sandlot.model.ports import Attachment, DriverCapability
from sandlot.model.specs import Limits, SandboxSpec, Shape

OCI_VERSION = "1.0.2"
"""Of the runtime specification, config.md."""
GUEST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of the first process inside."""

OOM_SCORE = 900
"""Sandboxes go before the host's own services (0) when the host runs out of memory; the most is 1,000."""

CORE_BYTES = 1
"""The limit of core files that leaves none: less than the least file, and where they go to a program of the host instead
(``kernel.core_pattern`` begins with "|"), which 0 does not keep from it, the one value that the kernel refuses (core(5), and its
do_coredump). A program in a container can lower its own to 0; against that only another pattern helps, and doctor says so."""

_ASK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Program:
    """A runtime's program on this host.

    Args:
        name: What it is called.
        path: Where it is, absolute.
        sha256: Of its content, in hexadecimal.
        version: What it calls itself.
        limits_disk: Whether it limits the disk itself; otherwise it is given a file system of the right size.
        has_control: Whether its control socket speaks as this version of Sandlot does; otherwise its command line is used.
    """

    name: str
    path: Path
    sha256: str
    version: str
    limits_disk: bool = False
    has_control: bool = False


_WORDS = 400
"""Of what a runtime says of a failure; some quote all that they were about to write."""
_FOREIGN = "incompatible FeatureSet"
"""runsc, pkg/cpuid, ``ErrIncompatible``; the same from 2024 to 2026."""


class EngineError(Exception):
    """A runtime could not do what it was asked for; the text is its own."""

    @property
    def is_foreign(self) -> bool:
        """Whether it refused an image because that is of a processor with more features than this one."""
        return _FOREIGN in str(self)


def words(text: str) -> str:
    """What is told of a runtime's words."""
    return text[:_WORDS]


@dataclass(frozen=True, slots=True)
class Live:
    """A sandbox whose runtime runs, for an engine.

    Args:
        folder: Its folder.
        started: Its processes.
        program: What it runs on.
    """

    folder: Folder
    started: Started
    program: Program


class Engine(Protocol):
    """How a runtime that runs already is told to start, to write down and to go on from what was written down.

    Every method raises :class:`EngineError` with the runtime's words, also where the sandbox ends meanwhile.
    """

    async def ready(self, live: Live) -> None:
        """Do for a sandbox that was created what every start and restore needs."""
        ...

    async def start(self, live: Live) -> None:
        """Start the guest in one that is ready."""
        ...

    async def restore(self, live: Live, image: Path) -> None:
        """Let one that is ready go on from a folder of images."""
        ...

    async def save(self, live: Live, image: Path) -> None:
        """Write images into a folder that is there and empty; the sandbox stands still meanwhile, and goes on however that ends."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """What a sandbox is made of on the host, for a runtime to say how it is put together.

    Args:
        shape: What was asked for.
        program: What it is going to run on.
        folder: Its folder.
        doors: The files that take a process into its control group.
        has_image: Whether its disk is a file system of its own; otherwise the runtime limits a folder.
        has_tmp: Whether its root has an empty ``/tmp``.
        first_id: The first of its own user and group ids on the host; None where the runtime takes none.
        boot_id: What the sandbox is to take for the id of its boot: a random UUID.
    """

    shape: Shape
    program: Program
    folder: Folder
    doors: tuple[Path, ...]
    has_image: bool
    has_tmp: bool
    first_id: int | None
    boot_id: str


class Runtime(Protocol):
    """An OCI runtime, whether its program is there or not."""

    @property
    def own_ids(self) -> bool:
        """Whether each sandbox takes user and group ids of the host for itself."""
        ...

    @property
    def hub(self) -> str | None:
        """Where its volumes are inside, to be bound to their places by the guest; None where the runtime puts them there."""
        ...

    @property
    def bytes_per_inode(self) -> int | None:
        """How many files a disk of its own must be able to hold; None where it holds one large file."""
        ...

    @property
    def oom_statuses(self) -> frozenset[int]:
        """How its process can end where the kernel killed it, or a part of it, for the memory limit; negative for a signal."""
        ...

    @property
    def absent(self) -> Mapping[DriverCapability, str]:
        """What it cannot do anywhere, and why; for people."""
        ...

    def find(self) -> Program:
        """Its program. Takes some ten milliseconds.

        Raises:
            HostError: It is not installed, or too old.
        """
        ...

    def group_limits(self, limits: Limits) -> GroupLimits:
        """What the whole sandbox may use on the host."""
        ...

    def plan(self, place: Place) -> tuple[Operation, ...]:
        """What the stage does before it starts the program."""
        ...

    def config(self, shape: Shape, spec: SandboxSpec | None, first_id: int | None, volumes: Sequence[Attachment] = ()) -> dict[str, Any]:
        """The bundle's ``config.json``; without a spec for a runtime that knows of snapshots, before it is known who it will be."""
        ...

    def run_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """The command that starts a sandbox and returns once it runs, having written its pid to ``VIEW_FOLDER/pid``.

        Args:
            program: To run.
            ref: The sandbox's name to the runtime, which has a state folder for this one sandbox alone.
            disk_bytes: The limit of its disk.
        """
        ...

    def create_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """The command that starts a sandbox's own processes with nothing in them; otherwise as :meth:`run_argv`."""
        ...

    def engine(self, program: Program) -> Engine:
        """How one that runs is told what comes next.

        Raises:
            UnsupportedError: It knows of no snapshots.
        """
        ...

    def settle(self, started: Started) -> None:
        """What the runtime's command line does after a start, and nobody did. Blocks for microseconds."""
        ...

    def disk_bytes(self, started: Started) -> int:
        """What a sandbox that runs has written to its disk. Blocks for microseconds."""
        ...


def programs(name: str, search_path: str | None = None) -> Iterator[tuple[Path, str]]:
    """Every program of a name and the first line that it answers to ``--version``, in the order of the search path.

    Args:
        name: Its file's name.
        search_path: Folders separated by colons; None is this process's PATH.
    """
    folders = (search_path if search_path is not None else os.environ.get("PATH", os.defpath)).split(":")
    # access(2) and not is_file() first: a folder that this user may not enter has no program for it.
    candidates = {file.resolve(): None for folder in folders if os.access(file := Path(folder, name), os.X_OK) and file.is_file()}
    for file in candidates:
        try:
            answer = ask(file, "--version")
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0:
            yield file, answer.stdout.decode(errors="replace").partition("\n")[0].strip()


def ask(file: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program for what it says, without an environment.

    Raises:
        OSError: It cannot be run.
        subprocess.TimeoutExpired: It does not answer.
    """
    return subprocess.run([str(file), *arguments], capture_output=True, stdin=subprocess.DEVNULL, timeout=_ASK_TIMEOUT_S, check=False, env={})


def content_sha256(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
