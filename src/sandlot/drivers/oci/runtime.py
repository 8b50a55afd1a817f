"""The interface between the driver and an OCI runtime.

Invariants:
- A live sandbox does not need the program of its runtime, except for snapshots. For example, the disk usage is read without the program. If the
  runtime is uninstalled, the sandbox continues, and can still be adopted and removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sandlot.drivers.oci.paths import SandboxFolder
from sandlot.host.cgroup_layout import GroupLimits
from sandlot.host.cgroups import GroupMemory
from sandlot.host.launcher import Operation, Started
from sandlot.model.ports import Attachment, DriverCapability, HeadroomRange, ProbeResult
from sandlot.model.specs import Limits, SandboxSpec, Shape

OCI_VERSION = "1.0.2"
"""Version of the runtime specification, config.md."""
GUEST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""PATH of the first process inside the sandbox."""

OOM_SCORE = 900
"""oom_score_adj of sandboxes; at most 1,000. If the host runs out of memory, the kernel kills sandboxes before the host's own services (0)."""

CORE_BYTES = 1
"""Size limit of core files. No core file is that small, so none is written. With 0, the kernel would still start a program of the host for the core
file if ``kernel.core_pattern`` begins with "|" (core(5), do_coredump). A program in a container can lower its own limit to 0; only another pattern
prevents that, and ``sandlot doctor`` reports it."""


@dataclass(frozen=True, slots=True)
class Program:
    """Program of a runtime on this host.

    Args:
        name: Name of the program.
        path: Absolute path.
        sha256: SHA-256 of the content, in hexadecimal.
        version: Version that the program reports.
        source: Origin of the program, for people (:func:`sandlot.host.programs.find_source`).
        limits_disk: True if the program limits the disk itself. Otherwise the program gets a file system of the right size.
        has_control: True if this version of Sandlot can use the program's control socket. Otherwise its command line is used.
        copies_network: True if the program copies the addresses and the NAT table of the network namespace in which it is started. The driver clears
            this field on a host that cannot create them.
    """

    name: str
    path: Path
    sha256: str
    version: str
    source: str = ""
    limits_disk: bool = False
    has_control: bool = False
    copies_network: bool = False


_MAX_MESSAGE_CHARS = 400
"""Longest part of a runtime's message that is shown. Some messages quote large amounts of data."""
_OTHER_CPU = "incompatible FeatureSet"
"""Part of runsc's message if the processor lacks features (``ErrIncompatible`` in pkg/cpuid). The text did not change from 2024 to 2026."""


class EngineError(Exception):
    """A command to a running runtime failed. The text is the reason, if possible the runtime's own message."""

    @property
    def needs_other_cpu(self) -> bool:
        """True if the runtime refused a snapshot because the snapshot was written on a processor with features that this processor lacks."""
        return _OTHER_CPU in str(self)


def shorten_message(text: str) -> str:
    """Return a runtime's message, cut to 400 characters."""
    return text[:_MAX_MESSAGE_CHARS]


@dataclass(frozen=True, slots=True)
class RunningOciRuntime:
    """The running runtime of one sandbox.

    Args:
        folder: Folder of the sandbox on the host.
        started: Processes of the sandbox on the host.
        program: Program of the runtime.
    """

    folder: SandboxFolder
    started: Started
    program: Program


@dataclass(frozen=True, slots=True)
class LastSnapshot:
    """The last snapshot that a running sandbox has outlasted.

    Args:
        state_bytes: Size of the objects of the runtime's kernel in the snapshot.
        written_bytes: Growth of the sandbox's disk since the snapshot.
        age_s: Seconds since the snapshot.
    """

    state_bytes: int
    written_bytes: int
    age_s: float


class Engine(Protocol):
    """Commands to a runtime that is running: start, save and restore.

    Every method raises :class:`EngineError` if the runtime fails, or if the sandbox ends during the call.
    """

    async def set_up(self, running: RunningOciRuntime) -> None:
        """Prepare a sandbox for :meth:`start` or :meth:`restore`. The sandbox has runtime processes, but no guest yet."""
        ...

    async def start(self, running: RunningOciRuntime) -> None:
        """Start the guest of a sandbox whose runtime processes exist."""
        ...

    async def restore(self, running: RunningOciRuntime, image: Path) -> None:
        """Restore a snapshot, whose files are in the folder ``image``, into a sandbox whose runtime processes exist."""
        ...

    async def save(self, running: RunningOciRuntime, image: Path) -> None:
        """Write a snapshot into the empty folder ``image``. The sandbox is paused meanwhile, and continues even if writing fails."""
        ...


@dataclass(frozen=True, slots=True)
class RuntimePlanInputs:
    """Inputs from which a runtime derives the operations that set up a sandbox before its start.

    Args:
        shape: Shape of the sandbox.
        program: Program of the runtime with which the sandbox will be started.
        folder: Folder of the sandbox on the host.
        entry_files: Files to which a process writes to enter the sandbox's control group.
        has_image: True if the disk is an image file with its own file system. False: the disk is a folder, whose size the runtime limits.
        has_tmp: True if the root file system is a folder with an empty ``/tmp``.
        first_id: First id of the sandbox's range of the host's user and group ids. None: the runtime uses no ranges.
        boot_id: Random UUID that programs in the sandbox read as the boot id of the kernel.
        has_card: True if the sandbox gets a network card that leads to the guest.
    """

    shape: Shape
    program: Program
    folder: SandboxFolder
    entry_files: tuple[Path, ...]
    has_image: bool
    has_tmp: bool
    first_id: int | None
    boot_id: str
    has_card: bool


