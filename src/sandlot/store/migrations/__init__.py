"""Migration of a database's tables to the schema of this version of Sandlot.

Invariants:
- All missing steps run in one transaction. SQLite and PostgreSQL both roll back changes of tables, so a database is never half migrated.
- Only one process at a time migrates a database. On SQLite, the transaction (BEGIN IMMEDIATE) locks out other processes. On PostgreSQL, an advisory
  lock does.
- A database that a newer version has migrated is refused before its data is read or changed.
- A step is never edited after its release.
- A step gets Alembic's operations as an argument, so that concurrent migrations of several databases share no state of Alembic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from sandlot.model.errors import ErrorCode, HostError
from sandlot.store.engine import Database
from sandlot.store.schema import HEAD, VERSION_TABLE

_ADVISORY_LOCK: Final = 0x53414E444C4F54
"""Number of the advisory lock: ``SANDLOT`` in ASCII. Other programs in the same database are unlikely to use this number."""


STEPS: Final = Path(__path__[0])
"""Folder that contains the folder ``versions`` with the migration steps."""


async def migrate(database: Database, steps: Path = STEPS, head: str = HEAD) -> None:
    """Migrate a database to a revision of the schema. Do nothing if the database has this revision already.

    Args:
        database: An open database.
        steps: Folder that contains the folder ``versions`` with the migration steps.
        head: Revision to migrate to. Default: the revision of this version of Sandlot.

    Raises:
        HostError: A newer version has migrated the database, or the database cannot be used.
        UnavailableError: The database cannot be reached.
    """

    def work(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _ADVISORY_LOCK})
        _run_steps(connection, database.location, steps, head)

    if await database.read(_revision) != head:
        await database.write(work)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant
    return found


def _run_steps(connection: Connection, location: str, folder: Path, head: str) -> None:
    current = _revision(connection)
    if current == head:
        return  # another process has migrated the database while this process waited for the lock
    # Imported here, because Alembic takes a third of a second to import and is needed only if the database lacks migrations.
    from alembic.migration import MigrationContext  # noqa: PLC0415
    from alembic.operations import Operations  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    scripts = ScriptDirectory(str(folder))
    try:
        steps = scripts._upgrade_revs(head, current or "base")  # noqa: SLF001 - Alembic's own command.upgrade calls it
    except CommandError:
        raise HostError(
            f"The database {location} was written by a newer version of Sandlot (the database has revision {current}, this version has {head}).",
            code=ErrorCode.HOST_NOT_READY,
            hint="Use a version of Sandlot that knows this revision. The database was not changed.",
        ) from None
    context = MigrationContext.configure(connection, opts={"fn": lambda _current, _context: steps, "transactional_ddl": True})
    context.run_migrations(op=Operations(context))
