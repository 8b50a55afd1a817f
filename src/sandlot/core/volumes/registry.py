"""Records of the volumes of this node, by id and by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import structlog

from sandlot.model.access import OwnerId
from sandlot.model.errors import SandlotError
from sandlot.model.ids import VolumeId
from sandlot.model.records import VolumeRecord
from sandlot.model.repositories import VolumeRepository

_log = structlog.get_logger("sandlot.core")


class VolumeRegistry:
    """All volumes that exist on this node."""

    def __init__(self, table: VolumeRepository) -> None:
        self._table = table
        self._records: dict[VolumeId, VolumeRecord] = {}
        self._names: dict[tuple[OwnerId, str], VolumeId] = {}

    def add(self, record: VolumeRecord) -> None:
        """Add a volume."""
        self._records[record.id] = record
        self._names[record.owner, record.name] = record.id

    def remove(self, record: VolumeRecord) -> None:
        """Remove a volume."""
        self._records.pop(record.id, None)
        self._names.pop((record.owner, record.name), None)

    def get(self, id_: VolumeId) -> VolumeRecord | None:
        """Return the record of a volume, or None if there is no such volume."""
        return self._records.get(id_)

    def find_name(self, owner: OwnerId, name: str) -> VolumeId | None:
        """Return the id of an owner's volume, or None if the owner has no volume of that name."""
        return self._names.get((owner, name))

    def list(self) -> Sequence[VolumeRecord]:
        """Return all volumes, oldest first."""
        return tuple(self._records.values())

    def label(self, id_: VolumeId) -> str:
        """Return the name of a volume for error messages, or the id of a volume that was deleted."""
        record = self._records.get(id_)
        return id_ if record is None else repr(record.name)

    async def save_used_bytes(self, id_: VolumeId, used_bytes: int) -> None:
        """Record the disk space that a volume uses. A failure of the store is logged."""
        record = self._records.get(id_)
        if record is None or record.used_bytes == used_bytes:
            return
        self._records[id_] = record = replace(record, used_bytes=used_bytes)
        try:
            await self._table.save(record)
        except SandlotError as error:
            _log.warning("volume.not_recorded", volume=id_, error=str(error))
