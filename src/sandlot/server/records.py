"""Records of a service: opened before its sandboxes start and closed after they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from sandlot.core.access.api_keys import ApiKeys
from sandlot.core.files.store import FileStore
from sandlot.core.node.reservations import Reservations
from sandlot.core.ports import Clock
from sandlot.core.records.events import EventFeed
from sandlot.core.records.execution_log import ExecutionLog
from sandlot.core.records.metrics import Metrics
from sandlot.core.records.retention import Retention
from sandlot.core.records.usage import MonthlyExecutionCounter
from sandlot.model.ids import NodeId
from sandlot.model.storage import Blobs, Store
from sandlot.server.keys import take_over
from sandlot.server.settings import Settings

LAST_WRITE_S = 6.0
"""Limit of the last writes when the service stops; after it, the service stops without them."""

_log = structlog.get_logger("sandlot.server")


@dataclass(frozen=True, slots=True)
class Records:
    """Objects that write the records of a service.

    Args:
        files: File store.
        events: Events of sandboxes and snapshots.
        executions: Execution log.
        metrics: Metrics for Prometheus.
        api_keys: API keys of the callers.
        execution_counter: Executions of each owner in the current month.
    """

    files: FileStore
    events: EventFeed
    executions: ExecutionLog
    metrics: Metrics
    api_keys: ApiKeys
    execution_counter: MonthlyExecutionCounter


@asynccontextmanager
async def open_records(
    settings: Settings,
    node: NodeId,
    store: Store,
    blobs: Blobs,
    clock: Clock,
    reservations: Reservations,
) -> AsyncIterator[Records]:
    """Open the records of a service. Leaving the context writes the pending records.

    Args:
        settings: Settings of the service.
        node: This node.
        store: Store of the rows.
        blobs: Store of the contents of files.
        clock: Clock of the service.
        reservations: Reservations of the node; they refuse further files while the host is short of disk space.
    """
    metrics = Metrics()
    api_keys = ApiKeys(store.keys, clock)
    if imported := await take_over(store.keys, settings.data_dir):
        _log.info("keys.imported", count=imported)
    await api_keys.refresh()
    execution_counter = MonthlyExecutionCounter(store.executions, clock, api_keys.quota_of)
    await execution_counter.refresh()
    files = FileStore(store.files, blobs, clock, max_bytes=settings.upload_max_bytes, room=reservations.check_disk_pressure)
    await files.open()
    execution_log = ExecutionLog(store.executions, node, clock, metrics)
    retention = Retention(store, settings.keep, clock, metrics)
    feed = EventFeed(store.events)
    tasks = [
        asyncio.create_task(_restart_on_defect(work, metrics))
        for work in (execution_log.writer.run, retention.run, metrics.watch_loop, api_keys.run, execution_counter.writer.run)
    ]
    try:
        yield Records(files, feed, execution_log, metrics, api_keys, execution_counter)
    finally:
        feed.close()
        for task in tasks:
            task.cancel()
        # A commit cannot be interrupted, so a store that does not respond can hold each of these tasks for minutes.
        last = [asyncio.create_task(work) for work in (execution_log.aclose(), execution_counter.writer.close(), files.aclose())]
        _, left = await asyncio.wait([*tasks, *last], timeout=LAST_WRITE_S)
        if left:
            _log.error("records.left", hint="The store does not respond; the last records are lost. Check the database.")
            for task in left:
                task.cancel()


async def _restart_on_defect(work: Callable[[], Coroutine[Any, Any, None]], metrics: Metrics) -> None:
    """Run a loop, and start it again after a defect: no caller would notice that the loop has ended."""
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - logged; the work of the loop must continue
            metrics.store_failed("defect")
            _log.exception("records.defect")
            await asyncio.sleep(1)
