"""The interface of drivers, which isolate sandboxes. The guest, not the driver, starts processes and reads files inside a sandbox.

Invariants:
- Each optional capability has a probe and a method that needs the capability. While the service runs, no capability disappears, but a missing
  capability may appear after the host was repaired. A method that is called without its capability raises ``UnsupportedError``.
- ``destroy`` is idempotent and complete: no process, mount, loop device, cgroup or file of the sandbox is left.
- ``sweep`` changes only resources whose names contain the node id of this state directory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from sandlot.model.faults import Fault
from sandlot.model.specs import Limits, SandboxSpec, Shape


class DriverCapability(StrEnum):
    """Optional capability of a driver on this host."""

    BOOT = "boot"
    BOOT_IMAGE = "boot.image"
    """Sandboxes start from a root file system that is an EROFS image. The host's kernel must not mount the image, because strangers can make it."""
    LIMIT_MEMORY = "limit.memory"
    LIMIT_CPU = "limit.cpu"
    LIMIT_PIDS = "limit.pids"
    LIMIT_DISK = "limit.disk"
    SHOW_LIMITS = "limit.shown"
    """Programs in a sandbox see the memory limit of the sandbox as the memory of the machine (MemTotal), not the memory of the host.

    The guest then also shows them the number of processors, by setting their affinity. The runtime must not enforce affinities, or give the sandbox
    no more processors than this number.
    """
    PAUSE = "pause"
    SNAPSHOT = "snapshot"
    CONFIGURE_MEMORY = "configure.memory"
    CONFIGURE_CPU = "configure.cpu"
    CONFIGURE_PIDS = "configure.pids"
    CONFIGURE_DISK = "configure.disk"
    CONFIGURE_VOLUMES = "configure.volumes"
    VOLUMES = "volumes"
    ADOPT = "adopt"
    NETWORK = "network"
    """Sandboxes have a network card whose connections lead to the guest. Without it, they have a loopback device only."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of the probe of one capability.

    Args:
        ok: True if the capability is available.
        reason: If the capability is missing, the reason and the fix, for people. If it is available with restrictions, these.
    """

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """Build of a runtime that is installed on this host.

    Args:
        name: Name of the program.
        version: Version that the program reports.
        build_date: Date in the version, such as ``2024-07-29``; empty if the version has none.
        source: Origin, such as a Debian package with its version.
    """

    name: str
    version: str
    build_date: str = ""
    source: str = ""

    def __str__(self) -> str:
        """Return one line for people."""
        built = f", built {self.build_date}" if self.build_date else ""
        return f"{self.name} {self.version}{built} ({self.source})" if self.source else f"{self.name} {self.version}{built}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a driver on this host, found by trying them.

    Args:
        driver: Name of the driver.
        runtime: Build of the runtime; None if no usable build is installed.
        results: Capability -> result of its probe. A capability without a result is missing.
    """

    driver: str
    runtime: RuntimeInfo | None
    results: Mapping[DriverCapability, ProbeResult]

    def can(self, capability: DriverCapability) -> bool:
        """Return whether a capability is available."""
        result = self.results.get(capability)
        return result is not None and result.ok

    def why_not(self, capability: DriverCapability) -> str:
        """Return the reason why a capability is missing, or how it is restricted."""
        result = self.results.get(capability)
        return f"the {self.driver} driver does not support {capability}" if result is None else result.reason


class ExitReason(StrEnum):
    """Reason why a sandbox ended."""

    EXITED = "exited"
    """The guest ended on request or at its deadline."""
    OOM = "oom"
    """The sandbox exceeded its memory limit."""
    DISK = "disk"
    """The sandbox ended because it exceeded its disk limit. A disk that is only full does not end a sandbox: its programs get ENOSPC."""
    KILLED = "killed"
    """The service ended the sandbox: on request, at its timeout, or because the sandbox was saved."""
    CRASHED = "crashed"
    """The runtime of the driver failed, or another program of the host killed it."""


EXIT_FAULTS: Mapping[ExitReason, Fault | None] = MappingProxyType(
    {
        ExitReason.EXITED: None,
        ExitReason.KILLED: None,
        ExitReason.OOM: Fault.LIMIT,
        ExitReason.DISK: Fault.LIMIT,
        ExitReason.CRASHED: Fault.LOST,
    }
)
"""Reason of the end of a sandbox -> fault class; None: the sandbox ended as its owner or the operator wanted."""


KILLED_BY_REQUEST: Final = "it was killed by request"
"""Detail of the end of a sandbox that a client killed."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End of a sandbox.

    Args:
        reason: Reason why the sandbox ended.
        detail: Details for people; may be empty.
    """

    reason: ExitReason
    detail: str = ""

    @property
    def fault(self) -> Fault | None:
        """Fault class of the end."""
        return EXIT_FAULTS[self.reason]

    @property
    def call_fault(self) -> Fault:
        """Fault class of calls to the ended sandbox, and of calls that the end interrupted."""
        return self.fault or Fault.REQUEST


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a sandbox has used, from its cgroup and its disk.

    Args:
        cpu_s: Seconds of processor time.
        memory_bytes: Bytes of memory in use now, without the page cache that the kernel can drop at once.
        memory_peak_bytes: Largest number of bytes of memory in use so far.
        pids: Number of tasks that the sandbox has on the host, including those of the runtime. ``Limits.pids`` does not limit this number but the
            number of tasks inside the sandbox, which the guest reports.
        disk_bytes: Bytes written on top of the root file system.
        oom_kills: Number of tasks of the sandbox that the host's kernel killed because of the memory limit.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    pids: int
    disk_bytes: int
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of a host's resources.

    Args:
        memory_bytes: Bytes of memory.
        disk_bytes: Bytes of disk space in the file system of the state directory.
        pids: Number of tasks of the host: processes and threads.
    """

    memory_bytes: int
    disk_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class HeadroomRange:
    """Memory above the limit of a sandbox that its runtime needs to write or read a snapshot. (0, 0): none.

    Args:
        least_bytes: With less, the runtime is likely to be killed during the snapshot or the restore.
        most_bytes: More is of no use. Between the two, the snapshot or restore may take longer.
    """

    least_bytes: int = 0
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class HostReading:
    """Resources of the host at one moment.

    Args:
        total: All resources of the host: memory, the maximum number of tasks, and the size of the file system. If the service's control groups
            have a lower limit for memory or tasks, the total is this limit.
        free: Resources that no program uses.
        sandbox_disk_bytes: Bytes of disk space that the files of this node's sandboxes and volumes use.
    """

    total: Resources
    free: Resources
    sandbox_disk_bytes: int


