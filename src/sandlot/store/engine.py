"""A database that is open: connections, transactions, and errors in words.

Laws:
- One connection of this process writes to SQLite, and every transaction on it begins with the lock (BEGIN IMMEDIATE): no two of them wait
  for each other half-way, so "database is locked" cannot occur within the process. Another process's is waited for (``busy_timeout``).
- A transaction that was begun is finished: who asked for it may be cancelled meanwhile, the transaction is not.
- A transaction is one piece of plain code, whatever the database: on SQLite it goes to a thread once as a whole (statement by statement, as
  asynchronous drivers do it, a commit took three times as long), on PostgreSQL it waits in the event loop.
- What returned is on disk: SQLite's ``synchronous`` is FULL (in WAL mode NORMAL loses the last transactions with the power,
  https://www.sqlite.org/pragma.html#pragma_synchronous), PostgreSQL's ``synchronous_commit`` is as its operator has it (on).
- No statement's values, no password and no URL with one is in a message or a log.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import asyncpg  # type: ignore[import-untyped]  # it has no py.typed
from sqlalchemy import URL, Connection, Engine, Executable, Row, create_engine, event, exc
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, SandlotError, UnavailableError

_Result = TypeVar("_Result")

READERS: Final = 4
"""Connections that read from SQLite; each is a thread."""
CONNECTIONS: Final = 8
"""Of one process to PostgreSQL, whose default is 100 for all (``max_connections``)."""
WAIT_S: Final = 30.0
"""For a connection, and for another process that writes."""
COMMAND_TIMEOUT_S: Final = 60.0
WAL_BYTES: Final = 64 * 1024 * 1024
"""What SQLite's log is cut back to after it was larger (``journal_size_limit``)."""
_PRIVATE = 0o600
_SCHEMES = ("postgresql://", "postgres://")

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: ("the disk is full", "Free some space where it is; nothing that was confirmed is lost."),
    sqlite3.SQLITE_READONLY: ("it cannot be written to", "Make its folder and file system writable, or set SANDLOT_DATA_DIR to another directory."),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "Make its folder readable and writable, or set SANDLOT_DATA_DIR to another directory."),
    sqlite3.SQLITE_PERM: ("it cannot be opened", "Make its folder readable and writable, or set SANDLOT_DATA_DIR to another directory."),
    sqlite3.SQLITE_IOERR: ("the disk failed", "See the kernel's log (dmesg); nothing that was confirmed is lost unless the disk lost it."),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", "Restore it from a backup, or rescue what is left of it: sqlite3 FILE .recover"),
    sqlite3.SQLITE_NOTADB: ("it is no database, or is damaged", "Restore it from a backup, or move it away to begin anew."),
}
"""SQLite's primary result code -> what happened, what to do (https://www.sqlite.org/rescode.html)."""


Work = Callable[[Connection], _Result]
"""What is done in one transaction."""


class _Transactions(Protocol):
    """Where transactions of one kind are carried out."""

    dialect: str

    async def run(self, work: Work[_Result]) -> _Result:
        """Carry one out: all of it or, where something is raised, nothing."""
        ...

    async def aclose(self) -> None:
        """Let its connections go. Idempotent."""
        ...


class _Threads:
    """Transactions in threads, each with a connection of its own.

    Args:
        engine: Where they begin.
        count: How many at once.
        name: What the threads are called.
    """

    def __init__(self, engine: Engine, count: int, name: str) -> None:
        self.dialect = engine.dialect.name
        self._engine = engine
        self._threads = ThreadPoolExecutor(count, name)

    async def run(self, work: Work[_Result]) -> _Result:
        """Carry one out."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    async def aclose(self) -> None:
        """Let its connections go."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    def _run(self, work: Work[_Result]) -> _Result:
        with self._engine.begin() as connection:
            return work(connection)


