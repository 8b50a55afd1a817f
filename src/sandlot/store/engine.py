"""An open SQLite or PostgreSQL database: its connections, its transactions, and the translation of its errors.

Invariants:
- One connection of this process writes to SQLite. Each transaction on this connection begins by locking the database (BEGIN IMMEDIATE), so a
  transaction that has begun never waits for another one of this process. If another process has locked the database, a transaction waits up to
  ``WAIT_S`` seconds for the lock.
- A transaction that has begun is completed, even if its caller is cancelled.
- The statements of a transaction are in one synchronous function, the same for both databases. On SQLite the whole function runs in a thread.
  (Asynchronous drivers call a thread for each statement, which made a commit three times slower.) On PostgreSQL the function runs in the event loop.
- A transaction is on disk when the call returns. SQLite's ``synchronous`` is FULL, because in WAL mode NORMAL can lose the last transactions in a
  power failure (https://www.sqlite.org/pragma.html#pragma_synchronous). PostgreSQL's ``synchronous_commit`` is set by its operator (default: on).
- No error message and no log line contains values of a statement, a password, or a URL with a password.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
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
from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, LimitError, SandlotError, UnavailableError

_Result = TypeVar("_Result")

READERS: Final = 4
"""Number of connections that read from SQLite. Each has its own thread."""
CONNECTIONS: Final = 8
"""Maximum number of connections of one process to PostgreSQL, which by default allows 100 connections in all (``max_connections``)."""
WAIT_S: Final = 30.0
"""Seconds that a transaction waits for a free connection, or for the lock of another process that writes to SQLite."""
COMMAND_TIMEOUT_S: Final = 60.0
WAL_BYTES: Final = 64 * 1024 * 1024
"""Bytes to which SQLite truncates its write-ahead log if the log has become larger (``journal_size_limit``)."""
_WAL_RETRY_S: Final = 0.02
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
"""Reason for the error message and hint, by SQLite's primary result code (https://www.sqlite.org/rescode.html)."""


Work = Callable[[Connection], _Result]
"""A function that executes the statements of one transaction on a connection, and returns the result of the transaction."""


class _TransactionRunner(Protocol):
    """Runs transactions on the connections of one engine.

    Attributes:
        dialect: ``sqlite`` or ``postgresql``.
    """

    dialect: str

    async def run(self, work: Work[_Result]) -> _Result:
        """Run ``work`` as one transaction and return its result. If ``work`` raises, nothing is changed."""
        ...

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        ...


class _ThreadRunner:
    """Runs transactions in threads, for SQLite.

    Args:
        engine: Engine that opens the connections.
        count: Number of threads, and of connections that are used at once.
        name: Prefix of the threads' names.
    """

    def __init__(self, engine: Engine, count: int, name: str) -> None:
        self.dialect = engine.dialect.name
        self._engine = engine
        self._threads = ThreadPoolExecutor(count, name)

    async def run(self, work: Work[_Result]) -> _Result:
        """Run ``work`` as one transaction and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await asyncio.to_thread(self._threads.shutdown)
        self._engine.dispose()

    def _run(self, work: Work[_Result]) -> _Result:
        with self._engine.begin() as connection:
            return work(connection)


class _AsyncRunner:
    """Runs transactions in the event loop, for PostgreSQL.

    Args:
        engine: Engine that opens the connections.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.dialect = engine.dialect.name
        self._engine = engine

    async def run(self, work: Work[_Result]) -> _Result:
        """Run ``work`` as one transaction and return its result."""
        async with self._engine.begin() as connection:
            return await connection.run_sync(work)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        await self._engine.dispose()


class Database:
    """An open database.

    Args:
        reader: Runs transactions that only read. All statements of such a transaction see the same state of the database.
        writer: Runs transactions that write.
        location: Name of the database in error messages, without a password.
    """

    def __init__(self, reader: _TransactionRunner, writer: _TransactionRunner, location: str) -> None:
        self._reader = reader
        self._writer = writer
        self.location = location

    @property
    def dialect(self) -> str:
        """Dialect of the database: ``sqlite`` or ``postgresql``."""
        return self._writer.dialect

    async def read(self, work: Work[_Result]) -> _Result:
        """Run ``work`` as one transaction that only reads, and return its result.

        Raises:
            HostError: The database or its disk is damaged.
            UnavailableError: The database cannot be reached now.
        """
        return await outlast_cancellation(self._run(self._reader, work))

    async def write(self, work: Work[_Result]) -> _Result:
        """Run ``work`` as one transaction that writes, and return its result. If ``work`` raises, nothing is changed.

        Raises:
            HostError: The disk cannot be written to, or the database is damaged.
            LimitError: The disk is full (``node_disk_full``).
            UnavailableError: The database cannot be reached now.
        """
        return await outlast_cancellation(self._run(self._writer, work))

    async def rows(self, query: Executable) -> Sequence[Row[Any]]:
        """Execute a query in a transaction of its own and return all rows."""
        return await self.read(lambda connection: connection.execute(query).all())

    async def apply(self, statement: Executable) -> int:
        """Execute a statement that writes, in a transaction of its own. Return the number of rows that the statement changed."""
        return await self.write(lambda connection: connection.execute(statement).rowcount)

    async def apply_until_done(self, statement: Executable) -> int:
        """Execute a statement repeatedly until it changes no row. Each execution is its own transaction, so that other writers can run in between.

        Args:
            statement: A statement that changes at most a limited number of rows, such as a DELETE of 1000 rows.

        Returns:
            The number of rows that were changed in all.
        """
        total = 0
        while changed := await self.apply(statement):
            total += changed
        return total

    async def aclose(self) -> None:
        """Wait until all running transactions have ended, then close all connections. Idempotent."""
        await outlast_cancellation(self._reader.aclose())
        await outlast_cancellation(self._writer.aclose())

    async def _run(self, runner: _TransactionRunner, work: Work[_Result]) -> _Result:
        try:
            return await runner.run(work)
        except (exc.SQLAlchemyError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise translate_error(error, self.location) from error


@asynccontextmanager
async def open_database(location: Path | str) -> AsyncIterator[Database]:
    """Open a database for the duration of the context. Connections are opened on first use.

    Args:
        location: Path of an SQLite file, which is created if it does not exist, or URL of a PostgreSQL database, with any options of libpq's URLs.

    Raises:
        InvalidRequestError: The URL is not a PostgreSQL URL.
        HostError: The SQLite file cannot be opened or created.
    """
    database = _sqlite(location) if isinstance(location, Path) else _postgresql(location)
    try:
        yield database
    finally:
        await database.aclose()


def _sqlite(file: Path) -> Database:
    try:
        # No other user may read the database. SQLite gives its log file and shared-memory file the same permissions as this file.
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
        # secure_delete: SQLite overwrites deleted data with zeros, because the environment variables of sandboxes may contain secrets.
        pragmas=("synchronous = FULL", "foreign_keys = ON", f"journal_size_limit = {WAL_BYTES}", "secure_delete = ON"),
    )
    event.listen(writer, "connect", _enable_wal)
    return Database(_ThreadRunner(reader, READERS, "store-reader"), _ThreadRunner(writer, 1, "store-writer"), str(file))


