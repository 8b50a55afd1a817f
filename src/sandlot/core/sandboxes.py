"""Operations on sandboxes for callers outside of core. Each operation takes ids and returns plain values of ``model``.

Only core itself, such as the managers of the lifecycle, forks, mounts and snapshots, works with live sandboxes.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine, Mapping

from sandlot.core.access.idempotency import IdempotencyKey, check_key, request_digest
from sandlot.core.concurrency import TaskSet
from sandlot.core.forwarding import listening
from sandlot.core.lifecycle.mounts import MountManager
from sandlot.core.manager import SandboxManager
from sandlot.core.registry import NameTakenError, SandboxRegistry
from sandlot.core.resources.drivers import Drivers
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots.forks import ForkManager
from sandlot.core.snapshots.leases import FolderLeases
from sandlot.core.snapshots.manager import SnapshotManager
from sandlot.core.snapshots.sources import SnapshotSources
from sandlot.model.access import Principal
from sandlot.model.errors import InvalidRequestError, NotFoundError, SandboxEndedError
from sandlot.model.ids import SANDBOX_ID
from sandlot.model.ports import DriverCapability
from sandlot.model.repositories import Position, SandboxRepository
from sandlot.model.sandboxes import (
    SAME,
    CreateSandboxParams,
    ForkParams,
    ForkTree,
    GuestStatus,
    ListeningPort,
    Promotion,
    SandboxFilter,
    SandboxInfo,
    SandboxUsage,
    UpdateSandboxParams,
)
from sandlot.model.specs import VolumeMount
from sandlot.model.streams import Page


class SandboxService:
    """Operations on sandboxes.

    An operation that changes a live sandbox is finished once it has begun, even if its caller is cancelled. An operation that waits for another one
    is withdrawn when its caller is cancelled.
    """

    def __init__(
        self,
        *,
        registry: SandboxRegistry,
        manager: SandboxManager,
        snapshots: SnapshotManager,
        snapshot_leases: FolderLeases,
        snapshot_sources: SnapshotSources,
        forks: ForkManager,
        mounts: MountManager,
        drivers: Drivers,
        records: SandboxRepository,
    ) -> None:
        self._registry = registry
        self._manager = manager
        self._snapshots = snapshots
        self._snapshot_leases = snapshot_leases
        self._snapshot_sources = snapshot_sources
        self._forks = forks
        self._mounts = mounts
        self._drivers = drivers
        self._records = records
        self._tasks = TaskSet("sandbox.internal_error")

    async def create(
        self,
        principal: Principal,
        params: CreateSandboxParams,
        *,
        idempotency_key: str | None = None,
        single_use: bool = False,
        snapshot_owner: Principal | None = None,
    ) -> SandboxInfo:
        """Create a sandbox from a template or a snapshot, and wait until it runs. If the call is cancelled, the sandbox is ended.

        Args:
            principal: Caller; the sandbox belongs to its owner.
            params: Parameters of the sandbox.
            idempotency_key: A repeated call with this key returns the sandbox of the first call, even if the sandbox has ended.
            single_use: True for a sandbox that serves a single request. The sandbox is ended when the service stops.
            snapshot_owner: Principal that sees the snapshot. None: the caller.

        Raises:
            NotFoundError: The template, the snapshot, a volume or a file does not exist.
            LimitError: The sandbox would exceed the caller's quota; code ``quota_exceeded``.
            ConflictError: The idempotency key was used for a different request, or another live sandbox of the caller has the name. Or the snapshot
                cannot be restored on this node or with these limits; code ``snapshot_unusable``.
            UnavailableError: There is no room for the sandbox now; code ``busy``.
        """
        create = self._manager.create if params.snapshot is None else functools.partial(self._create_from_snapshot, snapshot_owner or principal)
        return (await create(principal, params, key=idempotency_key, single_use=single_use)).info()

    async def get_or_create(
        self, principal: Principal, params: CreateSandboxParams, *, idempotency_key: str | None = None
    ) -> tuple[SandboxInfo, bool]:
        """Return the caller's live sandbox with a name, or create it. If several calls race, one of them creates the sandbox and all return it.

        The call waits while a sandbox with the name is being created or ended, and resumes a suspended sandbox. If the sandbox exists, the parameters
        other than the name have no effect. If the call that creates the sandbox is cancelled, the sandbox is ended, and another waiting call creates
        it again.

        Args:
            principal: Caller.
            params: Parameters of the sandbox, with a name.
            idempotency_key: A repeated call with this key returns the sandbox that the first call created, even if the sandbox has ended.

        Returns:
            The sandbox, and True if the call with this idempotency key created it.

        Raises:
            InvalidRequestError: The parameters have no name.
            ConflictError: The suspended sandbox can no longer be restored, or this service does not have its driver. For a new sandbox, the errors
                are those of :meth:`create`.
        """
        if params.name is None:
            raise InvalidRequestError("`if_exists` is 'return' without `name`.", hint="Set `name`.", fields={"field": "name"})
        key = None if idempotency_key is None else check_key(idempotency_key)
        while True:
            is_repeated = key is not None and await self._records.get_by_idempotency_key(principal.owner, key) is not None
            found = None if is_repeated else await self._registry.share_by_name(principal.owner, params.name)
            try:
                if found is None or (found.idempotency_key is not None and found.idempotency_key.key == key):
                    return await self.create(principal, params, idempotency_key=key), True
                if not found.awake.is_set():
                    await self._manager.resume(principal, found.id)
                found.check_live()
                return found.info(), False
            except NameTakenError:
                continue  # a create or rename was faster
            except SandboxEndedError:
                if found is None:
                    raise

    async def get(self, principal: Principal, id_or_name: str) -> SandboxInfo:
        """Return a sandbox by its id, or the caller's own live sandbox with a name.

        Ended sandboxes are found by their ids as long as the store keeps their records.
        """
        if SANDBOX_ID.fullmatch(id_or_name):
            return (await self._registry.load(id_or_name, principal)).info()
        return self._registry.find_by_name(id_or_name, principal).info()

    async def list(self, principal: Principal, wanted: SandboxFilter, *, after: Position | None, limit: int) -> Page[SandboxInfo]:
        """Return a page of the sandboxes that a caller may see, oldest first.

        Args:
            principal: Caller.
            wanted: Conditions that the sandboxes meet.
            after: Position of the last sandbox of the previous page. None: the first page.
            limit: Maximum number of sandboxes to return.
        """
        found, more = await self._registry.page(principal, wanted, after=after, limit=limit)
        return Page([sandbox.info() for sandbox in found], more)

    async def update(self, principal: Principal, sandbox: str, params: UpdateSandboxParams) -> SandboxInfo:
        """Apply all changes to a sandbox, or none.

        Raises:
            LimitError: The changes would exceed the caller's quota; code ``quota_exceeded``.
            ForbiddenError: The operator or the quota of the caller does not allow the network mode.
            UnsupportedError: A limit cannot be changed while the sandbox runs, or the network policy cannot be enforced.
            ConflictError: The sandbox uses more than the new limits allow, is still being created, or another live sandbox of its owner has the name.
            UnavailableError: The node does not have enough free resources now; code ``busy``.
        """
        return (await self._manager.update(principal, sandbox, params)).info()

    async def kill(self, principal: Principal, sandbox: str, *, wait: bool = True) -> None:
        """End a sandbox. Idempotent.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            wait: True to return when the processes of the sandbox are dead, False to return at once.
        """
        await self._manager.kill(principal, sandbox, wait=wait)

    async def pause(self, principal: Principal, sandbox: str, *, wait_s: float | None = None) -> SandboxInfo:
        """Freeze a sandbox, which keeps its memory. Does nothing if the sandbox is suspended already.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            wait_s: Seconds after which the call returns although the operation goes on. None: the call waits for the end of the operation.
        """
        return await self._wait(self._manager.pause(principal, sandbox), principal, sandbox, wait_s)

    async def hibernate(self, principal: Principal, sandbox: str, *, wait_s: float | None = None) -> SandboxInfo:
        """Write the memory and files of a sandbox to disk, then release the memory. Does nothing if the sandbox is hibernated already.

        ``wait_s`` is that of :meth:`pause`.
        """
        return await self._wait(self._manager.hibernate(principal, sandbox), principal, sandbox, wait_s)

    async def hibernate_files(self, principal: Principal, sandbox: str, *, wait_s: float | None = None) -> SandboxInfo:
        """Write the files of a sandbox to disk, then end its processes. The next resume boots the sandbox. ``wait_s`` is that of :meth:`pause`."""
        return await self._wait(self._manager.hibernate_files(principal, sandbox), principal, sandbox, wait_s)

    async def suspend(self, principal: Principal, sandbox: str, *, wait_s: float | None = None) -> SandboxInfo:
        """Hibernate a sandbox, or pause it if its isolation cannot hibernate. ``wait_s`` is that of :meth:`pause`."""
        isolation = self._registry.find(sandbox, principal).spec.isolation
        capabilities = await self._drivers.capabilities_for(isolation, DriverCapability.SNAPSHOT)
        suspend = self.hibernate if capabilities.can(DriverCapability.SNAPSHOT) else self.pause
        return await suspend(principal, sandbox, wait_s=wait_s)

    async def resume(self, principal: Principal, sandbox: str, *, timeout_s: float | None = SAME, wait_s: float | None = None) -> SandboxInfo:
        """Resume a paused or hibernated sandbox and start its timeout again. A running sandbox only gets the new timeout.

        Args:
            principal: Caller.
            sandbox: Id of the sandbox.
            timeout_s: New timeout in seconds. None: no timeout. ``SAME``: the timeout does not change.
            wait_s: Seconds after which the call returns although the operation goes on. None: the call waits for the end of the operation.

        Raises:
            LimitError: The sandbox or its new timeout would exceed the owner's quota; code ``quota_exceeded``.
            UnavailableError: The node has no room for the hibernated sandbox now; code ``busy``.
            ConflictError: The hibernation image can no longer be restored; code ``snapshot_unusable``.
        """
        return await self._wait(self._manager.resume(principal, sandbox, timeout_s=timeout_s), principal, sandbox, wait_s)

    async def ensure_running(self, principal: Principal, sandbox: str) -> SandboxInfo:
        """Resume a suspended sandbox as a call to it does, and return it. A running sandbox is returned unchanged.

        Raises:
            ConflictError: The sandbox is suspended and its ``auto_resume`` is not set; code ``sandbox_paused``.
        """
        live = self._registry.find(sandbox, principal)
        async with live.connection(timeout_s=None):
            return live.info()

    async def usage(self, principal: Principal, sandbox: str) -> SandboxUsage:
        """Return the resources that a sandbox has used, and its limits. A suspended sandbox is not resumed."""
        return await self._manager.usage(principal, sandbox)

    async def check(self, principal: Principal, sandbox: str, *, timeout_s: float) -> GuestStatus:
        """Ask the guest of a sandbox for its status. A suspended sandbox is resumed.

        Raises:
            TimeoutExceededError: The guest did not respond within ``timeout_s`` seconds.
        """
        async with self._registry.find(sandbox, principal).connection(timeout_s) as link:
            return await link.info()

    async def ports(self, principal: Principal, sandbox: str) -> tuple[ListeningPort, ...]:
        """Return the TCP ports on which programs in a sandbox listen, sorted by port. Sandlot's own ports are left out."""
        return tuple(await listening.ports(self._registry.find(sandbox, principal)))

    async def fork(self, principal: Principal, sandbox: str, params: ForkParams, *, idempotency_key: str | None = None) -> tuple[SandboxInfo, ...]:
        """Fork a sandbox and wait until all children run. If the call is cancelled, all children are ended.

        Args:
            principal: Caller, whose quota applies. The children belong to the owner of their parent.
            sandbox: Id of the parent.
            params: Parameters of the fork.
            idempotency_key: A repeated call with this key returns the children of the first call, even if they have ended.

        Raises:
            ConflictError: The key was used for a different request, a name of a child is taken, or the parent has writable volumes and
                ``share_volumes`` is not set.
            LimitError: A quota is exceeded (``quota_exceeded``), or the disk is full (``node_disk_full``).
            UnavailableError: There is no room for all children (``busy``).
        """
        return tuple(child.info() for child in await self._forks.create(principal, sandbox, params, key=idempotency_key))

    async def tree(self, principal: Principal, sandbox: str) -> ForkTree:
        """Return the tree of forks to which a sandbox belongs."""
        return await self._forks.get_tree(principal, sandbox)

    async def promote(self, principal: Principal, sandbox: str, *, among: Mapping[str, str] | None = None) -> Promotion:
        """Keep one child of a fork, and end its siblings with all their descendants. Idempotent.

        Args:
            principal: Caller.
            sandbox: Id of the child to keep.
            among: End only siblings that have all these entries in their metadata.

        Raises:
            ConflictError: The sandbox is not a child of a fork.
        """
        return await self._forks.promote(principal, sandbox, among=among)

    async def attach_volume(self, principal: Principal, sandbox: str, mount: VolumeMount) -> SandboxInfo:
        """Attach a volume to a sandbox. A suspended sandbox is resumed. Does nothing if the volume is attached in the same way already.

        Raises:
            ConflictError: The volume is attached at another path, the path has another volume, the sandbox has the maximum number of volumes, or it
                is being forked or written to a snapshot. Or the sandbox is suspended without ``auto_resume``; code ``sandbox_paused``.
        """
        return (await self._mounts.attach(principal, sandbox, mount)).info()

    async def detach_volume(self, principal: Principal, sandbox: str, volume_or_path: str) -> SandboxInfo:
        """Detach a volume from a sandbox by its path, name or id. A suspended sandbox is resumed. The contents of the volume are kept.

        Raises:
            ConflictError: A process inside uses the volume, or the sandbox is being forked or written to a snapshot. Or the sandbox is suspended
                without ``auto_resume``; code ``sandbox_paused``.
        """
        return (await self._mounts.detach(principal, sandbox, volume_or_path)).info()

    async def _create_from_snapshot(
        self, snapshot_owner: Principal, principal: Principal, params: CreateSandboxParams, *, key: str | None, single_use: bool
    ) -> Sandbox:
        try:
            snapshot = await self._snapshots.get(snapshot_owner, params.snapshot or "")
        except NotFoundError:
            request = None if key is None else IdempotencyKey(key, request_digest(params))
            earlier = None if request is None else await self._records.get_by_idempotency_key(principal.owner, request.key)
            if request is None or earlier is None:
                raise
            request.check(earlier.request_digest)  # the first request created its sandbox, and the snapshot was deleted afterwards
            return await self._registry.load(earlier.id, principal)
        with self._snapshot_leases.lease(snapshot.id):  # no await since the snapshot was found: see core/snapshots/leases.py
            source = await self._snapshot_sources.start_source(snapshot)
            return await self._manager.create(principal, params, key=key, source=source, single_use=single_use)

    async def _wait(self, operation: Coroutine[None, None, Sandbox], principal: Principal, sandbox: str, wait_s: float | None) -> SandboxInfo:
        """Wait for an operation, at most ``wait_s`` seconds. The error of an operation that ends later is dropped: its client asks for the state."""
        if wait_s is None:
            return (await operation).info()
        task = self._tasks.create_task(operation)
        try:
            await asyncio.wait({task}, timeout=wait_s)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return (task.result() if task.done() else self._registry.find(sandbox, principal)).info()