class VolumeView(StrEnum):
    """Form in which a driver takes volumes."""

    TREE = "tree"
    """A folder of the host at which the volume is mounted. Several sandboxes may have the volume at once."""
    IMAGE = "image"
    """The image file of the volume, which is not mounted on the host. Only one sandbox has the volume at a time."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A volume for one sandbox, in the form of ``Driver.volume_view``.

    Args:
        slot: Number of the sandbox's volume slot in which the volume is mounted, counted from 0.
        path: Path inside the sandbox.
        read_only: True if the sandbox cannot write to the volume.
        tree: Mount point of the volume on the host; None if the driver takes images.
        image: Image file of the volume; None if the driver takes trees.
    """

    slot: int
    path: str
    read_only: bool = False
    tree: Path | None = None
    image: Path | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the limits or of the volumes of a live sandbox, not of both. A limit that is None keeps its value.

    The driver must have the capabilities that :meth:`needs` returns.

    Args:
        memory_bytes: New limit of the memory of the whole sandbox, in bytes.
        cpus: New number of cores.
        pids: New limit of processes and threads. The driver changes only the limit on the host; ``Link.set_limits`` changes the limit in the guest.
        disk_bytes: New limit of bytes that may be written on top of the root file system.
        volumes: Volumes to attach. Volumes that are attached already stay attached.
        without: Numbers of the volume slots whose volumes are detached. The change is refused while a process in the sandbox uses one of these
            volumes. Empty slots are ignored.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    volumes: tuple[Attachment, ...] = ()
    without: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.changes_volumes and any(getattr(self, name) is not None for name in _FIELDS):
            raise ValueError("a change has limits or volumes, not both")

    @property
    def changes_volumes(self) -> bool:
        """True if volumes are attached or detached."""
        return bool(self.volumes or self.without)

    def over(self, limits: Limits) -> Limits:
        """Return the limits of a sandbox after the change.

        Args:
            limits: Limits before the change.

        Raises:
            InvalidRequestError: A new limit is out of range.
        """
        return replace(limits, **{name: value for name in _FIELDS if (value := getattr(self, name)) is not None})

    def needs(self, limits: Limits) -> tuple[DriverCapability, ...]:
        """Return the capabilities that the change needs. A field whose value stays the same needs no capability.

        Args:
            limits: Limits before the change.
        """
        after = self.over(limits)
        volumes = (DriverCapability.CONFIGURE_VOLUMES,) if self.changes_volumes else ()
        return (*(capability for name, capability in _FIELDS.items() if getattr(after, name) != getattr(limits, name)), *volumes)


