"""Volumes: filesystems that outlive sandboxes. Create, get, list and delete volumes, and mount them on the host for sandboxes.

Invariants:
- A volume is recorded before its filesystem is made, with ``ready`` false. When the filesystem is made, ``ready`` is set, and the volume exists.
  If the service is killed before ``ready`` is set, :meth:`VolumeManager.open` removes the record and the filesystem.
- Only the owner and operators can see a volume. For all other callers the volume does not exist, neither by name nor by id.
- A volume is mounted once on the host for all sandboxes that use it: from before the first sandbox sees the volume until the last of these
  sandboxes has ended or is hibernated. All these sandboxes share the volume's files and disk space.
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
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.ports import Clock, VolumeDisks
from sandlot.core.records.events import EventFeed
from sandlot.core.registry import SandboxRegistry
from sandlot.core.resources.allocation import Allocation
from sandlot.core.resources.reservations import Purpose, Reservation, Reservations
from sandlot.host.blocking import run_in_own_thread
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.ids import VOLUME_ID, NodeId, SandboxId, VolumeId, new_volume_id
from sandlot.model.ports import Attachment, Resources, VolumeView
from sandlot.model.records import NewEvent, VolumeRecord
from sandlot.model.repositories import VolumeRepository
from sandlot.model.specs import VolumeMount, placed, slots
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

    Attributes:
        tasks: Tasks that unmount volumes. Wait for these tasks when the service stops. Volumes of sandboxes that keep running stay mounted.
    """

    def __init__(
        self,
        table: VolumeRepository,
        disks: VolumeDisks,
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
        self._volumes: dict[VolumeId, VolumeRecord] = {}
        self._names: dict[tuple[OwnerId, str], VolumeId] = {}
        self._users: dict[VolumeId, set[Allocation | SandboxId]] = {}
        """Volume -> allocations of sandboxes whose processes may use the volume. The volume is mounted while there is one.

        A sandbox whose driver is missing has no allocation and is represented by its id."""
        self._reserved: dict[str, Reservation] = {}
        """Volume id -> reservation of the volume's disk space."""
        self._mount_locks = KeyedLock()
        """Locks by volume id. Mounting, unmounting and removing a volume hold the lock of the volume."""
        self._admission_lock = asyncio.Lock()
        self.tasks = TaskSet("volume.internal_error")

    async def open(self) -> None:
        """Load the volumes of this node, and remove unfinished volumes. Call this before any other method."""
        for record in await self._table.list_by_node(self._node):
            if record.ready:
                self._add(record)
            else:
                await self._table.remove(record.id)
                _log.info("volume.incomplete_removed", volume=record.id)
        for stray in await asyncio.to_thread(self._disks.ids) - set(self._volumes):
            await self._remove(stray)

    def hold(self, holder: Allocation | SandboxId, mounts: Sequence[VolumeMount]) -> None:
        """Mark volumes as used by a sandbox, so that they stay mounted. Called for each recovered sandbox that is not hibernated.

        Args:
            holder: Allocation of the sandbox, whose release unmounts the volumes; or the id of a sandbox whose driver is missing.
            mounts: The volumes.
        """
        for mount in mounts:
            self._users.setdefault(VolumeId(mount.volume), set()).add(holder)
        if isinstance(holder, Allocation):
            holder.also_release(self.release)

    def unmount_unused(self) -> None:
        """Unmount all unused volumes in the background. Call this method once, after :meth:`hold` was called for all sandboxes."""
        for volume in self._volumes:
            if not self._users.get(volume):
                self.tasks.spawn(self._unmount(volume))

    async def create(self, principal: Principal, *, name: str, size_bytes: int = DEFAULT_SIZE_BYTES) -> Volume:
        """Create an empty volume.

        Args:
            principal: Owner of the volume.
            name: Name that is unique among the owner's volumes.
            size_bytes: Maximum size of the content, 16 MiB to 16 TiB.

        Raises:
            InvalidRequestError: The name or the size is invalid, or the volume can never fit on this node.
            ConflictError: The owner has another volume of that name.
            LimitError: A quota is exceeded (``quota_exceeded``), or the disk is full (``disk_full``).
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
        return [await self._describe(record) for record in tuple(self._volumes.values()) if principal.sees(record.owner)]

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
        self._forget(record)
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

    async def attach(self, allocation: Allocation, mounts: Sequence[VolumeMount]) -> tuple[Attachment, ...]:
        """Mount volumes of a sandbox on the host, unless its driver takes images. They stay mounted until :meth:`release` is called for them.

        Raises:
            ConflictError: Another sandbox uses a volume, and one of the two drivers takes images (``conflict``).
            HostError: A volume cannot be mounted; the message gives the reason.
        """
        self.hold(allocation, mounts)
        for mount in mounts:
            self._check_shared(allocation, VolumeId(mount.volume))
        takes_images = allocation.driver.volume_view is VolumeView.IMAGE
        attachments = []
        for slot, mount in slots(mounts):
            volume = VolumeId(mount.volume)
            async with self._mount_locks.hold(volume):
                try:
                    if takes_images:  # the sandbox that used the volume before may have left it mounted
                        await run_in_own_thread(self._disks.unmount, volume)
                    tree = None if takes_images else await run_in_own_thread(self._disks.mount, volume)
                except OSError as error:
                    raise HostError(
                        f"Volume {self._name(volume)} cannot be mounted: {error.strerror or error}.",
                        hint="Look for errors in the host's kernel log (dmesg), and repair the filesystem with e2fsck.",
                        fields={"volume": volume},
                    ) from error
            image = self._disks.image(volume) if takes_images else None
            attachments.append(Attachment(slot=slot, path=mount.path, read_only=mount.read_only, tree=tree, image=image))
        return tuple(attachments)

    def release(self, allocation: Allocation, *only: str) -> None:
        """Unmount volumes that a sandbox no longer uses, in the background. Volumes that another sandbox uses stay mounted. Idempotent.

        Args:
            allocation: Allocation of a sandbox whose processes are dead, or from which the volumes were detached.
            only: Ids of the volumes. No ids: all volumes of the sandbox.
        """
        for volume, users in tuple(self._users.items()):
            if allocation in users and (not only or volume in only):
                users.discard(allocation)
                if not users:
                    self.tasks.spawn(self._unmount(volume))

    def _check_shared(self, allocation: Allocation, volume: VolumeId) -> None:
        """Refuse a volume that two sandboxes would use of which one has its image: a filesystem must not be mounted by two kernels."""
        others = self._users[volume] - {allocation}
        users = [user for user in (allocation, *others) if isinstance(user, Allocation)]
        if others and any(user.driver.volume_view is VolumeView.IMAGE for user in users):
            raise ConflictError(
                f"Volume {self._name(volume)} is used by another sandbox.",
                code=ErrorCode.CONFLICT,
                hint="Detach the volume from the other sandbox first: one of the two isolations cannot share volumes.",
                fields={"volume": volume},
            )

    async def _create(self, principal: Principal, name: str, size_bytes: int) -> Volume:
        record = VolumeRecord(
            id=new_volume_id(self._node), node=self._node, owner=principal.owner, name=name, size_bytes=size_bytes, created_at=self._clock.now()
        )
        needed = self._resources(record)
        async with self._admission_lock:  # otherwise two concurrent requests could both pass the quota check before either volume is recorded
            if (other := self._names.get((principal.owner, name))) is not None:
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
        async with self._mount_locks.hold(volume):
            try:
                await run_in_own_thread(self._disks.remove, volume)
            except OSError as error:
                _log.warning("volume.not_removed", volume=volume, error=str(error), detail="the next start of the service retries the removal")
                return
        if (reservation := self._reserved.pop(volume, None)) is not None:
            reservation.release()

    async def _unmount(self, volume: VolumeId) -> None:
        async with self._mount_locks.hold(volume):
            if self._users.get(volume):
                return
            self._users.pop(volume, None)
            try:
                used = await run_in_own_thread(self._disks.used_bytes, volume)
                await run_in_own_thread(self._disks.unmount, volume)
            except OSError as error:
                _log.warning("volume.not_unmounted", volume=volume, error=str(error))
                return
        record = self._volumes.get(volume)
        if record is not None and used is not None and used != record.used_bytes:
            self._volumes[volume] = record = replace(record, used_bytes=used)
            try:
                await self._table.save(record)
            except SandlotError as error:
                _log.warning("volume.not_recorded", volume=volume, error=str(error))

    async def _describe(self, record: VolumeRecord) -> Volume:
        used = await asyncio.to_thread(self._disks.used_bytes, record.id) if self._users.get(record.id) else None
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
        id_ = VolumeId(name_or_id) if VOLUME_ID.fullmatch(name_or_id) else self._names.get((principal.owner, name_or_id))
        record = None if id_ is None else self._volumes.get(id_)
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no volume {name_or_id[:64]!r}.",
                code=ErrorCode.VOLUME_NOT_FOUND,
                hint="List the volumes to find their ids and names.",
                fields={"volume": name_or_id[:64]},
            )
        return record

    def _sandboxes_with(self, volume: VolumeId) -> Sequence[SandboxId]:
        return [sandbox for sandbox, mounts in self._registry.mounts().items() if any(mount.volume == volume for mount in mounts)]

    def _name(self, volume: VolumeId) -> str:
        record = self._volumes.get(volume)
        return volume if record is None else repr(record.name)

    def _resources(self, record: VolumeRecord) -> Resources:
        return Resources(memory_bytes=0, disk_bytes=self._disks.max_disk_bytes(record.size_bytes), pids=0)

    def _add(self, record: VolumeRecord) -> None:
        self._volumes[record.id] = record
        self._names[record.owner, record.name] = record.id
        if record.id not in self._reserved:
            self._reserved[record.id] = self._reservations.record(Purpose.VOLUME, self._resources(record), owner=record.owner)

    def _forget(self, record: VolumeRecord) -> None:
        self._volumes.pop(record.id, None)
        self._names.pop((record.owner, record.name), None)

    def _event(self, type_: str, record: VolumeRecord, **data: object) -> NewEvent:
        return NewEvent(type_, self._clock.now(), record.owner, None, {"volume": record.id, "name": record.name, **data})
