"""The SQL store: all repositories of one SQLite or PostgreSQL database."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import Connection, select

from sandlot.store import engine, migrations
from sandlot.store.agents import SqlAgentRepository
from sandlot.store.events import SqlEventRepository
from sandlot.store.executions import SqlExecutionRepository
from sandlot.store.files import SqlFileRepository
from sandlot.store.keys import SqlKeyRepository
from sandlot.store.sandboxes import SqlSandboxRepository
from sandlot.store.schema import IDENTITY, counters
from sandlot.store.snapshots import SqlSnapshotRepository
from sandlot.store.statements import insert
from sandlot.store.templates import SqlTemplateRepository
from sandlot.store.volumes import SqlVolumeRepository
from sandlot.store.webhooks import SqlWebhookRepository


class SqlStore:
    """Implements :class:`sandlot.model.repositories.Store`.

    Args:
        database: An open database that has the current schema.
    """

    def __init__(self, database: engine.Database) -> None:
        self._database = database
        self._sandboxes = SqlSandboxRepository(database)
        self._snapshots = SqlSnapshotRepository(database)
        self._volumes = SqlVolumeRepository(database)
        self._keys = SqlKeyRepository(database)
        self._files = SqlFileRepository(database)
        self._executions = SqlExecutionRepository(database)
        self._events = SqlEventRepository(database)
        self._webhooks = SqlWebhookRepository(database)
        self._agents = SqlAgentRepository(database)
        self._templates = SqlTemplateRepository(database)

    @property
    def sandboxes(self) -> SqlSandboxRepository:
        """Repository of sandboxes."""
        return self._sandboxes

    @property
    def snapshots(self) -> SqlSnapshotRepository:
        """Repository of snapshots."""
        return self._snapshots

    @property
    def volumes(self) -> SqlVolumeRepository:
        """Repository of volumes."""
        return self._volumes

    @property
    def keys(self) -> SqlKeyRepository:
        """Repository of API keys."""
        return self._keys

    @property
    def files(self) -> SqlFileRepository:
        """Repository of the records of stored files."""
        return self._files

    @property
    def executions(self) -> SqlExecutionRepository:
        """Repository of the execution log."""
        return self._executions

    @property
    def events(self) -> SqlEventRepository:
        """Repository of events."""
        return self._events

    @property
    def webhooks(self) -> SqlWebhookRepository:
        """Repository of webhooks and of the progress of their deliveries."""
        return self._webhooks

    @property
    def agents(self) -> SqlAgentRepository:
        """Repository of agents and their sessions."""
        return self._agents

    @property
    def templates(self) -> SqlTemplateRepository:
        """Repository of the templates of users, and of their builds."""
        return self._templates

    async def identity(self) -> str:
        """Return the random id of this database: 16 hexadecimal digits. The first call creates the id, which never changes afterwards."""
        query = select(counters.c.value).where(counters.c.name == IDENTITY)
        insertion = insert(self._database.dialect, counters).on_conflict_do_nothing(index_elements=["name"])

        def create(connection: Connection) -> int:
            connection.execute(insertion, {"name": IDENTITY, "value": secrets.randbits(63)})
            return int(connection.execute(query).scalar_one())

        found = await self._database.rows(query)
        return f"{int(found[0].value) if found else await self._database.write(create):016x}"


@asynccontextmanager
async def open_store(location: Path | str) -> AsyncIterator[SqlStore]:
    """Open the store of a database. Create the tables of a new database, and migrate the tables of an older version.

    Args:
        location: Path of an SQLite file in an existing folder, or the URL of a PostgreSQL database.

    Raises:
        InvalidRequestError: The URL is not a PostgreSQL URL.
        HostError: The database was migrated by a newer version, is damaged or cannot be used.
        UnavailableError: The database cannot be reached.
    """
    async with engine.open_database(location) as database:
        await migrations.migrate(database)
        yield SqlStore(database)