_FIELDS: Mapping[str, DriverCapability] = MappingProxyType(
    {
        "memory_bytes": DriverCapability.CONFIGURE_MEMORY,
        "cpus": DriverCapability.CONFIGURE_CPU,
        "pids": DriverCapability.CONFIGURE_PIDS,
        "disk_bytes": DriverCapability.CONFIGURE_DISK,
    }
)


class ByteStream(Protocol):
    """The host's side of the byte stream to one guest. Only one task at a time may receive, and only one task at a time may send."""

    async def receive(self, max_bytes: int) -> bytes:
        """Wait for bytes from the guest, and return 1 to ``max_bytes`` bytes. Return ``b""`` when the guest's side is closed."""
        ...

    def try_send(self, frame: bytes) -> bool:
        """Write one frame of at most 4,096 bytes as a whole, without blocking. Return False, and write nothing, if the frame does not fit now.

        Raises:
            BrokenPipeError: The guest's side is closed.
        """
        ...

    async def wait_writable(self) -> None:
        """Wait until :meth:`try_send` may succeed again or the guest's side is closed."""
        ...

    async def aclose(self) -> None:
        """Close the host's side of the stream. The guest keeps running. Idempotent."""
        ...


class Instance(Protocol):
    """One live sandbox.

    Attributes:
        ref: Reference to the sandbox. With it, :meth:`Driver.adopt` takes over the sandbox after a restart of the service.
    """

    ref: str

    @property
    def limits(self) -> Limits:
        """Limits that are in force now, even if an earlier service was killed while it changed the limits."""
        ...

    @property
    def hub(self) -> str | None:
        """Directory in the sandbox in which the driver mounts the volumes, each in a folder whose name is the number of the volume's slot.

        The guest binds the volumes from these folders to their paths. None: the driver itself mounts the volumes at their paths.
        """
        ...

    @property
    def has_sparse_disk(self) -> bool:
        """True if the sandbox's disk takes space on the host as it is written. False if all its space is allocated. Does not block."""
        ...

    async def connect(self) -> ByteStream:
        """Return a new byte stream to the guest.

        Raises:
            ConflictError: An earlier stream is still open. The caller must close it first.
            SandboxEndedError: The sandbox has ended.
        """
        ...

    async def configure(self, change: Change) -> None:
        """Apply a change. Either all limits of the change apply, or none of them.

        Volumes are detached first and then attached. If this fails, some of them may have changed already. The caller may repeat the change.

        Raises:
            InvalidRequestError: A value is out of range.
            UnsupportedError: A value cannot be changed on this host; the message gives the reason.
            ConflictError: The sandbox uses more than the new limit, uses a volume that would be detached, or is paused.
            SandboxEndedError: The sandbox has ended.
        """
        ...

    async def pause(self) -> None:
        """Freeze all processes of the sandbox. Needs the capability ``PAUSE``. Idempotent."""
        ...

    async def resume(self) -> None:
        """Thaw all processes of the sandbox. Does nothing if the sandbox is not paused."""
        ...

    async def snapshot_headroom(self) -> HeadroomRange:
        """Return the headroom for a snapshot of the sandbox as it is now, including headroom that an earlier operation has left.

        The driver asks nothing of the guest for this.

        Raises:
            SandboxEndedError: The sandbox has ended.
        """
        ...

    @property
    def headroom_bytes(self) -> int:
        """Bytes of memory above :attr:`limits` that the sandbox may use now; 0 when the headroom is withdrawn or the sandbox has ended.

        A snapshot or restore grants headroom. When it is complete, the driver withdraws the headroom: at once if the sandbox uses no more than its
        limit, otherwise in the background. The amount does not grow meanwhile. A sandbox that cannot be brought back to its limit within some
        minutes is ended with ``ExitReason.OOM``. After a restart of the service, an adopted sandbox reports the headroom that it still has.
        """
        ...

    async def wait_headroom_withdrawn(self) -> None:
        """Wait until :attr:`headroom_bytes` is 0 or the sandbox has ended or was destroyed. Any number of callers may wait."""
        ...

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True, headroom_bytes: int) -> int:
        """Write to disk everything that a restore needs, such as memory and files. Needs the capability ``SNAPSHOT``.

        Args:
            into: New folder for the snapshot, below the state or the cache directory. The folder appears as a whole, or not at all.
            keep_running: True to let the sandbox continue after a short pause. False to end the sandbox; the caller must still call ``destroy``.
            durable: True if the snapshot must survive a loss of power after this method has returned.
            headroom_bytes: Bytes of memory above the limits of the sandbox that the caller has reserved for the sandbox, in the range of
                :meth:`snapshot_headroom`. The driver grants the larger of this amount and of the headroom that is left from an earlier operation.

        Returns:
            Size of the snapshot on disk, in bytes.

        Raises:
            UnsupportedError: The driver does not support snapshots; the message gives the reason.
            ConflictError: ``into`` exists already.
            LimitError: ``node_disk_full``: the disk of the host is full. The sandbox continues.
            HostError: The runtime failed to write the snapshot, or the snapshot is not complete. The sandbox continues.
            SandboxEndedError: The sandbox has ended.
        """
        ...

    async def usage(self) -> Usage:
        """Return the resources that the sandbox has used so far."""
        ...

    async def wait(self) -> Exit:
        """Wait until the sandbox has ended, and return how it ended.

        Any number of callers may wait, also after the end and after :meth:`destroy`. All of them get the same value.
        """
        ...

    async def destroy(self) -> None:
        """End the sandbox and remove everything that it has on the host. Idempotent."""
        ...


