"""An open database: connections, transactions, and translation of its errors.

Invariants:
- One connection of this process writes to SQLite, and each of its transactions begins with the lock (BEGIN IMMEDIATE). Two transactions of the
  process therefore never wait for each other halfway, and "database is locked" cannot occur. If another process has the lock, the transaction waits
  for it (``busy_timeout``).
- A transaction that has begun is completed, even if its caller is cancelled.
- A transaction is one synchronous function for both databases. On SQLite the whole function runs in a thread (a thread call for each statement,
  as in asynchronous drivers, made a commit three times slower). On PostgreSQL it runs in the event loop.
- A transaction that has returned is on disk: SQLite's ``synchronous`` is FULL (in WAL mode NORMAL loses the last transactions in a power failure,
  https://www.sqlite.org/pragma.html#pragma_synchronous), PostgreSQL's ``synchronous_commit`` is as its operator set it (on by default).
- No message and no log line contains values of a statement, a password, or a URL with a password.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import asyncpg  # type: ignore[import-untyped]  # it has no py.typed
from sqlalchemy import URL, Connection, Engine, Executable, Row, create_engine, event, exc
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from sandlot.host.blocking import outlast_cancellation
from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, SandlotError, UnavailableError

_Result = TypeVar("_Result")

READERS: Final = 4
"""Connections that read from SQLite, each with a thread."""
CONNECTIONS: Final = 8
"""Connections of one process to PostgreSQL, which allows 100 in all by default (``max_connections``)."""
WAIT_S: Final = 30.0
"""Time limit for a connection, and for another process that writes."""
COMMAND_TIMEOUT_S: Final = 60.0
WAL_BYTES: Final = 64 * 1024 * 1024
"""Size to which SQLite's write-ahead log is truncated after it was larger (``journal_size_limit``)."""
_PRIVATE = 0o600
_SCHEMES = ("postgresql://", "postgres://")

_SQLITE: Final = {
    sqlite3.SQLITE_FULL: ("the disk is full", "Free space on the disk. No confirmed write is lost."),
    sqlite3.SQLITE_READONLY: ("it cannot be written to", "Make its folder and file system writable, or set SANDLOT_DATA_DIR to another directory."),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "Make its folder readable and writable, or set SANDLOT_DATA_DIR to another directory."),
    sqlite3.SQLITE_PERM: ("it cannot be opened", "Make its folder readable and writable, or set SANDLOT_DATA_DIR to another directory."),
    sqlite3.SQLITE_IOERR: ("the disk failed", "See the kernel's log (dmesg). No confirmed write is lost unless the disk lost it."),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", "Restore it from a backup, or recover what is left: sqlite3 FILE .recover"),
    sqlite3.SQLITE_NOTADB: ("it is not a database, or is damaged", "Restore it from a backup, or move it away to start with an empty database."),
}
"""Reason and hint by SQLite's primary result code (https://www.sqlite.org/rescode.html)."""


Work = Callable[[Connection], _Result]
"""The statements of one transaction."""


class _TransactionRunner(Protocol):
    """Runs transactions on one kind of connection."""

    dialect: str

    async def run(self, work: Work[_Result]) -> _Result:
        """Run a transaction. If the work raises, nothing is changed."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Idempotent."""
        ...


class _ThreadRunner:
    """Runs transactions in threads. Each thread has its own connection.

    Args:
        engine: Engine of the connections.
        count: Number of threads.
        name: Prefix of the threads' names.
    """

    def __init__(self, engine: Engine, count: int, name: str) -> None:
        self.dialect = engine.dialect.name
        self._engine = engine
        self._threads = ThreadPoolExecutor(count, name)

    async def run(self, work: Work[_Result]) -> _Result:
        """Run a transaction."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    def _run(self, work: Work[_Result]) -> _Result:
        with self._engine.begin() as connection:
            return work(connection)


class _AsyncRunner:
    """Runs transactions in the event loop.

    Args:
        engine: Engine of the connections.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.dialect = engine.dialect.name
        self._engine = engine

    async def run(self, work: Work[_Result]) -> _Result:
        """Run a transaction."""
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._engine.dispose()


