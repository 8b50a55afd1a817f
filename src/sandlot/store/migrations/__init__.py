"""From what an older version left to what this one expects.

Laws:
- All steps that are missing are one transaction (SQLite and PostgreSQL both take back what was done to tables): there is no half of it.
- One process at a time does them: the transaction itself is the lock on SQLite (BEGIN IMMEDIATE), an advisory lock on PostgreSQL.
- A database that a newer version has changed is refused before anything is read from it or written to it.
- A step that was released is never edited; it takes its operations as an argument, so that nothing of Alembic's is shared between two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, inspect, text

from sandlot.model.errors import ErrorCode, HostError
from sandlot.store.engine import Database
from sandlot.store.schema import HEAD, VERSION_TABLE

_ADVISORY_LOCK: Final = 0x53414E444C4F54
"""``SANDLOT`` in ASCII: two programs in one database seldom choose the same."""


STEPS: Final = Path(__path__[0])
"""The folder of the steps."""


async def migrate(database: Database, steps: Path = STEPS, head: str = HEAD) -> None:
    """Bring a database to what this version expects.

    Args:
        database: Which.
        steps: The folder with the folder ``versions``.
        head: The revision that it is brought to.

    Raises:
        HostError: A newer version has changed it, or it cannot be used.
        UnavailableError: It cannot be reached.
    """

    def work(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _ADVISORY_LOCK})
        _bring_up(connection, database.where, steps, head)

    if await database.read(_revision) != head:
        await database.write(work)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant
    return found


def _bring_up(connection: Connection, where: str, folder: Path, head: str) -> None:
    now = _revision(connection)
    if now == head:
        return  # somebody else has done it meanwhile
    # Takes a third of a second to import, and is needed once for each version.
    from alembic.migration import MigrationContext  # noqa: PLC0415
    from alembic.operations import Operations  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    scripts = ScriptDirectory(str(folder))
    try:
        steps = scripts._upgrade_revs(head, now or "base")  # noqa: SLF001 - what its own command.upgrade calls
    except CommandError:
        raise HostError(
            f"The database {where} was written by a newer version of Sandlot (its revision is {now}, this version's {head}).",
            code=ErrorCode.HOST_NOT_READY,
            hint="Use that version or a newer one; this one has changed nothing.",
        ) from None
    context = MigrationContext.configure(connection, opts={"fn": lambda _now, _context: steps, "transactional_ddl": True})
    context.run_migrations(op=Operations(context))
