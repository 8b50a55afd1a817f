"""One volume as it is told of; what may be asked for of one; and which of a sandbox's places each of its volumes has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from sandlot.model.access import OwnerId
from sandlot.model.errors import InvalidRequestError
from sandlot.model.ids import VOLUME_ID, SandboxId, VolumeId
from sandlot.model.specs import GIB, MIB, VolumeMount

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
LEAST_BYTES: Final = 16 * MIB
MOST_BYTES: Final = 16 * 1024 * GIB
DEFAULT_BYTES: Final = GIB


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume, as it is at this moment.

    Args:
        id: Its id.
        name: What its owner calls it.
        owner: Whose it is.
        size_bytes: What may be written to it.
        used_bytes: What was.
        created_at: When it was asked for.
        attached: The ids of the sandboxes that have it, hibernated ones included.
    """

    id: VolumeId
    name: str
    owner: OwnerId
    size_bytes: int
    used_bytes: int
    created_at: datetime
    attached: tuple[SandboxId, ...]


def check_name(name: str) -> str:
    """A name for a volume. Pure.

    Raises:
        InvalidRequestError: It is none, or is an id.
    """
    if NAME.fullmatch(name) is None or VOLUME_ID.fullmatch(name) is not None:
        raise InvalidRequestError(
            f"{name[:64]!r} is no name for a volume.",
            hint="Use up to 63 lower-case letters, digits, '_' and '-', beginning with a letter or a digit.",
            fields={"field": "name"},
        )
    return name


def placed(mounts: Sequence[VolumeMount]) -> tuple[VolumeMount, ...]:
    """The same, each in a slot of its own: those that have one keep it, because the memory of a sandbox remembers where its volumes were. Pure."""
    taken = {mount.slot for mount in mounts}
    free = iter(slot for slot in range(len(mounts) + len(taken)) if slot not in taken)
    return tuple(mount if mount.slot is not None else replace(mount, slot=next(free)) for mount in mounts)


def slots(mounts: Sequence[VolumeMount]) -> Iterator[tuple[int, VolumeMount]]:
    """Each with its slot. Pure."""
    yield from ((mount.slot or 0, mount) for mount in placed(mounts))
