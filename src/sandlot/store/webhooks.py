"""Records of webhooks. Each record includes the progress of the delivery of events to the webhook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, func, or_, select, update
from sqlalchemy import insert as plain_insert

from sandlot.model.access import OwnerId
from sandlot.model.ids import NodeId, WebhookId
from sandlot.model.records import DeliveryProgress, WebhookChange, WebhookRecord
from sandlot.store.engine import Database
from sandlot.store.schema import webhooks
from sandlot.store.statements import filter_by

_PROGRESS = tuple(field.name for field in fields(DeliveryProgress))
_COLUMNS = tuple(field.name for field in fields(WebhookRecord) if field.name not in {"events", "progress"})


class SqlWebhookRepository:
    """Implements :class:`sandlot.model.repositories.WebhookRepository`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, record: WebhookRecord, *, max_per_owner: int) -> bool:
        """Insert the record of a webhook. Return False, and insert nothing, if its owner already has ``max_per_owner`` webhooks."""
        number = select(func.count()).select_from(webhooks).where(webhooks.c.owner == record.owner)
        row = {"events": list(record.events), **{name: getattr(record, name) for name in _COLUMNS}, **asdict(record.progress)}

        def work(connection: Connection) -> bool:
            if int(connection.execute(number).scalar_one()) >= max_per_owner:
                return False
            connection.execute(plain_insert(webhooks), row)
            return True

        return await self._database.write(work)

    async def get(self, webhook: WebhookId) -> WebhookRecord | None:
        """Return the record of a webhook, or None if there is no record with this id."""
        found = await self._database.rows(select(webhooks).where(webhooks.c.id == webhook))
        return _record(found[0]) if found else None

    async def list(self, owner: OwnerId | None) -> Sequence[WebhookRecord]:
        """Return the records of an owner's webhooks in the order of ``created_at`` and id. If ``owner`` is None, return those of all owners."""
        query = filter_by(select(webhooks), webhooks, owner=owner).order_by(webhooks.c.created_at, webhooks.c.id)
        return [_record(row) for row in await self._database.rows(query)]

    async def update(self, webhook: WebhookId, change: WebhookChange) -> WebhookRecord | None:
        """Change the record of a webhook and return the changed record. Return None if there is no record with this id.

        Args:
            webhook: Id of the webhook.
            change: New values; fields that are None are unchanged. A new URL also resets the number of failed attempts and the next attempt's time.
        """
        values = {name: value for name, value in asdict(change).items() if value is not None}
        if change.events is not None:
            values["events"] = list(change.events)
        if change.url is not None:
            values |= {"failed_attempts": 0, "next_attempt_at": None}
        if not values:
            return await self.get(webhook)
        statement = update(webhooks).where(webhooks.c.id == webhook).values(**values).returning(*webhooks.columns)
        row = await self._database.write(lambda connection: connection.execute(statement).first())
        return None if row is None else _record(row)

    async def lease(self, webhook: WebhookId, node: NodeId, *, now: datetime, until: datetime) -> WebhookRecord | None:
        """Give a node the lease of a webhook, or renew it, and return the record. Return None if another node has the lease or the webhook is gone.

        Args:
            webhook: Id of the webhook.
            node: Node that delivers to the webhook while it has the lease.
            now: Current time. Leases that end at or before this time are free.
            until: End of the new lease.
        """
        is_free = or_(webhooks.c.leased_by.is_(None), webhooks.c.leased_by == node, webhooks.c.leased_until <= now)
        statement = update(webhooks).where(webhooks.c.id == webhook, is_free).values(leased_by=node, leased_until=until).returning(*webhooks.columns)
        row = await self._database.write(lambda connection: connection.execute(statement).first())
        return None if row is None else _record(row)

    async def save_progress(self, webhook: WebhookId, node: NodeId, progress: DeliveryProgress) -> bool:
        """Record the progress of a webhook's delivery. Return False, and record nothing, if the node no longer has the webhook's lease."""
        statement = update(webhooks).where(webhooks.c.id == webhook, webhooks.c.leased_by == node).values(**asdict(progress))
        return await self._database.apply(statement) > 0

    async def remove(self, webhook: WebhookId) -> bool:
        """Delete the record of a webhook. Return False if there is no such record."""
        return await self._database.apply(delete(webhooks).where(webhooks.c.id == webhook)) > 0


def _record(row: Row[Any]) -> WebhookRecord:
    progress = DeliveryProgress(**{name: getattr(row, name) for name in _PROGRESS})
    return WebhookRecord(events=tuple(row.events), progress=progress, **{name: getattr(row, name) for name in _COLUMNS})
