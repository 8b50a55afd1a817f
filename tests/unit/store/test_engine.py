"""An open database: its transactions and errors, with a full disk, a damaged file, and a server that stops."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, exc, text

from sandlot.model.errors import ErrorCode, HostError, InternalError, InvalidRequestError, LimitError, SandlotError, UnavailableError
from sandlot.model.repositories import Store
from sandlot.store import engine
from sandlot.store.store import open_store
from sandlot.testing.stores.harness import HOSTILE_TEXT, event, every_event, execution, sandbox
from tests.support.postgres import Cluster, cluster

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


# -- files -------------------------------------------------------------------------------------------------------------
async def test_database_files_are_private_to_their_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with open_store(tmp_path / "rows.db") as store:
            await store.events.add([event()])
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in listed(tmp_path)}
    finally:
        os.umask(before)
    assert modes == {"rows.db": 0o600, "rows.db-wal": 0o600, "rows.db-shm": 0o600}


async def test_transaction_of_a_cancelled_caller_is_committed_before_the_cancellation_is_raised(tmp_path: Path) -> None:
    begun, may_end = threading.Event(), threading.Event()
    async with engine.open_database(tmp_path / "rows.db") as database:

        def work(connection: Connection) -> None:
            connection.execute(text("CREATE TABLE made (id INTEGER)"))
            begun.set()
            may_end.wait()

        caller = asyncio.create_task(database.write(work))
        await asyncio.to_thread(begun.wait)
        caller.cancel()
        await asyncio.sleep(0)
        had_ended = caller.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not had_ended
        assert await database.rows(text("SELECT id FROM made")) == []


async def test_committed_transactions_are_synced(tmp_path: Path) -> None:
    async with engine.open_database(tmp_path / "rows.db") as database:

        def settings(connection: Connection) -> list[object]:
            return [connection.execute(text(f"PRAGMA {name}")).scalar() for name in ("journal_mode", "synchronous", "foreign_keys")]

        assert await database.write(settings) == ["wal", 2, 1]


async def test_full_disk_is_reported_and_keeps_confirmed_writes(small_disk: Path) -> None:
    kept = sandbox(name="kept")
    async with open_store(small_disk / "rows.db") as store:
        await store.sandboxes.save(kept, event(sandbox=kept.id))
        large = [execution(stdout="x" * 65536) for _ in range(100)]
        with pytest.raises(LimitError) as full:
            await store.executions.save(large)
        assert full.value.code is ErrorCode.NODE_DISK_FULL
        assert full.value.hint
        assert await store.sandboxes.get(kept.id) == kept
        assert await store.executions.get(large[0].id) is None, "all or none"
    async with open_store(small_disk / "rows.db") as store:
        assert await store.sandboxes.get(kept.id) == kept
        assert len(await every_event(store)) == 1


async def test_writes_succeed_again_when_a_full_disk_has_room(small_disk: Path) -> None:
    filler = small_disk / "filler"
    async with open_store(small_disk / "rows.db") as store:
        fill(filler)
        with pytest.raises((HostError, LimitError), match="the disk"):
            await add_events(store, 1000)
        counted = len(await every_event(store))
        filler.unlink()
        await store.events.add([event()])
        assert [one.sequence for one in await every_event(store)] == list(range(1, counted + 2))


async def test_read_only_disk_is_reported(small_disk: Path) -> None:
    async with open_store(small_disk / "rows.db") as store:
        await store.events.add([event()])
    remount(small_disk, "ro")
    with pytest.raises(HostError) as refused:
        async with open_store(small_disk / "rows.db"):
            pass
    assert "rows.db cannot be opened: Read-only file system" in refused.value.message
    assert refused.value.hint
    remount(small_disk, "rw")
    async with open_store(small_disk / "rows.db") as store:
        assert await store.events.last_sequence() == 1


@pytest.mark.parametrize("damage", ["no database at all", "the middle"])
async def test_damaged_file_is_reported_and_not_changed(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "rows.db"
    async with open_store(file) as store:
        await store.events.add([event(data={"text": "x" * 1000}) for _ in range(2000)])
    content = bytearray(file.read_bytes())
    if damage == "the middle":
        content[8192:-4096] = os.urandom(len(content) - 12288)
    else:
        content = bytearray(os.urandom(len(content)))
    file.write_bytes(content)
    with pytest.raises(HostError) as damaged:
        await use(file)
    assert str(file) in damaged.value.message
    assert "damaged" in damaged.value.message
    assert "Restore it from a backup" in damaged.value.hint
    assert len(file.read_bytes()) == len(content)


async def test_transaction_waits_for_another_process(tmp_path: Path) -> None:
    async with open_store(tmp_path / "rows.db") as store:
        other = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(store.events.add([event()]))
        await asyncio.sleep(0.3)
        assert not writing.done()
        assert await store.events.last_sequence() == 0, "who reads is not kept waiting"
        other.execute("COMMIT")
        other.close()
        await writing
        assert await store.events.last_sequence() == 1


async def test_first_use_of_a_new_database_waits_for_another_process(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with engine.open_database(tmp_path / "rows.db") as database:
        writing = asyncio.create_task(database.write(lambda connection: connection.execute(text("PRAGMA journal_mode")).scalar()))
        await asyncio.sleep(0.3)
        assert not writing.done()
        other.execute("COMMIT")
        other.close()
        assert await writing == "wal"


async def test_endless_lock_of_a_new_database_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WAIT_S", 0.2)
    other = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="Another process has locked the database"):
        async with open_store(tmp_path / "rows.db"):
            pass
    other.close()
    async with open_store(tmp_path / "rows.db") as store:
        assert await store.events.last_sequence() == 0


async def test_endless_lock_of_another_process_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "WAIT_S", 0.2)
    async with open_store(tmp_path / "rows.db") as store:
        other = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError, match="Another process has locked the database") as busy:
            await store.events.add([event()])
        assert busy.value.retryable
        other.close()
        await store.events.add([event()])


# -- servers -----------------------------------------------------------------------------------------------------------
async def test_unreachable_server_is_reported_without_the_password() -> None:
    with pytest.raises(UnavailableError) as refused:
        async with open_store("postgresql://user:hush-hush@127.0.0.1:9/sandlot"):
            pass
    assert refused.value.retryable
    assert "hush-hush" not in told(refused.value)


@pytest.mark.parametrize("url", ["mysql://u:hush-hush@h/d", "hush-hush", "postgresql://u:hush-hush@h:port/d", "postgresql://u:hush/hush-hush@h/d"])
async def test_malformed_url_is_reported_without_the_password(url: str) -> None:
    with pytest.raises(SandlotError) as refused:
        async with open_store(url):
            pass
    assert "SANDLOT_DATABASE_URL" in refused.value.hint + refused.value.message
    if not url.startswith("postgresql"):
        assert isinstance(refused.value, InvalidRequestError)
    assert "hush" not in str(refused.value)
    assert "hush-hush@" not in told(refused.value)


async def test_unknown_database_or_user_is_reported(postgres: Cluster) -> None:
    for url in (postgres.url("nowhere"), postgres.url("postgres", user="nobody")):
        with pytest.raises(HostError, match="rejects the connection") as refused:
            async with open_store(url):
                pass
        assert "SANDLOT_DATABASE_URL" in refused.value.hint


async def test_user_without_permissions_is_reported(postgres: Cluster) -> None:
    name = postgres.database().partition("?")[0].rpartition("/")[2]
    postgres.query("CREATE USER stranger")
    with pytest.raises(HostError, match="permission denied"):
        async with open_store(postgres.url(name, user="stranger")):
            pass


async def test_closed_connections_are_replaced(postgres: Cluster) -> None:
    url = postgres.database()
    async with open_store(url) as store:
        await asyncio.gather(*(store.events.add([event()]) for _ in range(5)))
        postgres.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'sandlot'")
        assert await store.events.last_sequence() == 5
        await asyncio.gather(*(store.events.add([event()]) for _ in range(5)))
        assert [one.sequence for one in await every_event(store)] == list(range(1, 11))


async def test_id_that_the_server_cannot_store_is_not_found(postgres: Cluster) -> None:
    async with open_store(postgres.database()) as store:
        for id_ in ("\0", "\ud800", "x" * 100, HOSTILE_TEXT):
            assert await store.sandboxes.get(id_) is None  # type: ignore[arg-type]
            assert await store.executions.get(id_) is None  # type: ignore[arg-type]
            assert await store.keys.revoke(id_, event().at) is None
            assert await store.events.page(owner=None, sandbox=id_, after=0, limit=1) == []  # type: ignore[arg-type]


# -- what an error is --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "statement, values, kind",
    [("SELECT nonsense", None, InternalError), ("INSERT INTO t VALUES (:secret)", {"secret": "hush"}, InternalError)],
)
async def test_refused_statement_is_an_internal_error_without_values(
    tmp_path: Path, statement: str, values: dict[str, str] | None, kind: type[Exception]
) -> None:
    async with engine.open_database(tmp_path / "rows.db") as database:
        with pytest.raises(kind) as refused:
            await database.write(lambda connection: connection.execute(text(statement), values))
    assert isinstance(refused.value, SandlotError)
    assert refused.value.code is ErrorCode.INTERNAL
    assert "hush" not in told(refused.value)


def test_lost_connection_is_unavailable_and_other_errors_are_internal() -> None:
    assert isinstance(engine.translate_error(ConnectionRefusedError(111, "refused"), "x"), UnavailableError)
    assert isinstance(engine.translate_error(exc.TimeoutError("no connection"), "x"), UnavailableError)
    assert isinstance(engine.translate_error(exc.ArgumentError("ours"), "x"), InternalError)


async def add_events(store: Store, count: int) -> None:
    for _ in range(count):
        await store.events.add([event(data={"text": "x" * 10_000})])


async def use(file: Path) -> None:
    async with open_store(file) as store:
        await every_event(store)
        await store.events.add([event()])


def listed(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as out:
        try:
            while out.write(bytes(4096)):
                pass
        except OSError:
            return


def remount(folder: Path, mode: str) -> None:
    for _ in range(100):  # what was just closed may take a moment to let go
        if subprocess.run(["mount", "-o", f"remount,{mode}", folder], check=False, capture_output=True).returncode == 0:
            return
        time.sleep(0.05)
    raise AssertionError(mode)


def told(error: BaseException) -> str:
    """All that a log would show of it."""
    found, seen = "", error
    while True:
        found += f"{seen!r} {seen} {getattr(seen, 'fields', '')}"
        if seen.__cause__ is None:
            return found
        seen = seen.__cause__
