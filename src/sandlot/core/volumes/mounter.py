"""Mount volumes on the host for the sandboxes that use them.

Invariant: A volume is mounted once on the host for all sandboxes that use it: from before the first sandbox sees the volume until the last of these
sandboxes has ended or is hibernated. All these sandboxes share the volume's files and disk space.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from sandlot.core.concurrency import KeyedLock, TaskSet
from sandlot.core.ports import VolumeDisks
from sandlot.core.resources.allocation import Allocation
from sandlot.core.volumes.registry import VolumeRegistry
from sandlot.host.blocking import run_in_own_thread
from sandlot.model.errors import ConflictError, ErrorCode, HostError
from sandlot.model.ids import SandboxId, VolumeId
from sandlot.model.ports import Attachment, VolumeView
from sandlot.model.specs import VolumeMount, slots

_log = structlog.get_logger("sandlot.core")


class VolumeMounter:
    """Mounts the volumes of this node.

    Attributes:
        tasks: Tasks that unmount volumes. Wait for these tasks when the service stops. Volumes of sandboxes that keep running stay mounted.
    """

    def __init__(self, registry: VolumeRegistry, disks: VolumeDisks) -> None:
        self._registry = registry
        self._disks = disks
        self._users: dict[VolumeId, set[Allocation | SandboxId]] = {}
        """Volume -> allocations of sandboxes whose processes may use the volume. The volume is mounted while there is one.

        A sandbox whose driver is missing has no allocation and is represented by its id."""
        self._mount_locks = KeyedLock()
        """Locks by volume id. Mounting, unmounting and removing a volume hold the lock of the volume."""
        self.tasks = TaskSet("volume.internal_error")

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
        for record in self._registry.list():
            if not self._users.get(record.id):
                self.tasks.spawn(self._unmount(record.id))

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
                        f"Volume {self._registry.label(volume)} cannot be mounted: {error.strerror or error}.",
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

    def is_used(self, volume: VolumeId) -> bool:
        """Return True if a sandbox uses a volume, which is mounted then."""
        return bool(self._users.get(volume))

    async def remove(self, volume: str) -> None:
        """Remove the filesystem of a volume that no sandbox has.

        Raises:
            OSError: The filesystem cannot be removed.
        """
        async with self._mount_locks.hold(volume):
            await run_in_own_thread(self._disks.remove, volume)

    def _check_shared(self, allocation: Allocation, volume: VolumeId) -> None:
        """Refuse a volume that two sandboxes would use of which one has its image: a filesystem must not be mounted by two kernels."""
        others = self._users[volume] - {allocation}
        users = [user for user in (allocation, *others) if isinstance(user, Allocation)]
        if others and any(user.driver.volume_view is VolumeView.IMAGE for user in users):
            raise ConflictError(
                f"Volume {self._registry.label(volume)} is used by another sandbox.",
                code=ErrorCode.CONFLICT,
                hint="Detach the volume from the other sandbox first: one of the two isolations cannot share volumes.",
                fields={"volume": volume},
            )

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
        if used is not None:
            await self._registry.save_used_bytes(volume, used)