def _sqlite_engine(file: Path, *, connections: int, begin: str, pragmas: tuple[str, ...]) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(file)),
        # isolation_level None: Python must not begin transactions, because begin_transaction() below does. check_same_thread False: the pool gives
        # a connection to one thread at a time, but not always to the same thread.
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


def _enable_wal(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    # SQLite reports a locked database at once here, without waiting for its own timeout, if another process is just creating or converting the
    # same new database.
    deadline = time.monotonic() + WAIT_S
    cursor = connection.cursor()
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(_WAL_RETRY_S)
    cursor.close()


def _postgresql(url: str) -> Database:
    if not url.startswith(_SCHEMES):
        raise InvalidRequestError(
            "The URL of the database does not begin with postgresql://.",
            hint="Set SANDLOT_DATABASE_URL to postgresql://USER:PASSWORD@HOST/DATABASE, or unset it to use SQLite.",
        )

    async def connect(**arguments: object) -> object:
        # The whole URL is passed to asyncpg, which supports all options of libpq (sslmode, several hosts, a folder of sockets, PGPASSFILE).
        try:
            return await asyncpg.connect(url, command_timeout=COMMAND_TIMEOUT_S, **arguments)
        except ValueError:  # str(error) quotes the URL, which may contain a password
            raise InvalidRequestError(
                "The URL of the PostgreSQL database in SANDLOT_DATABASE_URL is malformed.",
                hint="Set it to postgresql://USER:PASSWORD@HOST/DATABASE. In a password write '@', ':', '/' and '%' as %40, %3A, %2F and %25.",
            ) from None

    engine = create_async_engine(
        "postgresql+asyncpg://",
        connect_args={"async_creator_fn": connect, "timeout": WAIT_S, "server_settings": {"application_name": "sandlot"}},
        pool_size=CONNECTIONS,
        max_overflow=0,
        pool_timeout=WAIT_S,
        pool_pre_ping=True,  # test each connection before its use, because a restart of the database breaks all of them
        hide_parameters=True,
    )
    reader = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Database(_AsyncRunner(reader), _AsyncRunner(engine), "PostgreSQL")


def translate_error(error: Exception, location: str) -> SandlotError:
    """Translate an error of a database into an error of Sandlot. Pure.

    Args:
        error: An error of SQLAlchemy, of a database driver or of the operating system.
        location: Name of the database, for the error message.
    """
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        primary = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if primary in _SQLITE:
            reason, hint = _SQLITE[primary]
            kind, code = (LimitError, ErrorCode.NODE_DISK_FULL) if primary == sqlite3.SQLITE_FULL else (HostError, ErrorCode.HOST_NOT_READY)
            return kind(f"The database {location} cannot be used: {reason}.", code=code, hint=hint)
        if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return _unavailable(f"Another process has locked the database {location} for {WAIT_S:g} seconds.", "Try again, or end the other process.")
    state = str(getattr(cause, "sqlstate", None) or "")
    # Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html. 28: wrong user or password, 3D: no such database, 42501: no permission.
    if state.startswith(("28", "3D")) or state == "42501":
        return HostError(
            f"{location} rejects the connection of this service: {_first_line(cause)}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="Correct SANDLOT_DATABASE_URL, or make the user in it the owner of the schema.",
        )
    if state in {"53100", "25006"} or state.startswith(("XX", "58")):
        return HostError(
            f"{location} cannot be used: {_first_line(cause)}.",
            code=ErrorCode.HOST_NOT_READY,
            hint="See the database's log.",
        )
    # No response, or a code of class 08 (connection), 40 (deadlock), 53 (too many connections), 55 (in use) or 57 (stopped by an operator).
    if state.startswith(("08", "40", "53", "55", "57")) or (not state and not isinstance(cause, sqlite3.Error) and _is_no_response(error)):
        return _unavailable(
            f"The database {location} does not respond: {_first_line(cause)}.", "Try again. If the error persists, see the database's log."
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
