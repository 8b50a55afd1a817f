"""Behind the answers: every snapshot of memory is restored once, and its files are packed apart from it.

The copy is one of the service's own, for this alone: without a network, without a name that anybody knows, and ended in any case. What could
be restored once on this host can be again; what could not is marked, so that its owner hears of it while the source may still be there. The
files are what is left when a snapshot's memory cannot be restored any more, because the runtime that wrote it is gone.

Laws:
- One at a time, and never in the way of a request: where there is no room, it is tried again later.
- A snapshot that is deleted meanwhile is left at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

import structlog

from sandlot.core.admission import CreateSandboxParams
from sandlot.core.files import overlay
from sandlot.core.lifecycle.memory_images import MemoryImages
from sandlot.core.lifecycle.recovery import ONE_RUN, USE_WORD
from sandlot.core.lifecycle.start import StartSource
from sandlot.core.manager import SandboxManager
from sandlot.core.node.drivers import Drivers, Templates
from sandlot.core.node.reservations import Reservations
from sandlot.core.sandbox import Sandbox
from sandlot.core.snapshots.restore import MEMORY
from sandlot.model.access import OPERATOR
from sandlot.model.errors import ConflictError, ErrorCode, SandlotError, UnavailableError
from sandlot.model.ids import SnapshotId
from sandlot.model.ports import Exit, ExitReason
from sandlot.model.records import SnapshotRecord
from sandlot.model.specs import Network

PAUSE_S: Final = 10.0
"""Before it is tried again where there was no room, or nobody knows what was wrong."""
TRIES: Final = 3
"""How often a snapshot may fail to be restored before it is marked: a host under load is no defect of a snapshot."""
TIMEOUT_S: Final = 600.0
"""Of one copy: packing takes what reading all of its files takes."""

_PASSES: Final = frozenset({ErrorCode.BUSY, ErrorCode.QUOTA_EXCEEDED, ErrorCode.LIMIT_EXCEEDED, ErrorCode.DISK_FULL})
_BAD: Final = frozenset(
    {
        ErrorCode.SNAPSHOT_UNUSABLE,
        ErrorCode.HOST_NOT_READY,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.TIMEOUT,
        ErrorCode.SANDBOX_ENDED,
        ErrorCode.INTERNAL,
    }
)
"""What a snapshot that is none may be answered with when it is restored."""
_ENDS: Final = frozenset({ErrorCode.SERVICE_UNAVAILABLE, ErrorCode.SERVICE_STOPPING})

_log = structlog.get_logger("sandlot.core")


class SnapshotVerifier:
    """Who does it.

    Args:
        manager: Who makes the copy.
        images: Where snapshots are.
        using: Keeps a snapshot's folder there meanwhile.
        current: The record of a snapshot as it is now; None where it was deleted.
        source: What a copy of one goes on from.
        told: Records what came of it.
        drivers: Drivers by isolation name.
        templates: Templates and their builds.
        reservations: Reservations of this node.
    """

    def __init__(
        self,
        manager: SandboxManager,
        images: MemoryImages,
        *,
        using: Callable[[str], AbstractContextManager[None]],
        current: Callable[[SnapshotId], Coroutine[Any, Any, SnapshotRecord | None]],
        source: Callable[[SnapshotRecord], Coroutine[Any, Any, StartSource]],
        told: Callable[[SnapshotRecord], Coroutine[Any, Any, None]],
        drivers: Drivers,
        templates: Templates,
        reservations: Reservations,
    ) -> None:
        self._drivers = drivers
        self._templates = templates
        self._reservations = reservations
        self._manager = manager
        self._images = images
        self._using = using
        self._current = current
        self._source = source
        self._told = told
        self._waiting: deque[tuple[SnapshotId, int]] = deque()
        self._there = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._now: tuple[SnapshotId, Sandbox] | None = None

    def put(self, snapshot: SnapshotId, tries: int = TRIES) -> None:
        """Have one verified."""
        self._waiting.append((snapshot, tries))
        self._quiet.clear()
        self._there.set()

    def drop(self, snapshot: SnapshotId) -> None:
        """It is deleted: leave it."""
        if self._now is not None and self._now[0] == snapshot:
            self._now[1].request_end(Exit(ExitReason.KILLED, "the snapshot was deleted"))

    async def settled(self) -> None:
        """Return once nothing waits to be verified."""
        await self._quiet.wait()

    async def run(self) -> None:
        """Verify what there is to verify, for as long as the service lives."""
        while True:
            await self._there.wait()
            snapshot, tries = self._waiting.popleft()
            try:
                await self._attend(snapshot, tries)
            except Exception:  # noqa: BLE001 - whatever it is, the next one is not to suffer from it
                _log.exception("snapshot.not_verified", snapshot=snapshot)
            if not self._waiting:
                self._there.clear()
                self._quiet.set()

    async def _attend(self, snapshot: SnapshotId, tries: int) -> None:
        with self._using(snapshot):
            record = await self._current(snapshot)
            if record is None:
                return
            try:
                done = await self._verified(record)
            except SandlotError as error:
                if error.code in _ENDS or await self._current(snapshot) is None:
                    return  # the next service does it; or it was deleted meanwhile
                if error.code not in _PASSES | _BAD:
                    _log.warning("snapshot.not_verified", snapshot=snapshot, error=str(error))
                    return  # that says nothing about the snapshot: such isolation is not allowed at the moment, for example
                passes = error.code in _PASSES
                if passes or tries > 1:
                    _log.warning("snapshot.not_verified_yet", snapshot=snapshot, error=str(error), next_try_s=PAUSE_S)
                    await asyncio.sleep(PAUSE_S)
                    self.put(snapshot, tries if passes else tries - 1)
                    return
                _log.error("snapshot.unusable", snapshot=snapshot, error=str(error))
                done = replace(record, problem=f"it could not be restored when that was tried: {error.message}")
            await self._told(done)

    async def _verified(self, record: SnapshotRecord) -> SnapshotRecord:
        """Restore it once, and pack its files; its record as it is then.

        Raises:
            SandlotError: It could not be restored, or not now.
        """
        try:
            source = await self._source(record)
        except ConflictError:
            return record  # it can be seen, and is said whenever somebody asks for it
        if source.constraints.restored != MEMORY:
            return record
        await self._check_room(record)
        params = CreateSandboxParams(
            metadata={USE_WORD: ONE_RUN},
            limits=record.spec.limits,
            timeout_s=TIMEOUT_S,
            isolation=record.spec.isolation,
            network=Network.NONE,
        )
        sandbox = await self._manager.create(params, OPERATOR, source=source)
        sandbox.single_use = True
        self._now = record.id, sandbox
        try:
            layer = self._images.layer(record.id)
            base = await self._templates.resolve_for(sandbox.spec)
            size_bytes = await overlay.pack_layer(sandbox, layer, base.root.path)
        except SandlotError as error:
            # It was restored: that its files could not be packed makes it no worse a snapshot of memory.
            if error.code in _PASSES | _ENDS:
                raise
            _log.warning("snapshot.no_layer", snapshot=record.id, error=str(error))
            return record
        finally:
            self._now = None
            sandbox.request_end(Exit(ExitReason.KILLED, "what it was for is done"))
        return replace(record, layer=True, size_bytes=record.size_bytes + size_bytes)

    async def _check_room(self, record: SnapshotRecord) -> None:
        """Nothing that is kept ready for clients is to go for this.

        Raises:
            UnavailableError: There is no room beside it.
        """
        reservations = self._reservations
        takes = self._drivers[record.spec.isolation].max_resources(record.spec.limits)
        if not reservations.fits(takes, await reservations.read_host()):
            raise UnavailableError(f"There is no room to restore {record.id} now.", code=ErrorCode.BUSY)
