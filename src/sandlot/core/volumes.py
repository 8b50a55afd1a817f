"""Volumes: file systems of users that outlive sandboxes. Create, get, list and delete them, and mount them for sandboxes.

Invariants:
- A volume is recorded as an intent first. It exists once its file system is made and its record says so. :meth:`VolumeManager.open` removes
  what a kill leaves in between.
- A volume is visible to its owner only, and to operators. For all other callers it does not exist, by name or by id.
- A file system is mounted once on the host, however many sandboxes use it, from before the first sandbox sees it until the last has ended or
  is hibernated. The sandboxes share it like processes of one machine, and its size limits all of them together.
- A volume that a sandbox has, also a hibernated one, is not deleted.
- The full size of a volume is reserved on the node's disk while the volume exists, however little it contains.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import structlog

from sandlot.core.access import quotas
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.node.reservations import Reservations
from sandlot.core.ports import Clock, VolumeDisks
from sandlot.core.records.events import EventFeed
from sandlot.core.registry import SandboxRegistry
from sandlot.host.blocking import run_in_own_thread
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.ids import VOLUME_ID, NodeId, SandboxId, VolumeId, new_volume_id
from sandlot.model.ports import Attachment, Resources
from sandlot.model.records import NewEvent, VolumeRecord
from sandlot.model.specs import GIB, MIB, VolumeMount, placed, slots
from sandlot.model.storage import VolumeRepository

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
LEAST_BYTES: Final = 16 * MIB
MOST_BYTES: Final = 16 * 1024 * GIB
DEFAULT_BYTES: Final = GIB

_log = structlog.get_logger("sandlot.core")


@dataclass(frozen=True, slots=True)
class Volume:
    """The current state of a volume.

    Args:
        id: Id of the volume.
        name: Name that is unique among the owner's volumes.
        owner: Owner of the volume.
        size_bytes: Maximum size of its content.
        used_bytes: Current size of its content; of an unmounted volume, the size when it was last mounted.
        created_at: Time of the create request.
        attached: Ids of the sandboxes that have the volume, hibernated ones included.
    """

    id: VolumeId
    name: str
    owner: OwnerId
    size_bytes: int
    used_bytes: int
    created_at: datetime
    attached: tuple[SandboxId, ...]


def check_name(name: str) -> str:
    """Return the name of a volume if it is valid.

    Raises:
        InvalidRequestError: The name is invalid, or is an id.
    """
    if NAME.fullmatch(name) is None or VOLUME_ID.fullmatch(name) is not None:
        raise InvalidRequestError(
            f"The volume name {name[:64]!r} is not valid.",
            hint="Use up to 63 lower-case letters, digits, '_' and '-', starting with a letter or a digit.",
            fields={"field": "name"},
        )
    return name


class VolumeManager:
    """All volumes of this node.

    Args:
        table: Records of the volumes.
        disks: File systems of the volumes.
        node: Id of this node.
        clock: Clock of the service.
        events: Feed to notify of committed events.
        reservations: Reservations of this node; each volume reserves its disk space.
        registry: Live sandboxes, for the volumes that they have.
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
        self._users: dict[VolumeId, set[SandboxId]] = {}
        """Sandboxes whose processes may see a volume. The volume is mounted while there is one."""
        self._mount_locks = KeyedLock()
        """By volume id: one task at a time mounts, unmounts or removes a volume."""
        self._admission_lock = asyncio.Lock()
        self._tasks = TaskSet("volume.defect")

    async def open(self) -> None:
        """Load the volumes of an earlier service and remove unfinished ones. Call this before any other method.

        Raises:
            SandlotError: The store cannot be read or written.
        """
        for record in await self._table.of_node(self._node):
            if record.ready:
                self._add(record)
            else:
                await self._table.remove(record.id)
                _log.info("volume.forgotten", volume=record.id)
        for stray in await asyncio.to_thread(self._disks.ids) - set(self._volumes):
            await self._remove(stray)

    def hold(self, sandbox: SandboxId, mounts: Sequence[VolumeMount]) -> None:
        """Keep volumes mounted for a sandbox that an earlier service left running."""
        for mount in mounts:
            self._users.setdefault(VolumeId(mount.volume), set()).add(sandbox)

    def unmount_unused(self) -> None:
        """Unmount volumes of an earlier service that no sandbox sees, in the background. Call this after :meth:`hold` for all sandboxes."""
        for volume in self._volumes:
            if not self._users.get(volume):
                self._tasks.spawn(self._unmount(volume))

    async def aclose(self) -> None:
        """Wait for the unmounts in progress. Volumes of sandboxes that keep running stay mounted."""
        await self._tasks.wait()

    async def create(self, principal: Principal, *, name: str, size_bytes: int = DEFAULT_BYTES) -> Volume:
        """Create an empty volume.

        Args:
            principal: Owner of the volume.
            name: Name that is unique among the owner's volumes.
            size_bytes: Maximum size of its content, 16 MiB to 16 TiB.

        Raises:
            InvalidRequestError: The name or the size is invalid, or the volume can never fit on this node.
            ConflictError: The owner has another volume of that name.
            LimitError: ``quota_exceeded`` or ``disk_full``.
            UnavailableError: ``busy``: the disk has no room for the volume now.
            HostError: The host cannot make the file system; the message says why.
        """
        check_name(name)
        if not LEAST_BYTES <= size_bytes <= MOST_BYTES:
            raise InvalidRequestError(f"size_bytes is {size_bytes}; it must be from {LEAST_BYTES} to {MOST_BYTES}.", fields={"field": "size_bytes"})
        return await asyncio.shield(asyncio.ensure_future(self._create(principal, name, size_bytes)))

    async def get(self, principal: Principal, name_or_id: str) -> Volume:
        """Return a volume by its id, or by the caller's name for it.

        Raises:
            NotFoundError: ``volume_not_found``.
        """
        return await self._describe(self._find(principal, name_or_id))

    async def list(self, principal: Principal) -> Sequence[Volume]:
        """Return the caller's volumes, oldest first. Operators see the volumes of all owners."""
        return [await self._describe(record) for record in tuple(self._volumes.values()) if principal.sees(record.owner)]

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """Return the number of an owner's volumes, unfinished ones included, and their total size in bytes."""
        return await self._table.totals(owner)

    async def delete(self, principal: Principal, name_or_id: str) -> None:
        """Delete a volume with its content.

        Raises:
            NotFoundError: ``volume_not_found``.
            ConflictError: A sandbox has the volume.
        """
        record = self._find(principal, name_or_id)
        if sandboxes := self._sandboxes_with(record.id):
            raise ConflictError(
                f"Volume {record.name!r} is attached to {len(sandboxes)} sandbox{'es' if len(sandboxes) > 1 else ''}: {', '.join(sandboxes[:3])}.",
                code=ErrorCode.CONFLICT,
                hint="Kill these sandboxes first, hibernated ones included.",
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
        """Return mounts with the volumes' ids and a slot each.

        There is no ``await`` here: a volume cannot be deleted if the caller gives the mounts to a sandbox in the same step.

        Raises:
            NotFoundError: ``volume_not_found``.
            InvalidRequestError: A volume is mounted twice.
        """
        ids = [self._find(principal, mount.volume).id for mount in mounts]
        found = placed([replace(mount, volume=id_, asked=mount.asked or mount.volume) for mount, id_ in zip(mounts, ids, strict=True)])
        if len({mount.volume for mount in found}) < len(found):
            raise InvalidRequestError("A volume is mounted at two paths.", hint="Mount each volume once.", fields={"field": "volumes"})
        return found

    async def attach(self, sandbox: SandboxId, mounts: Sequence[VolumeMount]) -> tuple[Attachment, ...]:
        """Mount volumes on the host for a sandbox until :meth:`release`.

        Raises:
            HostError: A volume cannot be mounted; the message says why.
        """
        attachments = []
        for slot, mount in slots(mounts):
            volume = VolumeId(mount.volume)
            self._users.setdefault(volume, set()).add(sandbox)
            async with self._mount_locks.hold(volume):
                try:
                    source = await run_in_own_thread(self._disks.mount, volume)
                except OSError as error:
                    raise HostError(
                        f"Volume {self._name(volume)} cannot be mounted: {error.strerror or error}.",
                        code=ErrorCode.HOST_NOT_READY,
                        hint="Look for errors in the host's kernel log (dmesg), and repair the file system with e2fsck.",
                        fields={"volume": volume},
                    ) from error
            attachments.append(Attachment(slot=slot, source=source, path=mount.path, read_only=mount.read_only))
        return tuple(attachments)

    def release(self, sandbox: SandboxId, *only: str) -> None:
        """Unmount volumes that a sandbox no longer sees, unless another sandbox does. Idempotent.

        Args:
            sandbox: Sandbox whose processes are dead, or whose volumes were detached.
            only: Ids of the volumes to release; none releases all.
        """
        for volume, users in tuple(self._users.items()):
            if sandbox in users and (not only or volume in only):
                users.discard(sandbox)
                if not users:
                    self._tasks.spawn(self._unmount(volume))

    async def _create(self, principal: Principal, name: str, size_bytes: int) -> Volume:
        record = VolumeRecord(
            id=new_volume_id(self._node), node=self._node, owner=principal.owner, name=name, size_bytes=size_bytes, created_at=self._clock.now()
        )
        needed = self._resources(record)
        async with self._admission_lock:  # no other volume is recorded between the check of the totals and this one
            if (other := self._names.get((principal.owner, name))) is not None:
                raise ConflictError(
                    f"A volume named {name!r} exists already: {other}.",
                    code=ErrorCode.CONFLICT,
                    hint="Choose another name, or delete that volume first.",
                    fields={"name": name, "volume": other},
                )
            quotas.check_volumes(principal.quota, *await self._table.totals(principal.owner), size_bytes)
            reading = await self._reservations.make_room(needed)
            self._reservations.reserve(record.id, needed, reading)
            try:
                await self._table.save(record)
            except BaseException:
                self._reservations.release(record.id)
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
                    code=ErrorCode.HOST_NOT_READY,
                    hint="Check the free space of the state directory.",
                ) from error
            raise
        self._add(record)
        self._events.notify(record.owner)
        _log.info("volume.created", volume=record.id, size_bytes=size_bytes)
        return await self._describe(record)

    async def _discard(self, record: VolumeRecord) -> None:
        """Remove a volume that could not be finished. The next start removes what cannot be removed now."""
        try:
            await self._table.remove(record.id)
        except SandlotError as error:
            _log.warning("volume.not_discarded", volume=record.id, error=str(error))
        await self._remove(record.id)

    async def _remove(self, volume: str) -> None:
        """Remove the file system of a volume that has no record any more, and release its reservation."""
        async with self._mount_locks.hold(volume):
            try:
                await run_in_own_thread(self._disks.remove, volume)
            except OSError as error:
                _log.warning("volume.not_removed", volume=volume, error=str(error), hint="The next start of the service tries again.")
                return
        self._reservations.release(volume)

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
                hint="List the volumes.",
                fields={"volume": name_or_id[:64]},
            )
        return record

    def _sandboxes_with(self, volume: VolumeId) -> Sequence[SandboxId]:
        return [sandbox for sandbox, mounts in self._registry.mounts().items() if any(mount.volume == volume for mount in mounts)]

    def _name(self, volume: VolumeId) -> str:
        record = self._volumes.get(volume)
        return volume if record is None else repr(record.name)

    def _resources(self, record: VolumeRecord) -> Resources:
        return Resources(memory_bytes=0, disk_bytes=self._disks.takes(record.size_bytes), pids=0)

    def _add(self, record: VolumeRecord) -> None:
        self._volumes[record.id] = record
        self._names[record.owner, record.name] = record.id
        self._reservations.record(record.id, self._resources(record))

    def _forget(self, record: VolumeRecord) -> None:
        self._volumes.pop(record.id, None)
        self._names.pop((record.owner, record.name), None)

    def _event(self, type_: str, record: VolumeRecord, **data: object) -> NewEvent:
        return NewEvent(type_, self._clock.now(), record.owner, None, {"volume": record.id, "name": record.name, **data})
