"""The isolation seam: what only a driver can do. Exec and files are the guest's, so every driver behaves the same.

Laws:
- Every optional ability is a pair: a probe, and a method whose precondition is that probe. A yes never changes while the
  service runs; a no may become a yes once the host was mended. A method called without its ability raises
  ``UnsupportedError``.
- ``destroy`` is idempotent and complete: no process, mount, loop device, cgroup or file of the sandbox is left.
- ``sweep`` touches only what carries this state directory's node id.
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
    """What a driver may or may not be able to do on this host."""

    BOOT = "boot"
    LIMIT_MEMORY = "limit.memory"
    LIMIT_CPU = "limit.cpu"
    LIMIT_PIDS = "limit.pids"
    LIMIT_DISK = "limit.disk"
    SHOW_LIMITS = "limit.shown"
    """What programs inside read of the machine's memory (MemTotal) is their limit, not the host's."""
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
    """One answer of a probe: yes, or no and why (with the fix, for a person)."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a driver can do here, found by doing it; an ability that is absent is a no."""

    driver: str
    runtime: str
    """Version text of the runtime, for people."""
    abilities: Mapping[DriverCapability, ProbeResult]

    def can(self, ability: DriverCapability) -> bool:
        """Whether the ability is there."""
        verdict = self.abilities.get(ability)
        return verdict is not None and verdict.ok

    def why_not(self, ability: DriverCapability) -> str:
        """Why it is not."""
        verdict = self.abilities.get(ability)
        return verdict.reason if verdict is not None else f"the {self.driver} driver has no such ability"


class ExitReason(StrEnum):
    """Why a sandbox ended."""

    EXITED = "exited"
    """The guest ended by itself: asked to, or its deadline passed."""
    OOM = "oom"
    """The memory limit."""
    DISK = "disk"
    """The disk limit took the sandbox itself down (a full disk inside is an ordinary ENOSPC)."""
    KILLED = "killed"
    """``destroy`` was called, or somebody sent the runtime a signal."""
    CRASHED = "crashed"
    """The runtime failed."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a sandbox ended."""

    reason: ExitReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox has used; from its cgroup and its disk.

    Args:
        cpu_s: Seconds of processor time.
        memory_bytes: What it holds now, without the page cache that the kernel can drop at once.
        memory_peak_bytes: The most that it ever held.
        pids: Tasks of the host, the runtime's own included. What ``Limits.pids`` counts, the guest knows.
        disk_bytes: What was written on top of the image.
        oom_kills: How many of its tasks the host's kernel killed for the memory limit.
    """

    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    pids: int
    disk_bytes: int
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of what a host has.

    Args:
        memory_bytes: Memory.
        disk_bytes: Space where the state directory is.
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
        slot: Which of the sandbox's volumes it is, from 0.
        source: Where it is on the host.
        path: Where it is to be inside.
        read_only: Whether nothing can be written to it.
    """

    slot: int
    source: Path
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What to change on a live sandbox; None stays as it is. Each field has an ability of its own.

    Args:
        memory_bytes: Memory of the whole sandbox.
        cpus: Cores.
        pids: Processes and threads. The guest is told by itself (``Link.set_limits``): a driver moves the host's backstop only.
        disk_bytes: What may be written on top of the image.
        volumes: What is attached to it; what is so already stays.
        without: Slots whose volumes are detached: refused while anything inside holds anything of one of them; what is so already is done.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    volumes: tuple[Attachment, ...] = ()
    without: tuple[int, ...] = ()

    def over(self, limits: Limits) -> Limits:
        """What a sandbox of these limits has after the change.

        Raises:
            InvalidRequestError: That is out of bounds.
        """
        return replace(limits, **{name: value for name in _FIELDS if (value := getattr(self, name)) is not None})

    def needs(self, limits: Limits) -> tuple[DriverCapability, ...]:
        """What a driver must be able to do for it; a field that is so already needs nothing."""
        after = self.over(limits)
        volumes = (DriverCapability.CONFIGURE_VOLUMES,) if self.volumes or self.without else ()
        return (*(ability for name, ability in _FIELDS.items() if getattr(after, name) != getattr(limits, name)), *volumes)


_FIELDS: Mapping[str, DriverCapability] = MappingProxyType(
    {
        "memory_bytes": DriverCapability.CONFIGURE_MEMORY,
        "cpus": DriverCapability.CONFIGURE_CPU,
        "pids": DriverCapability.CONFIGURE_PIDS,
        "disk_bytes": DriverCapability.CONFIGURE_DISK,
    }
)


class ByteStream(Protocol):
    """The host's end of the link to one guest. One task receives, one task sends."""

    async def receive(self, max_bytes: int) -> bytes:
        """The next bytes, at least one; ``b""`` once the far side is gone."""
        ...

    def try_send(self, frame: bytes) -> bool:
        """Write one frame of at most 4,096 bytes whole, or nothing (False): never blocks, never splits.

        Raises:
            BrokenPipeError: The far side is gone.
        """
        ...

    async def wait_writable(self) -> None:
        """Return when :meth:`try_send` may succeed again, or the far side is gone."""
        ...

    async def aclose(self) -> None:
        """Close this end; the guest stays. Idempotent."""
        ...


