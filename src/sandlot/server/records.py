"""What a service writes down, in one hand: opened before its sandboxes are, and closed after them."""

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

LAST_S = 6.0
"""How long the store may take for what is written last, before the service leaves without it."""

_log = structlog.get_logger("sandlot.server")


@dataclass(frozen=True, slots=True)
class Records:
    """They.

    Args:
        files: The file store.
        events: What happens.
        executions: What runs.
        metrics: What is counted.
        api_keys: Who may ask.
        execution_counter: How many runs each of them has begun.
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
    """Write down what happens; in the end, what is left of it.

    Args:
        settings: What the operator set.
        node: This one.
        store: Where rows are kept.
        blobs: Where the bytes of files are kept.
        clock: The time.
        reservations: Refuses more files while the host is short of disk space.
    """
    metrics = Metrics()
    api_keys = ApiKeys(store.keys, clock)
    if imported := await take_over(store.keys, settings.data_dir):
        _log.info("keys.imported", count=imported)
    await api_keys.look()
    execution_counter = MonthlyExecutionCounter(store.executions, clock, api_keys.quota_of)
    await execution_counter.open()
    files = FileStore(store.files, blobs, clock, max_bytes=settings.upload_max_bytes, room=reservations.check_disk_pressure)
    await files.open()
    execution_log = ExecutionLog(store.executions, node, clock, metrics)
    retention = Retention(store, settings.keep, clock, metrics)
    feed = EventFeed(store.events)
    tasks = [
        asyncio.create_task(_lasting(work, metrics))
        for work in (execution_log.run, retention.run, metrics.watch_loop, api_keys.run, execution_counter.run)
    ]
    try:
        yield Records(files, feed, execution_log, metrics, api_keys, execution_counter)
    finally:
        feed.close()
        for task in tasks:
            task.cancel()
        # What they commit is committed to its end, so a store that does not answer holds each of them for minutes.
        last = [asyncio.create_task(work) for work in (execution_log.aclose(), execution_counter.aclose(), files.aclose())]
        _, left = await asyncio.wait([*tasks, *last], timeout=LAST_S)
        if left:
            _log.error("records.left", hint="The store does not answer: what was to be written last is lost.")
            for task in left:
                task.cancel()


async def _lasting(work: Callable[[], Coroutine[Any, Any, None]], metrics: Metrics) -> None:
    """Do something again that ended by a defect: nobody else would notice that it has."""
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - it is in the log, and what it does must go on
            metrics.store_failed("defect")
            _log.exception("records.defect")
            await asyncio.sleep(1)
