"""Verification of memory snapshots in the background: restore each snapshot once, and pack its files separately.

The verifier starts a sandbox from the snapshot, without a network and in no list of clients, and ends the sandbox afterwards. A snapshot that was
restored once on this host can be restored again. A snapshot whose restore fails is marked as unusable, so that its owner can create another
snapshot while the source sandbox may still exist. A sandbox can start from the packed files if the memory can no longer be restored, for example
because the runtime build that wrote the memory was removed.

Invariants:
- One snapshot is verified at a time.
- No warm sandbox is evicted for a verification. If there is no room, the verification is tried again after ``PAUSE_S`` seconds.
- If a snapshot is deleted, its verification ends at once.
- The packed files of a snapshot count against the quota of its owner. Files that exceed the quota are removed, and the snapshot has only its memory.
  The next service tries to pack them again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import Final

import structlog

from sandlot.core.files import overlay
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.manager import SandboxManager
from sandlot.core.resources.drivers import Drivers
from sandlot.core.resources.reservations import Reservations
from sandlot.core.resources.templates import TemplateResolver
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots.leases import FolderLeases
from sandlot.core.snapshots.records import SnapshotRecords
from sandlot.core.snapshots.restore import MEMORY
from sandlot.core.snapshots.sources import SnapshotSources
from sandlot.model.access import INTERNAL
from sandlot.model.errors import ConflictError, ErrorCode, LimitError, SandlotError, UnavailableError
from sandlot.model.ids import SnapshotId
from sandlot.model.network import NetworkMode, NetworkPolicy
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import SnapshotRecord
from sandlot.model.sandboxes import CreateSandboxParams

PAUSE_S: Final = 10.0
"""Seconds until a verification is tried again."""
TRIES: Final = 3
"""Number of failed restores after which a snapshot is marked as unusable. A single failure can have another cause, such as an overloaded host."""
TIMEOUT_S: Final = 600.0
"""Lifetime in seconds of the sandbox that verifies a snapshot. Packing reads all files of the sandbox."""

_TEMPORARY: Final = frozenset({ErrorCode.BUSY, ErrorCode.QUOTA_EXCEEDED, ErrorCode.LIMIT_EXCEEDED, ErrorCode.NODE_DISK_FULL})
_DAMAGED: Final = frozenset(
    {
        ErrorCode.SNAPSHOT_UNUSABLE,
        ErrorCode.HOST_NOT_READY,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.TIMEOUT,
        ErrorCode.SANDBOX_ENDED,
        ErrorCode.INTERNAL,
    }
)
"""Codes of errors that the restore of a damaged snapshot can raise."""
_STOPPING: Final = frozenset({ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.SERVICE_STOPPING})

_log = structlog.get_logger("sandlot.core")


class SnapshotVerifier:
    """Verifies the snapshots of a queue, one after the other.

    Attributes:
        idle: Event that is set while the queue is empty and no snapshot is being verified.
    """

    def __init__(
        self,
        *,
        manager: SandboxManager,
        memory_images: MemoryImages,
        leases: FolderLeases,
        sources: SnapshotSources,
        records: SnapshotRecords,
        drivers: Drivers,
        templates: TemplateResolver,
        reservations: Reservations,
    ) -> None:
        self._manager = manager
        self._images = memory_images
        self._leases = leases
        self._sources = sources
        self._records = records
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._queue: deque[tuple[SnapshotId, int]] = deque()
        self._submitted = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self._running: tuple[SnapshotId, Sandbox] | None = None

    def submit(self, snapshot: SnapshotId, tries: int = TRIES) -> None:
        """Add a snapshot to the queue.

        Args:
            snapshot: Id of the snapshot.
            tries: Number of failed restores after which the snapshot is marked as unusable.
        """
        self._queue.append((snapshot, tries))
        self.idle.clear()
        self._submitted.set()

    def cancel(self, snapshot: SnapshotId) -> None:
        """End the verification of a snapshot, because the snapshot was deleted."""
        if self._running is not None and self._running[0] == snapshot:
            self._running[1].request_end(Exit(ExitReason.KILLED, "the snapshot was deleted"))

    async def run(self) -> None:
        """Verify the snapshots of the queue until cancelled."""
        while True:
            await self._submitted.wait()
            snapshot, tries = self._queue.popleft()
            try:
                await self._handle(snapshot, tries)
            except Exception:  # noqa: BLE001 - an unexpected error with one snapshot must not stop the verifier
                _log.exception("snapshot.not_verified", snapshot=snapshot)
            if not self._queue:
                self._submitted.clear()
                self.idle.set()

    async def _handle(self, snapshot: SnapshotId, tries: int) -> None:
        with self._leases.lease(snapshot):
            record = await self._records.current(snapshot)
            if record is None:
                return
            try:
                await self._verify(record)
            except SandlotError as error:
                if error.code in _STOPPING or await self._records.current(snapshot) is None:
                    return  # the service is stopping and the next service verifies the snapshot, or the snapshot was deleted
                if error.code not in _TEMPORARY | _DAMAGED:
                    _log.warning("snapshot.not_verified", snapshot=snapshot, error=str(error))
                    return  # the snapshot is not the cause: for example, the operator no longer allows its isolation
                is_temporary = error.code in _TEMPORARY
                if is_temporary or tries > 1:
                    _log.warning("snapshot.not_verified_yet", snapshot=snapshot, error=str(error), next_try_s=PAUSE_S)
                    await asyncio.sleep(PAUSE_S)
                    self.submit(snapshot, tries if is_temporary else tries - 1)
                    return
                _log.error("snapshot.unusable", snapshot=snapshot, error=str(error))
                problem = f"it could not be restored when it was verified: {error.message}"
                await self._records.save_problem(replace(record, problem=problem))

    async def _verify(self, record: SnapshotRecord) -> None:
        """Restore a snapshot once, and pack its files if the quota of its owner allows them."""
        try:
            source = await self._sources.start_source(record)
        except ConflictError:
            return  # no restore is needed to see that the snapshot is unusable; requests that use the snapshot get this error
        if source.constraints.restored != MEMORY:
            return
        await self._check_room(record)
        params = CreateSandboxParams(
            timeout_s=TIMEOUT_S,
            isolation=record.spec.isolation,
            network=NetworkPolicy(NetworkMode.NONE),
        )
        sandbox = await self._manager.create(INTERNAL, params, source=source, single_use=True)
        self._running = record.id, sandbox
        try:
            await self._pack_files(record, sandbox)
        except SandlotError as error:
            # The memory was restored, so the snapshot is usable. Only the files could not be packed.
            if error.code in (_TEMPORARY | _STOPPING) - {ErrorCode.QUOTA_EXCEEDED}:
                raise
            _log.warning("snapshot.files_not_packed", snapshot=record.id, error=str(error))
        finally:
            self._running = None
            sandbox.request_end(Exit(ExitReason.KILLED, "the verification of the snapshot is done"))

    async def _pack_files(self, record: SnapshotRecord, sandbox: Sandbox) -> None:
        file = self._images.overlay(record.id)
        await self._records.check_overlay_quota(record)
        base = await self._templates.resolve(sandbox.spec.template, sandbox.spec.isolation)
        size_bytes = await overlay.pack_overlay(sandbox, file, base.root)
        try:
            await self._records.save_overlay(record, size_bytes)
        except LimitError:
            await asyncio.to_thread(file.unlink, missing_ok=True)
            raise

    async def _check_room(self, record: SnapshotRecord) -> None:
        """Refuse a verification for which warm sandboxes would have to be evicted.

        Raises:
            UnavailableError: There is no free room for the sandbox (``busy``).
        """
        needed = self._drivers[record.spec.isolation].max_resources(record.spec.limits)
        if not self._reservations.fits(needed, await self._reservations.read_host()):
            raise UnavailableError(f"There is no room to restore snapshot {record.id} now.", code=ErrorCode.BUSY)
