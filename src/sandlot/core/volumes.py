"""One volume as it is told of; what may be asked for of one; and which of a sandbox's places each of its volumes has.

Volumes: made, found, listed, attached, let go of, deleted.

Laws:
- A volume is recorded as an intent first; it exists once its file system is there and its record says so. What a kill leaves in between is
  removed by :meth:`VolumeManager.open`.
- It is its owner's alone: to all others it is not there, by whatever name.
- One file system is mounted once on the host, however many sandboxes have it, from before the first of them sees it until the last is gone
  or asleep: they share it like processes of one machine, and its size holds for all of them together.
- A volume that a sandbox has, a hibernated one included, is not deleted.
- Its size is promised on the disk of the node from its first moment to its last, however little is in it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import structlog

from sandlot.core.access import quotas
from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.node.reservations import Reservations
from sandlot.core.ports import Clock, VolumeDisks
from sandlot.core.registry import SandboxRegistry
from sandlot.host.threads import run_apart
from sandlot.model.access import OwnerId, Principal
from sandlot.model.errors import ConflictError, ErrorCode, HostError, InvalidRequestError, NotFoundError, SandlotError
from sandlot.model.ids import VOLUME_ID, NodeId, SandboxId, VolumeId, new_volume_id
from sandlot.model.ports import Attachment, Resources
from sandlot.model.records import NewEvent, VolumeRecord
from sandlot.model.specs import GIB, MIB, VolumeMount, placed, slots
from sandlot.model.storage import VolumeTable

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


_log = structlog.get_logger("sandlot.core")


class VolumeManager:
    """All volumes of this node.

    Args:
        table: Where they are recorded.
        disks: Their file systems.
        node: This node.
        clock: The time.
        told: Called with its owner after an event was committed.
        reservations: Reservations of this node; each volume reserves its disk space.
        registry: Live sandboxes, for the volumes that they have.
    """

    def __init__(
        self,
        table: VolumeTable,
        disks: VolumeDisks,
        node: NodeId,
        clock: Clock,
        told: Callable[[OwnerId], None],
        *,
        reservations: Reservations,
        registry: SandboxRegistry,
    ) -> None:
        self._table = table
        self._disks = disks
        self._node = node
        self._clock = clock
        self._told = told
        self._reservations = reservations
        self._registry = registry
        self._there: dict[VolumeId, VolumeRecord] = {}
        self._names: dict[tuple[OwnerId, str], VolumeId] = {}
        self._users: dict[VolumeId, set[SandboxId]] = {}
        """Whose processes may see it; it is mounted while there is one."""
        self._mount_locks = KeyedLock()
        """By volume: it is mounted, unmounted or removed by one task at a time."""
        self._admitting = asyncio.Lock()
        self._tasks = TaskSet("volume.defect")

    async def open(self) -> None:
        """Know what an earlier service made, and remove what it did not finish. Call it before anything is made or taken over.

        Raises:
            SandlotError: The store cannot be read or written.
        """
        for record in await self._table.of_node(self._node):
            if record.ready:
                self._know(record)
            else:
                await self._table.remove(record.id)
                _log.info("volume.forgotten", volume=record.id)
        for stray in await asyncio.to_thread(self._disks.ids) - set(self._there):
            await self._removed(stray)

    def hold(self, sandbox: SandboxId, mounts: Sequence[VolumeMount]) -> None:
        """An earlier service left a sandbox that sees these volumes: they stay mounted."""
        for mount in mounts:
            self._users.setdefault(VolumeId(mount.volume), set()).add(sandbox)

    def tidy(self) -> None:
        """Unmount what an earlier service left mounted and no sandbox sees, in the background. Call it once all that live are held."""
        for volume in self._there:
            if not self._users.get(volume):
                self._tasks.spawn(self._unmount(volume))

    async def aclose(self) -> None:
        """Wait for what is being unmounted; what a sandbox that lives on sees stays."""
        await self._tasks.wait()

    async def create(self, principal: Principal, *, name: str, size_bytes: int = DEFAULT_BYTES) -> Volume:
        """Make a volume, empty.

        Args:
            principal: Whose it will be.
            name: What to call it; unique among its owner's.
            size_bytes: What may be written to it; 16 MiB at least.

        Raises:
            InvalidRequestError: The name is none, or it can never fit on this node.
            ConflictError: Its owner has one of that name.
            LimitError: ``quota_exceeded``; ``disk_full``.
            UnavailableError: ``busy``: there is no room for it on the disk now.
            HostError: The host cannot make it; says why.
        """
        check_name(name)
        if not LEAST_BYTES <= size_bytes <= MOST_BYTES:
            raise InvalidRequestError(
                f"A volume cannot have {size_bytes} bytes; it must have from {LEAST_BYTES} to {MOST_BYTES}.", fields={"field": "size_bytes"}
            )
        return await asyncio.shield(asyncio.ensure_future(self._create(principal, name, size_bytes)))

    async def get(self, principal: Principal, name_or_id: str) -> Volume:
        """One, by its id or by its owner's name for it.

        Raises:
            NotFoundError: ``volume_not_found``.
        """
        return await self._seen(self._find(principal, name_or_id))

    async def list(self, principal: Principal) -> Sequence[Volume]:
        """One's own, oldest first; for an operator everybody's."""
        return [await self._seen(record) for record in tuple(self._there.values()) if principal.sees(record.owner)]

    async def totals(self, owner: OwnerId) -> tuple[int, int]:
        """How many somebody has, those that are being made included, and their sizes together."""
        return await self._table.totals(owner)

    async def delete(self, principal: Principal, name_or_id: str) -> None:
        """Delete a volume and all that is in it.

        Raises:
            NotFoundError: ``volume_not_found``.
            ConflictError: A sandbox has it.
        """
        record = self._find(principal, name_or_id)
        if having := self._having(record.id):
            raise ConflictError(
                f"Volume {record.name!r} is attached to {len(having)} sandbox{'es' if len(having) > 1 else ''}: {', '.join(having[:3])}.",
                code=ErrorCode.CONFLICT,
                hint="Kill them first; a hibernated one as well.",
                fields={"volume": record.id, "sandboxes": list(having[:100])},
            )
        self._forget(record)
        try:
            await self._table.remove(record.id, self._event("volume.deleted", record))
        except BaseException:
            self._know(record)
            raise
        self._told(record.owner)
        _log.info("volume.deleted", volume=record.id)
        await asyncio.shield(asyncio.ensure_future(self._removed(record.id)))

    def resolve(self, principal: Principal, mounts: Sequence[VolumeMount]) -> tuple[VolumeMount, ...]:
        """The same by ids, each in a slot. It waits for nothing: what is resolved in the step in which a sandbox gets it is not deleted before.

        Raises:
            NotFoundError: ``volume_not_found``.
            InvalidRequestError: One of them is in two places.
        """
        ids = [self._find(principal, mount.volume).id for mount in mounts]
        found = placed([replace(mount, volume=id_, asked=mount.asked or mount.volume) for mount, id_ in zip(mounts, ids, strict=True)])
        if len({mount.volume for mount in found}) < len(found):
            raise InvalidRequestError("A sandbox has a volume in one place only.", hint="Give each volume once.", fields={"field": "volumes"})
        return found

    async def attach(self, sandbox: SandboxId, mounts: Sequence[VolumeMount]) -> tuple[Attachment, ...]:
        """Have volumes mounted on the host for a sandbox, until :meth:`release`.

        Raises:
            HostError: One of them cannot be mounted; says why.
        """
        attachments = []
        for slot, mount in slots(mounts):
            volume = VolumeId(mount.volume)
            self._users.setdefault(volume, set()).add(sandbox)
            async with self._mount_locks.hold(volume):
                try:
                    source = await run_apart(self._disks.mount, volume)
                except OSError as error:
                    raise HostError(
                        f"Volume {self._name(volume)} cannot be mounted: {error.strerror or error}.",
                        code=ErrorCode.HOST_NOT_READY,
                        hint="See the host's kernel log (dmesg); e2fsck can mend a file system.",
                        fields={"volume": volume},
                    ) from error
            attachments.append(Attachment(slot=slot, source=source, path=mount.path, read_only=mount.read_only))
        return tuple(attachments)

    def release(self, sandbox: SandboxId, *which: str) -> None:
        """A sandbox sees its volumes no more, or these alone: its processes are gone, or they were taken away from it. Idempotent."""
        for volume, users in tuple(self._users.items()):
            if sandbox in users and (not which or volume in which):
                users.discard(sandbox)
                if not users:
                    self._tasks.spawn(self._unmount(volume))

    async def _create(self, principal: Principal, name: str, size_bytes: int) -> Volume:
        record = VolumeRecord(
            id=new_volume_id(self._node), node=self._node, owner=principal.owner, name=name, size_bytes=size_bytes, created_at=self._clock.now()
        )
        takes = self._takes(record)
        async with self._admitting:  # nobody is to come between the sum and what is added to it
            if (there := self._names.get((principal.owner, name))) is not None:
                raise ConflictError(
                    f"There is a volume of the name {name!r} already: {there}.",
                    code=ErrorCode.CONFLICT,
                    hint="Choose another name, or delete that one first.",
                    fields={"name": name, "volume": there},
                )
            quotas.check_volumes(principal.quota, *await self._table.totals(principal.owner), size_bytes)
            reading = await self._reservations.make_room(takes)
            self._reservations.reserve(record.id, takes, reading)
            try:
                await self._table.save(record)
            except BaseException:
                self._reservations.release(record.id)
                raise
        try:
            await run_apart(self._disks.make, record.id, size_bytes)
            record = replace(record, ready=True)
            await self._table.save(record, self._event("volume.created", record, size_bytes=size_bytes))
        except BaseException as error:
            await self._discard(record)
            if isinstance(error, OSError):
                raise HostError(
                    f"The volume cannot be made: {error.strerror or error}.",
                    code=ErrorCode.HOST_NOT_READY,
                    hint="Look at the free space of the state directory.",
                ) from error
            raise
        self._know(record)
        self._told(record.owner)
        _log.info("volume.created", volume=record.id, size_bytes=size_bytes)
        return await self._seen(record)

    async def _discard(self, record: VolumeRecord) -> None:
        """Leave nothing of one that did not come to be; what cannot be removed now is by the next start."""
        try:
            await self._table.remove(record.id)
        except SandlotError as error:
            _log.warning("volume.not_discarded", volume=record.id, error=str(error))
        await self._removed(record.id)

    async def _removed(self, volume: str) -> None:
        """Remove what is on the disk of one that nobody can find any more."""
        async with self._mount_locks.hold(volume):
            try:
                await run_apart(self._disks.remove, volume)
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
                used = await run_apart(self._disks.used_bytes, volume)
                await run_apart(self._disks.unmount, volume)
            except OSError as error:
                _log.warning("volume.not_unmounted", volume=volume, error=str(error))
                return
        record = self._there.get(volume)
        if record is not None and used is not None and used != record.used_bytes:
            self._there[volume] = record = replace(record, used_bytes=used)
            try:
                await self._table.save(record)
            except SandlotError as error:
                _log.warning("volume.not_recorded", volume=volume, error=str(error))

    async def _seen(self, record: VolumeRecord) -> Volume:
        used = await asyncio.to_thread(self._disks.used_bytes, record.id) if self._users.get(record.id) else None
        return Volume(
            id=record.id,
            name=record.name,
            owner=record.owner,
            size_bytes=record.size_bytes,
            used_bytes=record.used_bytes if used is None else used,
            created_at=record.created_at,
            attached=tuple(self._having(record.id)),
        )

    def _find(self, principal: Principal, name_or_id: str) -> VolumeRecord:
        id_ = VolumeId(name_or_id) if VOLUME_ID.fullmatch(name_or_id) else self._names.get((principal.owner, name_or_id))
        record = None if id_ is None else self._there.get(id_)
        if record is None or not principal.sees(record.owner):
            raise NotFoundError(
                f"There is no volume {name_or_id[:64]!r}.",
                code=ErrorCode.VOLUME_NOT_FOUND,
                hint="List what there is.",
                fields={"volume": name_or_id[:64]},
            )
        return record

    def _having(self, volume: VolumeId) -> Sequence[SandboxId]:
        return [sandbox for sandbox, mounts in self._registry.mounts().items() if any(mount.volume == volume for mount in mounts)]

    def _name(self, volume: VolumeId) -> str:
        record = self._there.get(volume)
        return volume if record is None else repr(record.name)

    def _takes(self, record: VolumeRecord) -> Resources:
        return Resources(memory_bytes=0, disk_bytes=self._disks.takes(record.size_bytes), pids=0)

    def _know(self, record: VolumeRecord) -> None:
        self._there[record.id] = record
        self._names[record.owner, record.name] = record.id
        self._reservations.record(record.id, self._takes(record))

    def _forget(self, record: VolumeRecord) -> None:
        self._there.pop(record.id, None)
        self._names.pop((record.owner, record.name), None)

    def _event(self, type_: str, record: VolumeRecord, **data: object) -> NewEvent:
        return NewEvent(type_, self._clock.now(), record.owner, None, {"volume": record.id, "name": record.name, **data})