class _Loop:
    """Transactions in the event loop.

    Args:
        engine: Where they begin.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.dialect = engine.dialect.name
        self._engine = engine

    async def run(self, work: Work[_Result]) -> _Result:
        """Carry one out."""
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def aclose(self) -> None:
        """Let its connections go."""
        await self._engine.dispose()


class Database:
    """One that is open.

    Args:
        reader: Where transactions that read are carried out; each sees one moment.
        writer: Where those are that write.
        where: What to call it in a message.
    """

    def __init__(self, reader: _Transactions, writer: _Transactions, where: str) -> None:
        self._reader = reader
        self._writer = writer
        self.where = where

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._writer.dialect

    async def read(self, work: Work[_Result]) -> _Result:
        """Do some reading in one transaction, as of one moment.

        Raises:
            HostError: The database is damaged or its disk is.
            UnavailableError: It cannot be reached now.
        """
        return await finished(self._transaction(self._reader, work))

    async def write(self, work: Work[_Result]) -> _Result:
        """Do some writing in one transaction: all of it or, where something is raised, nothing.

        Raises:
            HostError: The disk is full or cannot be written to, or the database is damaged.
            UnavailableError: It cannot be reached now.
        """
        return await finished(self._transaction(self._writer, work))

    async def rows(self, query: Executable) -> Sequence[Row[Any]]:
        """All rows of one query."""
        return await self.read(lambda connection: connection.execute(query).all())

    async def apply(self, statement: Executable) -> int:
        """Execute one statement that writes; how many rows it touched."""
        return await self.write(lambda connection: connection.execute(statement).rowcount)

    async def apply_all(self, piece: Executable) -> int:
        """Execute a statement that writes to some rows until it finds none, one transaction each time: others get their turn between."""
        total = 0
        while some := await self.apply(piece):
            total += some
        return total

    async def aclose(self) -> None:
        """Let all connections go, once what is under way is done. Idempotent."""
        await finished(self._reader.aclose())
        await finished(self._writer.aclose())

    async def _transaction(self, transactions: _Transactions, work: Work[_Result]) -> _Result:
        try:
            return await transactions.run(work)
        except (exc.SQLAlchemyError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise translated(error, self.where) from error


async def finished(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Do some work to its end, even where who waits for it is cancelled; the cancellation is raised then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                continue
        if not task.cancelled():
            task.exception()  # it was looked at
        raise


@asynccontextmanager
async def opened(where: Path | str) -> AsyncIterator[Database]:
    """A database, connected to on first use.

    Args:
        where: A file of SQLite's, made where it is not there; or the URL of a PostgreSQL database, with all that libpq's URLs may say.

    Raises:
        InvalidRequestError: The URL is of neither.
        HostError: The file cannot be made.
    """
    database = _sqlite(where) if isinstance(where, Path) else _postgresql(where)
    try:
        yield database
    finally:
        await database.aclose()


def _sqlite(file: Path) -> Database:
    try:
        # Its log and its shared memory get the permissions that it has: nobody else may read any of them.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE))
    except OSError as error:
        raise HostError(
            f"The database {file} cannot be opened: {error.strerror}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Make its folder readable and writable, or set SANDLOT_DATA_DIR to another directory.",
        ) from error
    reader = _sqlite_engine(file, connections=READERS, begin="BEGIN", pragmas=("query_only = ON",))
    writer = _sqlite_engine(
        file,
        connections=1,
        begin="BEGIN IMMEDIATE",
        # Environments of sandboxes that have ended are overwritten, not only unlinked.
        pragmas=("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", f"journal_size_limit = {WAL_BYTES}", "secure_delete = ON"),
    )
    return Database(_Threads(reader, READERS, "store-reader"), _Threads(writer, 1, "store-writer"), str(file))


def _sqlite_engine(file: Path, *, connections: int, begin: str, pragmas: tuple[str, ...]) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(file)),
        # isolation_level: Python's own guesses about where a transaction begins are off; the listener below says it. A connection is in one
        # thread at a time, but not always in the same one.
        connect_args={"isolation_level": None, "timeout": WAIT_S, "check_same_thread": False},
        pool_size=connections,
        max_overflow=0,
        pool_timeout=WAIT_S,
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def begin_it(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgresql(url: str) -> Database:
    if not url.startswith(_SCHEMES):
        raise InvalidRequestError(
            "The URL of the database does not begin with postgresql://.",
            hint="Set SANDLOT_DATABASE_URL to postgresql://USER:PASSWORD@HOST/DATABASE, or unset it: then the database is a file of SQLite's.",
        )

    async def connect(**arguments: object) -> object:
        # asyncpg reads the URL itself: it knows all that libpq's may say (sslmode, several hosts, a socket's folder, PGPASSFILE).
        try:
            return await asyncpg.connect(url, command_timeout=COMMAND_TIMEOUT_S, **arguments)
        except ValueError:  # it quotes the URL, which may hold a password
            raise InvalidRequestError(
                "SANDLOT_DATABASE_URL cannot be understood.",
                hint="It must be postgresql://USER:PASSWORD@HOST/DATABASE; in a password write '@', ':', '/' and '%' as %40, %3A, %2F and %25.",
            ) from None

    engine = create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": connect, "timeout": WAIT_S, "server_settings": {"application_name": "sandlot"}},
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=WAIT_S,
        pool_pre_ping=True,  # a database that was restarted is not noticed otherwise until a statement fails
        hide_parameters=True,
    )
    reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Database(_Loop(reader), _Loop(engine), "PostgreSQL")


def translated(error: Exception, where: str) -> SandlotError:
    """What a database's error is to us. Pure.

    Args:
        error: It, of SQLAlchemy, a driver or the system.
        where: The database, for the message.
    """
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        primary = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if primary in _SQLITE:
            what, hint = _SQLITE[primary]
            return HostError(f"The database {where} cannot be used: {what}.", code=ErrorCode.HOST_NOT_READY, hint=hint)
        if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return _unavailable(f"Another process has held the database {where} for {WAIT_S:g} seconds.", "Try again, or find out which one it is.")
    state = str(getattr(cause, "sqlstate", None) or "")
    # https://www.postgresql.org/docs/current/errcodes-appendix.html: classes 28 and 3D say who and where, 58 and XX are its own failures.
    if state.startswith(("28", "3D")) or state == "42501":
        return HostError(
            f"{where} refuses this service: {_first_line(cause)}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Correct SANDLOT_DATABASE_URL, or what the database allows its user: it must own its schema.",
        )
    if state in {"53100", "25006"} or state.startswith(("XX", "58")):
        return HostError(
            f"{where} cannot be used: {_first_line(cause)}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="See the database's log; nothing that was confirmed is lost.",
        )
    # No answer at all, or classes 08 (connection), 40 (deadlock), 53 (too many connections), 55 (in use), 57 (stopped by its operator).
    if state.startswith(("08", "40", "53", "55", "57")) or (not state and not isinstance(cause, sqlite3.Error) and _is_silence(error)):
        return _unavailable(f"The database {where} does not answer: {_first_line(cause)}.", "Try again; see the database's log if it goes on.")
    return InternalError(f"The database {where} refused a statement: {_first_line(cause)}.", hint="This is a defect in Sandlot.")


def _is_silence(error: Exception) -> bool:
    return isinstance(error, (exc.TimeoutError, exc.InterfaceError, exc.OperationalError, OSError, asyncpg.InterfaceError)) or (
        isinstance(error, exc.DBAPIError) and error.connection_invalidated
    )


def _unavailable(message: str, hint: str) -> UnavailableError:
    return UnavailableError(message, code=ErrorCode.SERVICE_UNAVAILABLE, hint=hint, fields={"retry_after_s": 1})


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:300]
