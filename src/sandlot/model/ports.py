"""The interface of drivers, which isolate sandboxes. The guest starts processes and reads files, so these behave the same with every driver.

Invariants:
- Each optional capability has a probe and a method that needs it. While the service runs, a capability never disappears, but a missing one may appear
  after the host was repaired. A method that is called without its capability raises ``UnsupportedError``.
- ``destroy`` is idempotent and complete: no process, mount, loop device, cgroup or file of the sandbox is left.
- ``sweep`` changes only resources whose names contain the node id of this state directory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from sandlot.model.specs import Limits, SandboxSpec, Shape


class DriverCapability(StrEnum):
    """Optional capability of a driver on this host."""

    BOOT = "boot"
    LIMIT_MEMORY = "limit.memory"
    LIMIT_CPU = "limit.cpu"
    LIMIT_PIDS = "limit.pids"
    LIMIT_DISK = "limit.disk"
    SHOW_LIMITS = "limit.shown"
    """Programs inside see the sandbox's memory limit as the memory of the machine (MemTotal), not the host's memory."""
    PAUSE = "pause"
    SNAPSHOT = "snapshot"
    CONFIGURE_MEMORY = "configure.memory"
    CONFIGURE_CPU = "configure.cpu"
    CONFIGURE_PIDS = "configure.pids"
    CONFIGURE_DISK = "configure.disk"
    CONFIGURE_VOLUMES = "configure.volumes"
    VOLUMES = "volumes"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of one probe.

    Args:
        ok: True if the capability is available.
        reason: Reason and fix for people, if the capability is missing.
    """

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a driver on this host, found by trying them.

    Args:
        driver: Name of the driver.
        runtime: Version of the runtime, for people.
        results: Capability -> result of its probe. A capability without a result is missing.
    """

    driver: str
    runtime: str
    results: Mapping[DriverCapability, ProbeResult]

    def can(self, capability: DriverCapability) -> bool:
        """Return whether a capability is available."""
        result = self.results.get(capability)
        return result is not None and result.ok

    def why_not(self, capability: DriverCapability) -> str:
        """Return the reason why a capability is missing."""
        result = self.results.get(capability)
        return f"the {self.driver} driver does not support {capability}" if result is None else result.reason


class ExitReason(StrEnum):
    """Reason why a sandbox ended."""

    EXITED = "exited"
    """The guest ended on request or at its deadline."""
    OOM = "oom"
    """The sandbox exceeded its memory limit."""
    DISK = "disk"
    """The disk limit ended the sandbox itself. A full disk inside the sandbox is an ordinary ENOSPC."""
    KILLED = "killed"
    """``destroy`` was called, or the runtime received a signal."""
    CRASHED = "crashed"
    """The runtime failed."""


@dataclass(frozen=True, slots=True)
class Exit:
    """End of a sandbox.

    Args:
        reason: Reason of the end.
        detail: Details for people; may be empty.
    """

    reason: ExitReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a sandbox has used, from its cgroup and its disk.

    Args:
        cpu_s: Seconds of processor time.
        memory_bytes: Memory in use now, without the page cache that the kernel can drop at once.
        memory_peak_bytes: Largest memory use so far.
        pids: Tasks of the host, including those of the runtime. The guest knows the number that ``Limits.pids`` limits.
        disk_bytes: Bytes written on top of the root file system.
        oom_kills: Tasks of the sandbox that the host's kernel killed because of the memory limit.
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
        memory_bytes: Memory.
        disk_bytes: Disk space in the file system of the state directory.
        pids: Tasks of the host: processes and threads.
    """

    memory_bytes: int
    disk_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class HostReading:
    """Resources of the host at one moment.

    Args:
        total: All resources: memory within the limit that the service was started with, the size of the file system, the largest number of
            tasks.
        free: Resources that no program uses.
        sandbox_disk_bytes: Disk space that the sandboxes of this node have written so far.
    """

    total: Resources
    free: Resources
    sandbox_disk_bytes: int


