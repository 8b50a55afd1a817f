"""The store: all tables of one database, brought to what this version expects."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import Connection, select

from sandlot.store import engine, migrations
from sandlot.store.events import Events
from sandlot.store.executions import Executions
from sandlot.store.files import Files
from sandlot.store.keys import Keys
from sandlot.store.lasting.volumes import Volumes
from sandlot.store.rows import insert
from sandlot.store.sandboxes import Sandboxes
from sandlot.store.schema import IDENTITY, counters
from sandlot.store.snapshots import Snapshots
from sandlot.store.webhooks import Webhooks


class SqlStore:
    """Fills :class:`sandlot.model.storage.Store`.

    Args:
        database: An open one of this version.
    """

    def __init__(self, database: engine.Database) -> None:
        self._database = database
        self._sandboxes = Sandboxes(database)
        self._snapshots = Snapshots(database)
        self._volumes = Volumes(database)
        self._keys = Keys(database)
        self._files = Files(database)
        self._executions = Executions(database)
        self._events = Events(database)
        self._webhooks = Webhooks(database)

    @property
    def sandboxes(self) -> Sandboxes:
        """Sandboxes."""
        return self._sandboxes

    @property
    def snapshots(self) -> Snapshots:
        """Snapshots of sandboxes."""
        return self._snapshots

    @property
    def volumes(self) -> Volumes:
        """Volumes."""
        return self._volumes

    @property
    def keys(self) -> Keys:
        """API keys."""
        return self._keys

    @property
    def files(self) -> Files:
        """Files of the file store."""
        return self._files

    @property
    def executions(self) -> Executions:
        """The log of runs."""
        return self._executions

    @property
    def events(self) -> Events:
        """What happened."""
        return self._events

    @property
    def webhooks(self) -> Webhooks:
        """Who is told of it."""
        return self._webhooks

    async def identity(self) -> str:
        """What tells this database from every other one, 16 hexadecimal digits; made by whoever asks first, and never changed."""
        query = select(counters.c.value).where(counters.c.name == IDENTITY)
        adding = insert(self._database.dialect, counters).on_conflict_do_nothing(index_elements=["name"])

        def make(connection: Connection) -> int:
            connection.execute(adding, {"name": IDENTITY, "value": secrets.randbits(63)})
            return int(connection.execute(query).scalar_one())

        found = await self._database.rows(query)
        return f"{int(found[0].value) if found else await self._database.write(make):016x}"


@asynccontextmanager
async def open_store(where: Path | str) -> AsyncIterator[SqlStore]:
    """Open a store; make it, or bring it to what this version expects.

    Args:
        where: A file for SQLite, in a folder that is there; or the URL of a PostgreSQL database.

    Raises:
        InvalidRequestError: The URL is of neither.
        HostError: A newer version has changed it, it is damaged, or it cannot be used.
        UnavailableError: It cannot be reached.
    """
    async with engine.opened(where) as database:
        await migrations.migrate(database)
        yield SqlStore(database)