class PreparedSandbox(Protocol):
    """A prepared sandbox: its root file system, cgroup, disk and link exist, and no process runs in it."""

    async def warm(self) -> None:
        """Start the processes of the runtime without a guest, and freeze them, so that :meth:`restore` takes less time. Idempotent.

        Raises:
            UnsupportedError: The driver cannot start processes of the runtime in advance.
            HostError: The runtime could not start the processes.
            SandboxEndedError: The sandbox was destroyed.
        """
        ...

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Attach volumes to free slots, before the sandbox is booted or restored. Needs the capability ``VOLUMES``.

        Raises:
            UnsupportedError: The driver cannot attach volumes.
            HostError: The host could not attach the volumes; the message gives the reason.
            SandboxEndedError: The sandbox was destroyed.
        """
        ...

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the sandbox with a new guest, and return the live sandbox.

        Raises:
            ConflictError: The sandbox was booted or restored already.
            HostError: The runtime could not start the sandbox.
            SandboxEndedError: The sandbox was destroyed, before this call or during it.
        """
        ...

    async def restore(self, snapshot: Path, spec: SandboxSpec, *, headroom_bytes: int) -> Instance:
        """Start the sandbox from a snapshot, and return the live sandbox. Needs the capability ``SNAPSHOT``.

        A snapshot can be restored any number of times. The processes in the snapshot continue from the moment at which it was taken. The guest
        sleeps until the service wakes it over the link.

        Args:
            snapshot: Folder of the snapshot.
            spec: Spec of the sandbox.
            headroom_bytes: Bytes of memory above the limits of the sandbox that the caller has reserved for the sandbox, in the range of
                :meth:`Driver.restore_headroom`. :attr:`Instance.headroom_bytes` has the amount that is not withdrawn yet.

        Raises:
            UnsupportedError: The driver does not support snapshots.
            ConflictError: ``snapshot_unusable``: the root file system, the visible limits or the build of the runtime differ between the snapshot and
                this sandbox. The message says which of them differ. The prepared sandbox can still be booted or restored.
            ConflictError: The sandbox was booted or restored already.
            HostError: The runtime could not restore the snapshot.
            SandboxEndedError: The sandbox was destroyed meanwhile.
        """
        ...

    async def destroy(self) -> None:
        """Remove everything that the prepared sandbox has on the host. Idempotent."""
        ...