@dataclass(frozen=True, slots=True)
class Attachment:
    """A volume that is mounted on the host, for one sandbox.

    Args:
        slot: Slot of the sandbox that the volume has, from 0.
        source: Mount point on the host.
        path: Path inside the sandbox.
        read_only: True if the sandbox cannot write to the volume.
    """

    slot: int
    source: Path
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a live sandbox. None keeps a value. Each field needs its own capability.

    Args:
        memory_bytes: Memory of the whole sandbox.
        cpus: Cores.
        pids: Processes and threads. The driver changes only the host's limit; ``Link.set_limits`` changes the guest's.
        disk_bytes: Bytes that may be written on top of the root file system.
        volumes: Volumes to attach. Volumes that are attached already stay.
        without: Slots whose volumes are detached. The change is refused while a process inside uses one of them. Empty slots are ignored.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    volumes: tuple[Attachment, ...] = ()
    without: tuple[int, ...] = ()

    def over(self, limits: Limits) -> Limits:
        """Return the limits of a sandbox after the change.

        Args:
            limits: Limits before the change.

        Raises:
            InvalidRequestError: A new limit is out of range.
        """
        return replace(limits, **{name: value for name in _FIELDS if (value := getattr(self, name)) is not None})

    def needs(self, limits: Limits) -> tuple[DriverCapability, ...]:
        """Return the capabilities that the change needs. A value that stays the same needs none."""
        after = self.over(limits)
        volumes = (DriverCapability.CONFIGURE_VOLUMES,) if self.volumes or self.without else ()
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
    """The host's end of the byte stream to one guest. One task receives, one task sends."""

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes, at least one. Return ``b""`` when the other end is closed."""
        ...

    def try_send(self, frame: bytes) -> bool:
        """Write one frame of at most 4,096 bytes without blocking. Return False if nothing was written; a frame is never split.

        Raises:
            BrokenPipeError: The other end is closed.
        """
        ...

    async def wait_writable(self) -> None:
        """Return when :meth:`try_send` may succeed again, or the other end is closed."""
        ...

    async def aclose(self) -> None:
        """Close this end. The guest keeps running. Idempotent."""
        ...


class Instance(Protocol):
    """One live sandbox.

    Attributes:
        ref: Reference with which a later service can adopt the sandbox.
    """

    ref: str

    @property
    def limits(self) -> Limits:
        """Current limits. If a service was killed during a change, an adopted sandbox has the limits in which the change resulted."""
        ...

    @property
    def hub(self) -> str | None:
        """Directory inside with the volumes, each in a folder named after its slot, from which the guest binds them to their paths.

        None: the driver itself mounts the volumes at their paths.
        """
        ...

    async def connect(self) -> ByteStream:
        """Return a new byte stream to the guest. An earlier stream must be closed first."""
        ...

    async def configure(self, change: Change) -> None:
        """Apply a change as a whole, or not at all. Each field of the change needs its own capability.

        Raises:
            InvalidRequestError: A value is out of range.
            UnsupportedError: A value cannot be changed on this host; the message gives the reason.
            ConflictError: The sandbox uses more than the new limit, uses a volume that would be detached, or is paused.
            SandboxEndedError: The sandbox has ended.
        """
        ...

    async def pause(self) -> None:
        """Freeze all processes of the sandbox. Needs a capability."""
        ...

    async def resume(self) -> None:
        """Thaw all processes of the sandbox."""
        ...

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True) -> int:
        """Write memory and files to disk, with the build of the runtime and everything else that a restore needs. Needs a capability.

        Args:
            into: Folder that does not exist, below the state or the cache directory. It appears as a whole, or not at all.
            keep_running: True: the sandbox continues after a short pause. False: the sandbox has ended on return, and ``destroy`` must still
                be called.
            durable: True if the snapshot must survive a loss of power from the return on.

        Returns:
            Size of the snapshot on disk, in bytes.

        Raises:
            UnsupportedError: The driver has no snapshots; the message gives the reason.
            LimitError: ``disk_full``: the disk of the host is full. The sandbox continues.
            HostError: The runtime failed to write the snapshot. The sandbox continues.
            SandboxEndedError: The sandbox has ended.
        """
        ...

    async def usage(self) -> Usage:
        """Return the resources that the sandbox has used so far."""
        ...

    async def wait(self) -> Exit:
        """Wait for the end of the sandbox and return how it ended. Any number of callers may wait."""
        ...

    async def destroy(self) -> None:
        """End the sandbox and remove everything that it has on the host. Idempotent."""
        ...


class PreparedSandbox(Protocol):
    """A prepared sandbox: root file system, cgroup, disk and link exist, and nothing runs."""

    async def warm(self) -> None:
        """Start the runtime's own processes, empty and frozen, so that :meth:`restore` has less to do. Idempotent.

        Raises:
            UnsupportedError: The driver cannot start them in advance.
            HostError: The runtime could not start them.
            SandboxEndedError: The sandbox was destroyed.
        """
        ...

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Attach volumes to free slots, before the sandbox is booted or restored. Needs a capability.

        Raises:
            UnsupportedError: The driver cannot attach volumes.
            HostError: The host refused; the message gives the reason.
            SandboxEndedError: The sandbox was destroyed.
        """
        ...

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the guest."""
        ...

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> Instance:
        """Start the sandbox from a snapshot, which can be restored any number of times. Optional (``DriverCapability.SNAPSHOT``).

        Processes continue where the snapshot was taken, and the guest is quiesced until it is woken.

        Raises:
            UnsupportedError: The driver has no snapshots.
            ConflictError: ``snapshot_unusable``: the snapshot's root file system, visible limits or runtime build differ from those of this
                sandbox. The message says which.
            HostError: The runtime could not restore the snapshot.
            SandboxEndedError: The sandbox was destroyed meanwhile.
        """
        ...

    async def destroy(self) -> None:
        """Remove everything that the prepared sandbox has on the host. Idempotent."""
        ...


class Driver(Protocol):
    """One kind of isolation.

    Attributes:
        name: Name of the driver, such as ``gvisor``.
    """

    name: str

    def probe(self) -> Capabilities:
        """Return the capabilities of the driver on this host. The first call may take a second; call it in a thread."""
        ...

    def fingerprint(self) -> str:
        """Return a text that changes with everything that the driver's snapshots depend on."""
        ...

    def max_resources(self, limits: Limits) -> Resources:
        """Return the most that a sandbox of these limits can use of the host, including its runtime and its keeper process. Pure."""
        ...

    def restorable(self, snapshot: Path) -> ProbeResult:
        """Return whether a snapshot is complete and its build of the runtime is available on this host. Reads a small file."""
        ...

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
        """Prepare a sandbox.

        Args:
            shape: Everything that must be known before the sandbox has an owner.
            snapshot: Snapshot to restore later; the build of the runtime that wrote it is used. None: the newest build.
        """
        ...

    async def adopt(self, ref: str) -> Instance:
        """Take over a live sandbox after a restart of the service.

        Raises:
            NotFoundError: No sandbox with this reference is alive.
        """
        ...

    async def sweep(self, keep: Collection[str]) -> int:
        """Remove everything of this node except the sandboxes with these references, and return the number of removed sandboxes."""
        ...
