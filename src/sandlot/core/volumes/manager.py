"""Manager of volumes: create, get, list and delete volumes, and find the volumes of a create request.

Invariants:
- A volume is recorded before its filesystem is made, with ``ready`` false. When the filesystem is made, ``ready`` is set, and the volume exists.
  If the service is killed before ``ready`` is set, :meth:`VolumeManager.open` removes the record and the filesystem.
- Only the owner and operators can see a volume. For all other callers the volume does not exist, neither by name nor by id.
- A volume that is attached to a sandbox, hibernated sandboxes included, cannot be deleted.
- The full size of a volume is reserved on the node's disk while the volume exists, however little it contains.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog

from sandlot.core.access import quotas
from sandlot.core.ports import Clock, VolumeDisks
from sandlot.core.records.events import EventFeed
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.reservations import Purpose, Reservation, Reservations
from sandlot.core.volumes.mounter import VolumeMounter
from sandlot.core.volumes.registry import VolumeRegistry
from sandlot.host.blocking import run_in_own_thread
from sandlot.model.access import Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.ids import VOLUME_ID, NodeId, SandboxId, VolumeId, new_volume_id
from sandlot.model.ports import Resources
from sandlot.model.records import NewEvent, VolumeRecord
from sandlot.model.repositories import VolumeRepository
from sandlot.model.specs import VolumeMount, placed
from sandlot.model.volumes import DEFAULT_SIZE_BYTES, MAX_SIZE_BYTES, MIN_SIZE_BYTES
from sandlot.model.volumes import VolumeInfo as Volume

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")

_log = structlog.get_logger("sandlot.core")


def check_name(name: str) -> str:
    """Return the name of a volume if the name is valid.

    Raises:
        InvalidRequestError: The name is invalid, or has the form of a volume id.
    """
    if NAME.fullmatch(name) is None or VOLUME_ID.fullmatch(name) is not None:
        raise InvalidRequestError(
            f"The volume name {name[:64]!r} is not valid.",
            hint="Use up to 63 lower-case letters, digits, '_' and '-', starting with a letter or a digit. Do not use a volume id.",
            fields={"field": "name"},
        )
    return name


class VolumeManager:
    """All volumes of this node.

    Args:
        reservations: Reservations of this node. Each volume reserves its disk space.
    """

    def __init__(
        self,
        table: VolumeRepository,
        disks: VolumeDisks,
        volumes: VolumeRegistry,
        mounter: VolumeMounter,
        node: NodeId,
        clock: Clock,
        events: EventFeed,
        *,
        reservations: Reservations,
        registry: SandboxRegistry,
    ) -> None:
        self._table = table
        self._disks = disks
        self._node = node
        self._clock = clock
        self._events = events
        self._reservations = reservations
        self._registry = registry
        self._volumes = volumes
        self._mounter = mounter
        self._reserved: dict[str, Reservation] = {}
        """Volume id -> reservation of the volume's disk space."""
        self._admission_lock = asyncio.Lock()

    async def open(self) -> None:
        """Load the volumes of this node, and remove unfinished volumes. Call this before any other method."""
        for record in await self._table.list_by_node(self._node):
            if record.ready:
                self._add(record)
            else:
                await self._table.remove(record.id)
                _log.info("volume.incomplete_removed", volume=record.id)
        for stray in await asyncio.to_thread(self._disks.ids) - {record.id for record in self._volumes.list()}:
            await self._remove(stray)

    async def create(self, principal: Principal, *, name: str, size_bytes: int = DEFAULT_SIZE_BYTES) -> Volume:
        """Create an empty volume.

        Args:
            principal: Owner of the volume.
            name: Name that is unique among the owner's volumes.
            size_bytes: Maximum size of the content, 16 MiB to 16 TiB.

        Raises:
            InvalidRequestError: The name or the size is invalid, or the volume can never fit on this node.
            ConflictError: The owner has another volume of that name.
            LimitError: A quota is exceeded (``quota_exceeded``), or the disk is full (``node_disk_full``).
            UnavailableError: The disk has no room for the volume now (``busy``).
            HostError: The host cannot make the filesystem; the message gives the reason.
        """
        check_name(name)
        if not MIN_SIZE_BYTES <= size_bytes <= MAX_SIZE_BYTES:
            message = f"`size_bytes` is {size_bytes}; it must be from {MIN_SIZE_BYTES} to {MAX_SIZE_BYTES}."
            raise InvalidRequestError(message, fields={"field": "size_bytes"})
        return await asyncio.shield(asyncio.ensure_future(self._create(principal, name, size_bytes)))

    async def get(self, principal: Principal, name_or_id: str) -> Volume:
        """Return a volume by its id. The caller's own volumes are also found by their names.

        Raises:
            NotFoundError: The volume does not exist or belongs to another owner (``volume_not_found``).
        """
        return await self._describe(self._find(principal, name_or_id))

    async def list(self, principal: Principal) -> Sequence[Volume]:
        """Return the caller's volumes, oldest first. Operators see the volumes of all owners."""
        return [await self._describe(record) for record in self._volumes.list() if principal.sees(record.owner)]

    async def delete(self, principal: Principal, name_or_id: str) -> None:
        """Delete a volume with its content.

        Raises:
            NotFoundError: The volume does not exist or belongs to another owner (``volume_not_found``).
            ConflictError: The volume is attached to a sandbox.
        """
        record = self._find(principal, name_or_id)
        if sandboxes := self._sandboxes_with(record.id):
            raise ConflictError(
                f"Volume {record.name!r} is attached to {len(sandboxes)} sandbox{'es' if len(sandboxes) > 1 else ''}: {', '.join(sandboxes[:3])}.",
                hint="Detach the volume from these sandboxes, or kill the sandboxes.",
                fields={"volume": record.id, "sandboxes": list(sandboxes[:100])},
            )
        self._volumes.remove(record)
        try:
            await self._table.remove(record.id, self._event("volume.deleted", record))
        except BaseException:
            self._add(record)
            raise
        self._events.notify(record.owner)
        _log.info("volume.deleted", volume=record.id)
        await asyncio.shield(asyncio.ensure_future(self._remove(record.id)))

    def resolve(self, principal: Principal, mounts: Sequence[VolumeMount]) -> tuple[VolumeMount, ...]:
        """Return the mounts with the id of each volume instead of its name, and with a volume slot assigned to each volume.

        The method does not ``await``. If the caller assigns the mounts to a sandbox without an ``await`` in between, no volume can be deleted
        meanwhile.

        Raises:
            NotFoundError: The volume does not exist or belongs to another owner (``volume_not_found``).
            InvalidRequestError: A volume is mounted at two paths.
        """
        ids = [self._find(principal, mount.volume).id for mount in mounts]
        found = placed([replace(mount, volume=id_, requested_as=mount.requested_as or mount.volume) for mount, id_ in zip(mounts, ids, strict=True)])
        for position, mount in enumerate(found):
            if any(other.volume == mount.volume for other in found[:position]):
                raise InvalidRequestError(
                    f"Volume {mount.requested_as!r} is mounted at two paths.", hint="Mount each volume once.", fields={"field": "volumes"}
                )
        return found

    async def _create(self, principal: Principal, name: str, size_bytes: int) -> Volume:
        record = VolumeRecord(
            id=new_volume_id(self._node), node=self._node, owner=principal.owner, name=name, size_bytes=size_bytes, created_at=self._clock.now()
        )
        needed = self._resources(record)
        async with self._admission_lock:  # otherwise two concurrent requests could both pass the quota check before either volume is recorded
            if (other := self._volumes.find_name(principal.owner, name)) is not None:
                raise ConflictError(
                    f"A volume named {name!r} exists already: {other}.",
                    hint="Choose another name, or delete that volume first.",
                    fields={"name": name, "volume": other},
                )
            quotas.check_stored(principal.quota, "volume", *await self._table.totals(principal.owner), size_bytes)
            reading = await self._reservations.make_room(needed)
            self._reserved[record.id] = self._reservations.reserve(Purpose.VOLUME, needed, reading, owner=principal.owner)
            try:
                await self._table.save(record)
            except BaseException:
                self._reserved.pop(record.id).release()
                raise
        try:
            await run_in_own_thread(self._disks.make, record.id, size_bytes)
            record = replace(record, ready=True)
            await self._table.save(record, self._event("volume.created", record, size_bytes=size_bytes))
        except BaseException as error:
            await self._discard(record)
            if isinstance(error, OSError):
                raise HostError(
                    f"Volume {name!r} cannot be created: {error.strerror or error}.",
                    hint="Check the free space of the data directory.",
                ) from error
            raise
        self._add(record)
        self._events.notify(record.owner)
        _log.info("volume.created", volume=record.id, size_bytes=size_bytes)
        return await self._describe(record)

    async def _discard(self, record: VolumeRecord) -> None:
        """Remove the record and the filesystem of a volume that could not be created. If this fails, the next start of the service removes them."""
        try:
            await self._table.remove(record.id)
        except SandlotError as error:
            _log.warning("volume.record_not_removed", volume=record.id, error=str(error))
        await self._remove(record.id)

    async def _remove(self, volume: str) -> None:
        """Remove the filesystem of a volume whose record is removed, and release its reservation."""
        try:
            await self._mounter.remove(volume)
        except OSError as error:
            _log.warning("volume.not_removed", volume=volume, error=str(error), detail="the next start of the service retries the removal")
            return
        if (reservation := self._reserved.pop(volume, None)) is not None:
            reservation.release()

    async def _describe(self, record: VolumeRecord) -> Volume:
        used = await asyncio.to_thread(self._disks.used_bytes, record.id) if self._mounter.is_used(record.id) else None
        return Volume(
            id=record.id,
            name=record.name,
            owner=record.owner,
            size_bytes=record.size_bytes,
            used_bytes=record.used_bytes if used is None else used,
            created_at=record.created_at,
            attached=tuple(self._sandboxes_with(record.id)),
        )

    def _find(self, principal: Principal, name_or_id: str) -> VolumeRecord:
        id_ = VolumeId(name_or_id) if VOLUME_ID.fullmatch(name_or_id) else self._volumes.find_name(principal.owner, name_or_id)
        record = None if id_ is None else self._volumes.get(id_)
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no volume {name_or_id[:64]!r}.",
                code=ErrorCode.VOLUME_NOT_FOUND,
                hint="List the volumes to find their ids and names. A folder of a machine cannot be mounted: upload its files.",
                fields={"volume": name_or_id[:64]},
            )
        return record

    def _sandboxes_with(self, volume: VolumeId) -> Sequence[SandboxId]:
        return [sandbox for sandbox, mounts in self._registry.mounts().items() if any(mount.volume == volume for mount in mounts)]

    def _resources(self, record: VolumeRecord) -> Resources:
        return Resources(memory_bytes=0, disk_bytes=self._disks.max_disk_bytes(record.size_bytes), pids=0)

    def _add(self, record: VolumeRecord) -> None:
        self._volumes.add(record)
        if record.id not in self._reserved:
            self._reserved[record.id] = self._reservations.record(Purpose.VOLUME, self._resources(record), owner=record.owner)

    def _event(self, type_: str, record: VolumeRecord, **data: object) -> NewEvent:
        return NewEvent(type_, self._clock.now(), record.owner, None, {"volume": record.id, "name": record.name, **data})
