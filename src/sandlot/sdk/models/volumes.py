"""Volumes and their mounts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """A volume: files that outlive the sandboxes that have it attached.

    Args:
        id: Id of the volume.
        name: Name of the volume.
        size_bytes: Largest size of its files together.
        used_bytes: Size of its files. If no sandbox has the volume attached, the size when the last one detached it.
        attached: Ids of the sandboxes that have it attached, hibernated ones included.
        created_at: Time of its creation.
    """

    id: str
    name: str
    size_bytes: int
    used_bytes: int
    attached: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume in a sandbox.

    Args:
        volume: Name or id of the volume; an id in values that the service returns.
        path: Directory in the sandbox. Not needed in ``Sandbox.create(volumes={path: Mount(…)})``, whose keys are the directories.
        read_only: True if the sandbox cannot write to the volume.
    """

    volume: str
    path: str = ""
    read_only: bool = False