class Instance(Protocol):
    """One live sandbox."""

    ref: str

    @property
    def limits(self) -> Limits:
        """What it may use now; of one that was adopted, what a change came to that a service was killed in."""
        ...

    @property
    def hub(self) -> str | None:
        """Where its volumes are inside, each in the folder of its slot's number, to be bound to its path by the guest; None where they are there."""
        ...

    async def connect(self) -> ByteStream:
        """A new byte stream to the guest; a stream opened before must be closed first."""
        ...

    async def configure(self, change: Change) -> None:
        """Change a live sandbox: all of it, or nothing. Each field is a capability.

        Raises:
            InvalidRequestError: Out of bounds.
            UnsupportedError: One of them cannot be changed here; says why.
            ConflictError: It uses more than it would be allowed, or a volume is in use, or it is paused.
            SandboxEndedError: It has ended.
        """
        ...

    async def pause(self) -> None:
        """Freeze every process of it; a capability."""
        ...

    async def resume(self) -> None:
        """Thaw it."""
        ...

    async def snapshot(self, into: Path, *, keep_running: bool, durable: bool = True) -> int:
        """Write memory and files, the runtime's build and what else a restore needs known with them; a capability.

        Args:
            into: A folder that does not exist, below the state or the cache directory: it appears whole, or not at all.
            keep_running: Whether the sandbox goes on, after a moment in which it stands still; otherwise it has ended on return, and
                ``destroy`` is still owed.
            durable: Whether it is on the disk for good on return, and survives a loss of power.

        Returns:
            Bytes that it takes on the disk.

        Raises:
            UnsupportedError: Not with this driver; says why.
            LimitError: ``disk_full``: the host's disk is. The sandbox goes on as before.
            HostError: It could not be written: the runtime failed. Likewise.
            SandboxEndedError: It has ended.
        """
        ...

    async def usage(self) -> Usage:
        """What it has used so far."""
        ...

    async def wait(self) -> Exit:
        """Return when it has ended, however. Any number of callers."""
        ...

    async def destroy(self) -> None:
        """End it and remove every trace. Idempotent."""
        ...


class PreparedSandbox(Protocol):
    """Prepared, nothing running: root file system, cgroup, disk, link."""

    async def warm(self) -> None:
        """Start the runtime's own processes with nothing in them, frozen, so that :meth:`restore` has less to do. Idempotent.

        Raises:
            UnsupportedError: Not with this driver.
            HostError: The runtime could not start them.
            SandboxEndedError: It was destroyed.
        """
        ...

    async def attach(self, volumes: Sequence[Attachment]) -> None:
        """Let it have volumes, each in a slot that has none, before it is booted or restored; a capability.

        Raises:
            UnsupportedError: Not with this driver.
            HostError: The host refused; says why.
            SandboxEndedError: It was destroyed.
        """
        ...

    async def boot(self, spec: SandboxSpec) -> Instance:
        """Start the guest."""
        ...

    async def restore(self, snapshot: Path, spec: SandboxSpec) -> Instance:
        """Start from a snapshot, as often as one likes: what it was taken of goes on, asleep until its guest is woken; a capability.

        Raises:
            UnsupportedError: Not with this driver.
            ConflictError: ``snapshot_unusable``: it was written for another root, other limits that show, or by another build of the
                runtime than this blank's; says which.
            HostError: The runtime could not.
            SandboxEndedError: It was destroyed meanwhile.
        """
        ...

    async def destroy(self) -> None:
        """Give everything back. Idempotent."""
        ...


class Driver(Protocol):
    """One way to isolate."""

    name: str

    def probe(self) -> Capabilities:
        """What this driver can do on this host. May take a second the first time; call it off the event loop."""
        ...

    def fingerprint(self) -> str:
        """Everything that its snapshots depend on."""
        ...

    def max_resources(self, limits: Limits) -> Resources:
        """The most that a sandbox of these limits can take of the host, its runtime and its keeper included. Pure."""
        ...

    def restorable(self, snapshot: Path) -> ProbeResult:
        """Whether a snapshot can be restored here: it is whole, and the build of the runtime that wrote it is at hand. Reads a small file."""
        ...

    async def prepare(self, shape: Shape, *, snapshot: Path | None = None) -> PreparedSandbox:
        """Make a blank sandbox of this shape.

        Args:
            shape: All that must be known before it is anyone's.
            snapshot: What it is going to be restored from: the build of the runtime that wrote that is taken; None is the newest.
        """
        ...

    async def adopt(self, ref: str) -> Instance:
        """Take over a live sandbox after the service restarted.

        Raises:
            NotFoundError: Nothing of that ref is alive.
        """
        ...

    async def sweep(self, keep: Collection[str]) -> int:
        """Remove everything of this node whose ref is not kept; how many were removed."""
        ...
