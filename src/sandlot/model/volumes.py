"""Volumes as callers of the node see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandlot.model.access import OwnerId
from sandlot.model.ids import SandboxId, VolumeId
from sandlot.model.specs import GIB, MIB

MIN_SIZE_BYTES: Final = 16 * MIB

MAX_SIZE_BYTES: Final = 16 * 1024 * GIB

DEFAULT_SIZE_BYTES: Final = GIB


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """The current state of a volume.

    Args:
        name: Name that is unique among the owner's volumes.
        owner: Owner of the volume.
        size_bytes: Maximum size of the content.
        used_bytes: Current size of the content. If the volume is not mounted, the size when it was unmounted.
        created_at: Time at which the volume was requested.
        attached: Ids of the sandboxes to which the volume is attached, hibernated sandboxes included.
    """

    id: VolumeId
    name: str
    owner: OwnerId
    size_bytes: int
    used_bytes: int
    created_at: datetime
    attached: tuple[SandboxId, ...]