class Database:
    """An open database.

    Args:
        reader: Runs transactions that read. Each of them sees the data as of one moment.
        writer: Runs transactions that write.
        location: Name of the database in messages.
    """

    def __init__(self, reader: _TransactionRunner, writer: _TransactionRunner, location: str) -> None:
        self._reader = reader
        self._writer = writer
        self.location = location

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self._writer.dialect

    async def read(self, work: Work[_Result]) -> _Result:
        """Run a transaction that reads.

        Raises:
            HostError: The database or its disk is damaged.
            UnavailableError: The database cannot be reached now.
        """
        return await outlast_cancellation(self._run(self._reader, work))

    async def write(self, work: Work[_Result]) -> _Result:
        """Run a transaction that writes. If the work raises, nothing is changed.

        Raises:
            HostError: The disk is full or cannot be written to, or the database is damaged.
            UnavailableError: The database cannot be reached now.
        """
        return await outlast_cancellation(self._run(self._writer, work))

    async def rows(self, query: Executable) -> Sequence[Row[Any]]:
        """Return all rows of a query."""
        return await self.read(lambda connection: connection.execute(query).all())

    async def apply(self, statement: Executable) -> int:
        """Execute a statement that writes. Return the number of rows that it changed."""
        return await self.write(lambda connection: connection.execute(statement).rowcount)

    async def apply_until_done(self, statement: Executable) -> int:
        """Execute a statement for a batch of rows, one transaction for each batch, until no row is left. Other writers run in between.

        Returns:
            The number of changed rows.
        """
        total = 0
        while changed := await self.apply(statement):
            total += changed
        return total

    async def aclose(self) -> None:
        """Close all connections after running transactions have ended. Idempotent."""
        await outlast_cancellation(self._reader.aclose())
        await outlast_cancellation(self._writer.aclose())

    async def _run(self, runner: _TransactionRunner, work: Work[_Result]) -> _Result:
        try:
            return await runner.run(work)
        except (exc.SQLAlchemyError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise translate_error(error, self.location) from error


@asynccontextmanager
async def open_database(location: Path | str) -> AsyncIterator[Database]:
    """Open a database. Connections are made on first use.

    Args:
        location: A file for SQLite, created if it does not exist; or the URL of a PostgreSQL database, with all options of libpq's URLs.

    Raises:
        InvalidRequestError: The URL is not a PostgreSQL URL.
        HostError: The file cannot be created.
    """
    database = _sqlite(location) if isinstance(location, Path) else _postgresql(location)
    try:
        yield database
    finally:
        await database.aclose()


def _sqlite(file: Path) -> Database:
    try:
        # SQLite gives its log and shared memory the permissions of this file. No other user may read them.
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
        # secure_delete: environments of ended sandboxes are overwritten, not only unlinked.
        pragmas=("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", f"journal_size_limit = {WAL_BYTES}", "secure_delete = ON"),
    )
    return Database(_ThreadRunner(reader, READERS, "store-reader"), _ThreadRunner(writer, 1, "store-writer"), str(file))


def _sqlite_engine(file: Path, *, connections: int, begin: str, pragmas: tuple[str, ...]) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(file)),
        # isolation_level None: Python does not begin transactions by itself; the listener below does. A connection is used by one thread at a
        # time, but not always by the same one.
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
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgresql(url: str) -> Database:
    if not url.startswith(_SCHEMES):
        raise InvalidRequestError(
            "The URL of the database does not begin with postgresql://.",
            hint="Set SANDLOT_DATABASE_URL to postgresql://USER:PASSWORD@HOST/DATABASE, or unset it to use SQLite.",
        )

    async def connect(**arguments: object) -> object:
        # asyncpg parses the URL itself, because it supports all options of libpq (sslmode, several hosts, a socket's folder, PGPASSFILE).
        try:
            return await asyncpg.connect(url, command_timeout=COMMAND_TIMEOUT_S, **arguments)
        except ValueError:  # the message quotes the URL, which may contain a password
            raise InvalidRequestError(
                "SANDLOT_DATABASE_URL cannot be parsed.",
                hint="Set it to postgresql://USER:PASSWORD@HOST/DATABASE. In a password write '@', ':', '/' and '%' as %40, %3A, %2F and %25.",
            ) from None

    engine = create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": connect, "timeout": WAIT_S, "server_settings": {"application_name": "sandlot"}},
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=WAIT_S,
        pool_pre_ping=True,  # otherwise a restart of the database is noticed only when a statement fails
        hide_parameters=True,
    )
    reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Database(_AsyncRunner(reader), _AsyncRunner(engine), "PostgreSQL")


def translate_error(error: Exception, location: str) -> SandlotError:
    """Translate an error of a database. Pure.

    Args:
        error: An error of SQLAlchemy, of a driver or of the system.
        location: Name of the database, for the message.
    """
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        primary = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if primary in _SQLITE:
            reason, hint = _SQLITE[primary]
            return HostError(f"The database {location} cannot be used: {reason}.", code=ErrorCode.HOST_NOT_READY, hint=hint)
        if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return _unavailable(f"Another process has locked the database {location} for {WAIT_S:g} seconds.", "Try again, or end that process.")
    state = str(getattr(cause, "sqlstate", None) or "")
    # https://www.postgresql.org/docs/current/errcodes-appendix.html: classes 28 and 3D are about user and database, 58 and XX failures of the server.
    if state.startswith(("28", "3D")) or state == "42501":
        return HostError(
            f"{location} rejects the connection of this service: {_first_line(cause)}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Correct SANDLOT_DATABASE_URL, or the permissions of its user, which must own its schema.",
        )
    if state in {"53100", "25006"} or state.startswith(("XX", "58")):
        return HostError(
            f"{location} cannot be used: {_first_line(cause)}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="See the database's log. No confirmed write is lost.",
        )
    # No response, or classes 08 (connection), 40 (deadlock), 53 (too many connections), 55 (in use), 57 (stopped by its operator).
    if state.startswith(("08", "40", "53", "55", "57")) or (not state and not isinstance(cause, sqlite3.Error) and _is_no_response(error)):
        return _unavailable(
            f"The database {location} does not respond: {_first_line(cause)}.", "Try again. If it happens again, see the database's log."
        )
    return InternalError(f"The database {location} refused a statement: {_first_line(cause)}.", hint="Report this defect of Sandlot.")


def _is_no_response(error: Exception) -> bool:
    return isinstance(error, (exc.TimeoutError, exc.InterfaceError, exc.OperationalError, OSError, asyncpg.InterfaceError)) or (
        isinstance(error, exc.DBAPIError) and error.connection_invalidated
    )


def _unavailable(message: str, hint: str) -> UnavailableError:
    return UnavailableError(message, code=ErrorCode.SERVICE_UNAVAILABLE, hint=hint, fields={"retry_after_s": 1})


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:300]