class Runtime(Protocol):
    """Interface of an OCI runtime. The runtime need not be installed."""

    @property
    def own_ids(self) -> bool:
        """True if each sandbox gets its own range of the host's user and group ids."""
        ...

    @property
    def hub(self) -> str | None:
        """Directory inside the sandbox from which the guest binds volumes to their paths. None: the runtime itself mounts volumes at their paths."""
        ...

    @property
    def bytes_per_inode(self) -> int | None:
        """Bytes of disk space per inode of the disk's file system (mke2fs(8), ``-i``). None: few inodes suffice, as the disk holds one large file."""
        ...

    @property
    def oom_statuses(self) -> frozenset[int]:
        """Exit codes that a sandbox's process can have after an out-of-memory kill in the sandbox. A code of -9 means signal 9."""
        ...

    @property
    def unsupported(self) -> Mapping[DriverCapability, str]:
        """Capabilities that the runtime lacks on every host, each with the reason as a readable text."""
        ...

    def find(self) -> Program:
        """Find the program. Takes some tens of milliseconds.

        Raises:
            HostError: The program is not installed, or is too old.
        """
        ...

    def probe_card(self, program: Program) -> ProbeResult:
        """Return whether sandboxes of a program get a network card on this host. May block for some milliseconds."""
        ...

    def boots_with_engine(self, program: Program) -> bool:
        """Return True if the engine starts every guest, because it must set up the sandbox before. False: one command of the runtime boots it."""
        ...

    def group_limits(self, limits: Limits) -> GroupLimits:
        """Return the limits of the control group that enforce a sandbox's limits. Pure."""
        ...

    def snapshot_headroom(self, memory: GroupMemory, limit_bytes: int, last: LastSnapshot | None) -> HeadroomRange:
        """Return the headroom for a snapshot of a running sandbox. Pure.

        Args:
            memory: Memory of the sandbox now.
            limit_bytes: Memory limit of the sandbox's control group, without headroom.
            last: Last snapshot of the sandbox since the service was started and the sandbox was started or restored. None: there was none.
        """
        ...

    def uncollected_bytes(self, memory: GroupMemory) -> int:
        """Return the memory in bytes that a sandbox may need until the runtime has collected the garbage of a snapshot or restore. Pure."""
        ...

    def restore_headroom(self, state_bytes: int, memory_bytes: int, limit_bytes: int) -> HeadroomRange:
        """Return the headroom for a restore. Pure.

        Args:
            state_bytes: Size of the objects of the runtime's kernel in the snapshot, in bytes.
            memory_bytes: Memory of the tenant's programs in the snapshot, in bytes.
            limit_bytes: Memory limit of the sandbox's control group, without headroom.
        """
        ...

    def plan(self, inputs: RuntimePlanInputs) -> tuple[Operation, ...]:
        """Return the operations that the stage process carries out before it starts the runtime. Pure."""
        ...

    def config(
        self, program: Program, shape: Shape, spec: SandboxSpec | None, first_id: int | None, volumes: Sequence[Attachment] = (), *, has_card: bool
    ) -> dict[str, Any]:
        """Return the ``config.json`` of the sandbox's OCI bundle, not yet encoded.

        Args:
            program: Program of the runtime with which the sandbox will be started.
            shape: Root filesystem and limits of the sandbox.
            spec: Spec of the sandbox. None for a prepared sandbox, which requires a runtime that supports snapshots.
            first_id: First id of the sandbox's range of the host's user and group ids. None: the runtime uses no ranges.
            volumes: Volumes of the sandbox.
            has_card: True if the sandbox gets a network card that leads to the guest.
        """
        ...

    def run_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """Return the command that starts a sandbox, writes the pid of its process to ``VIEW_FOLDER/pid``, and ends as soon as the sandbox is running.

        Args:
            program: Program of the runtime.
            ref: Name of the sandbox for the runtime. The runtime's state folder contains this one sandbox only.
            disk_bytes: Limit of the sandbox's disk.
        """
        ...

    def create_argv(self, program: Program, ref: str, disk_bytes: int) -> tuple[str, ...]:
        """Return the command that starts only the runtime's own processes, without a guest. The arguments are those of :meth:`run_argv`."""
        ...

    def engine(self, program: Program) -> Engine:
        """Return the engine, which starts, snapshots and restores sandboxes by commands to a running process of the program.

        Raises:
            UnsupportedError: The runtime does not support snapshots.
        """
        ...

    def after_start(self, started: Started) -> None:
        """Do the part of a start that the runtime's command line would do, after an engine has started the sandbox. Blocks for microseconds."""
        ...

    def disk_bytes(self, started: Started) -> int:
        """Return the number of bytes that a running sandbox has written to its disk. Blocks for microseconds."""
        ...
