"""The service: version, drivers and capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """Version of a service.

    Args:
        version: Version of Sandlot.
        generation: Version of the guest protocol and of the images.
        node: Id of the node; ids of sandboxes contain it.
        pid: Process id of the service.
    """

    version: str
    generation: int = 0
    node: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class DriverCapability:
    """Support of one capability by a driver on this host.

    Args:
        ok: True if the capability is available.
        reason: Reason if it is not, or its restrictions.
    """

    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """Build of the runtime of a driver.

    Args:
        name: Name of the program.
        version: Version that the program reports.
        build_date: Date in the version, such as ``2024-07-29``; empty if the version has none.
        source: Origin, such as a Debian package with its version.
    """

    name: str
    version: str = ""
    build_date: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class DriverInfo:
    """A driver of a service.

    Args:
        driver: Name of the driver, the value of ``isolation``.
        runtime: Build of its runtime; None if no usable build is installed.
        abilities: Support by name of the capability.
    """

    driver: str
    runtime: RuntimeInfo | None = None
    abilities: Mapping[str, DriverCapability] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts of the resources of a node.

    Args:
        memory_bytes: Memory.
        disk_bytes: Disk space.
        pids: Processes and threads.
    """

    memory_bytes: int
    disk_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class CapacityInfo:
    """Resources of a node.

    Args:
        allocatable: Resources for all sandboxes together.
        reserved: Part that sandboxes have reserved.
        available: Part that new sandboxes can reserve.
        sandboxes: Number of live sandboxes.
        max_sandboxes: Largest number of live sandboxes.
    """

    allocatable: Resources
    reserved: Resources
    available: Resources
    sandboxes: int
    max_sandboxes: int


@dataclass(frozen=True, slots=True)
class ServiceStopResult:
    """A service that is stopping.

    Args:
        pid: Process id of the service.
        sandboxes: Number of sandboxes that keep running.
    """

    pid: int
    sandboxes: int = 0