class Driver(Protocol):
    """Starts, adopts and removes sandboxes with one kind of isolation.

    Attributes:
        name: Name of the driver, such as ``gvisor``.
        volume_view: Form in which the driver takes volumes.
    """

    name: str
    volume_view: VolumeView

    def probe(self) -> Capabilities:
        """Return the capabilities of the driver on this host. The first call may block for a second, so callers must use a thread."""
        ...

    def fingerprint(self) -> str:
        """Return a text that changes whenever something changes that snapshots of the driver depend on, such as the build of the runtime."""
        ...

    def max_resources(self, limits: Limits) -> Resources:
        """Return the largest amount of the host's resources that a sandbox with these limits can use. Pure.

        The amount includes the runtime and the keeper process of the sandbox.
        """
        ...

    def restorable(self, snapshot: Path) -> ProbeResult:
        """Return whether a snapshot is complete and the build of the runtime that wrote it is available on this host. Blocks while it reads files."""
        ...

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
        """Prepare a sandbox.

        Args:
            shape: Root file system and limits of the sandbox.
            snapshot: Snapshot to restore later. The sandbox then uses the build of the runtime that wrote the snapshot. None: the newest build.
        """
        ...

    async def restore_headroom(self, snapshot: Path, limits: Limits) -> HeadroomRange:
        """Return the headroom for a restore: the bytes of memory above its limit that the sandbox may use meanwhile.

        Args:
            snapshot: Folder of the snapshot. If the folder is not a complete snapshot, any range may be returned, because ``restore`` refuses the
                folder.
            limits: Limits of the sandbox into which the snapshot is restored.
        """
        ...

    async def adopt(self, ref: str) -> Instance:
        """Take over a live sandbox after a restart of the service. An attempt that failed may be repeated.

        Raises:
            NotFoundError: No sandbox with this reference is alive, or the driver lacks the capability ``ADOPT``.
            ConflictError: This driver object uses the sandbox already.
        """
        ...

    async def sweep(self, keep: Collection[str]) -> int:
        """Remove all sandboxes of this node except those in use by this driver object, and return the number of removed sandboxes.

        The service calls this method once it has adopted the sandboxes of its records, and then every hour, while it makes and removes sandboxes. A
        sandbox is in use from the beginning of ``prepare`` or ``adopt`` until it is destroyed, or until the driver gives up its removal.

        Args:
            keep: References of further sandboxes that are not removed.
        """
        ...
